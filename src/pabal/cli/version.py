"""`pabal version`."""

import platform

from pabal import __version__
from pabal.cli import screen
from pabal.cli.options import Json


def version_command(*, json: Json = False) -> None:
    """Show Pabal's version."""
    if json:
        screen.print_json({"pabal": __version__, "python": platform.python_version()})
    else:
        screen.print_text(version_text())


def version_text() -> str:
    return f"pabal {__version__} (Python {platform.python_version()})"
