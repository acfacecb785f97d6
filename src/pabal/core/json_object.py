"""JSON of other systems, whose members are checked where they are read."""

from typing import Any

JsonObject = dict[str, Any]
