"""The failed attempts of an event, as its row and its dead letter store them."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, cast

import msgspec

from pabal.db.stored_json import encode_jsonb

AttemptTime = Annotated[datetime, msgspec.Meta(tz=True)]


class FailedAttempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A failed attempt. In adopted events, another program may have recorded less than the hub does."""

    error: str
    attempt: int | None = None
    at: AttemptTime | None = None
    began: AttemptTime | None = None
    first_began: AttemptTime | None = None
    """When the first attempt began, if its entry is no longer stored."""
    worker: str | None = None
    code: str | None = None

    @property
    def took(self) -> timedelta | None:
        return self.at - self.began if self.at and self.began else None


def parse_error_history(history: object) -> Sequence[FailedAttempt] | None:
    """Parse the column `error_history`."""
    if history is None:
        return None
    entries = cast("list[Any]", history) if isinstance(history, list) else [history]
    return [parse_failed_attempt(entry) for entry in entries]


def parse_failed_attempt(entry: object) -> FailedAttempt:
    try:
        return msgspec.convert(entry, FailedAttempt)
    except msgspec.ValidationError:  # of another program
        return FailedAttempt(entry if isinstance(entry, str) else encode_jsonb(entry))
