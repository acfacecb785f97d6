"""What somebody came with, as they would say it themselves."""

import re

from markupsafe import Markup, escape

BROWSERS = {
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
SYSTEMS = {
    "Windows": "Windows",
    "Android": "Android",
    "iPhone": "iPhone",
    "iPad": "iPad",
    "Mac OS X": "macOS",
    "CrOS": "ChromeOS",
    "Linux": "Linux",
}


def agent(said: str) -> Markup:
    """A browser and its system, `Chrome 156 · Linux`; all it said is in its title. What is none is shown as it is."""
    for name, browser in BROWSERS.items():
        if found := re.search(rf"{name}\w*/(\d+)", said):
            system = next((each for sign, each in SYSTEMS.items() if sign in said), "")
            version = re.search(r"\bVersion/(\d+)", said) if name == "Safari" else found
            short = f"{browser} {(version or found)[1]}" + (f" · {system}" if system else "")
            return Markup('<span title="{}">{}</span>').format(said, short)
    return escape(said)
