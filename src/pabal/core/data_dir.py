"""The default data directory."""

import os
import sys
from pathlib import Path


def default_data_dir() -> Path:
    """Where the embedded database and the keys are kept unless PABAL_DATA_DIR names another directory."""
    if os.geteuid() == 0:
        return Path("/var/lib/pabal")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "pabal"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "pabal"
