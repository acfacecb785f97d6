"""Field types of events that the API and the CLI share."""

from typing import Annotated, Literal

import msgspec

EventStatus = Literal["pending", "processing", "completed", "failed", "cancelled"]
EventType = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*$(?!\n)", max_length=128)]
PRIORITY_BY_NAME = {"critical": 1, "high": 3, "normal": 5, "low": 7}
