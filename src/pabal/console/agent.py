"""What somebody came with, as they would say it themselves."""

import re

from markupsafe import Markup, escape

BROWSERS_BY_TOKEN = {
    "Edg": "Edge",
    "OPR": "Opera",
    "SamsungBrowser": "Samsung Internet",
    "Whale": "Whale",
    "Firefox": "Firefox",
    "FxiOS": "Firefox",
    "CriOS": "Chrome",
    "Chrome": "Chrome",
    "Safari": "Safari",
}
"""Those first that call themselves by another's name as well."""
SYSTEMS_BY_TOKEN = {
    "Windows": "Windows",
    "Android": "Android",
    "iPhone": "iPhone",
    "iPad": "iPad",
    "Mac OS X": "macOS",
    "CrOS": "ChromeOS",
    "Linux": "Linux",
}


def format_user_agent(user_agent: str) -> Markup:
    """A browser and its system, `Chrome 156 · Linux`; all it said is in its title. What is none is shown as it is."""
    for name, browser in BROWSERS_BY_TOKEN.items():
        if found := re.search(rf"{name}\w*/(\d+)", user_agent):
            system = next((each for sign, each in SYSTEMS_BY_TOKEN.items() if sign in user_agent), "")
            version = re.search(r"\bVersion/(\d+)", user_agent) if name == "Safari" else found
            short = f"{browser} {(version or found)[1]}" + (f" · {system}" if system else "")
            return Markup('<span title="{}">{}</span>').format(user_agent, short)
    return escape(user_agent)
