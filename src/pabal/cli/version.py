"""`pabal version`."""

import platform

from pabal import __version__
from pabal.cli import screen
from pabal.cli.options import Json


def version(*, json: Json = False) -> None:
    """Show Pabal's version."""
    if json:
        screen.as_json({"pabal": __version__, "python": platform.python_version()})
    else:
        screen.say(text())


def text() -> str:
    return f"pabal {__version__} (Python {platform.python_version()})"
