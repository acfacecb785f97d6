"""Field types of events that the API and the CLI share."""

from typing import Annotated, Literal

import msgspec

from pabal.core.event_types import EVENT_TYPE_PATTERN, MAX_EVENT_TYPE_LENGTH

EventStatus = Literal["pending", "processing", "completed", "failed", "cancelled"]
EventType = Annotated[str, msgspec.Meta(pattern=EVENT_TYPE_PATTERN, max_length=MAX_EVENT_TYPE_LENGTH)]
PRIORITY_BY_NAME = {"critical": 1, "high": 3, "normal": 5, "low": 7}
