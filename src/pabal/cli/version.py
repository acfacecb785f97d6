"""The version, for `pabal version` and `pabal --version`. Imports nothing: this text takes no time."""

import platform

from pabal import __version__


def version_text() -> str:
    return f"pabal {__version__} (Python {platform.python_version()})"
