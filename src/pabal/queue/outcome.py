"""What can become of a claimed row. A closed set: `match` over it ends in `assert_never`."""

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import final


@final
@dataclass(frozen=True, slots=True)
class Done:
    """The row is delivered."""


@final
@dataclass(frozen=True, slots=True)
class Retry:
    """Try again later. `delay` overrides the backoff, for example with a server's Retry-After."""

    error: str
    delay: timedelta | None = None
    code: str | None = None
    stack: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Dead:
    """Do not try again. The row becomes a dead letter."""

    error: str
    code: str | None = None
    stack: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Snooze:
    """Try again after `delay` without counting an attempt: nothing failed."""

    reason: str
    delay: timedelta


Outcome = Done | Retry | Dead | Snooze
DONE = Done()


class UnsentScope(Enum):
    """What an unsent request has in common with other requests that would not be sent either."""

    ROW = auto()
    """Only this row: it can never be sent."""
    TARGET = auto()
    """Every row for this target, until its settings change."""
    HUB = auto()
    """Every row, for a moment."""


@final
@dataclass(frozen=True, slots=True)
class Unsent:
    """A sender's result, not an outcome: the hub could not send the request, which says nothing about the receiver."""

    error: str
    code: str
    scope: UnsentScope
