"""`pabal version`."""

import platform

from pabal import __version__
from pabal.cli.options import Json
from pabal.cli.output import print_json, print_text
from pabal.cli.version import version_text


def version_command(*, json: Json = False) -> None:
    """Show the version."""
    if json:
        print_json({"pabal": __version__, "python": platform.python_version()})
    else:
        print_text(version_text())
