"""When a failed push is tried again: on a schedule of hours, so that a receiver may be away for a deploy or a night.

Plain functions; the caller passes the random number and the times.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from pabal.core.duration import format_duration, parse_duration
from pabal.core.errors import Invalid

DEFAULT_RETRY_SCHEDULE = (5, 30, 2 * 60, 10 * 60, 3600, 4 * 3600, 12 * 3600)
"""Seconds before each retry, about 17 hours in all."""
UNCHOSEN_RETRIES = 3
"""The specification's default of max_retries. Any other value is the publisher's choice."""
SCHEDULE_JITTER = 0.1
MAX_RETRY_AFTER = timedelta(hours=1)
BLOCKED_LIMIT = timedelta(minutes=10)
"""How long a failing push may hold back later events of its ordering key."""


def parse_retry_schedule(text: str) -> list[int]:
    """Parse delays such as `5s,30s,2m` into seconds."""
    try:
        return [int(parse_duration(step.strip()).total_seconds()) for step in text.split(",")]
    except ValueError as error:
        raise Invalid.of_field("retry_schedule", str(error)) from None


def format_retry_schedule(schedule: Sequence[int] | None) -> str:
    """The delays as text, such as `5s, 30s, 2m`; those of the default without a schedule."""
    return ", ".join(format_duration(timedelta(seconds=step)) for step in schedule or DEFAULT_RETRY_SCHEDULE)


def scheduled_retries(schedule: Sequence[int] | None, max_retries: int) -> int:
    """The number of retries of a push: the publisher's, or as many as the schedule has."""
    return max_retries if max_retries != UNCHOSEN_RETRIES else len(schedule or DEFAULT_RETRY_SCHEDULE)


def scheduled_delay(
    schedule: Sequence[int] | None, attempt: int, jitter: float, retry_after: timedelta | None = None
) -> timedelta:
    """The delay after a failed attempt, ±10 %; the last step repeats. `jitter` is in [0, 1).

    A receiver's Retry-After can extend a step up to an hour, but not shorten it.
    """
    steps = schedule or DEFAULT_RETRY_SCHEDULE
    step = timedelta(seconds=steps[min(max(attempt, 1), len(steps)) - 1])
    return max(step * (1 - SCHEDULE_JITTER + 2 * SCHEDULE_JITTER * jitter), limit_retry_after(retry_after))


def limit_retry_after(retry_after: timedelta | None) -> timedelta:
    """How long a receiver's Retry-After forbids the next push."""
    return min(retry_after or timedelta(), MAX_RETRY_AFTER)


def limit_blocked_delay(
    delay: timedelta, first_attempt_at: datetime, now: datetime, retry_after: timedelta | None = None
) -> timedelta | None:
    """The delay of an event that holds others back, at most until BLOCKED_LIMIT; None if that is over.

    A Retry-After that ends later stays: the event becomes a dead letter without another push.
    """
    remaining = BLOCKED_LIMIT - (now - first_attempt_at)
    return max(min(delay, remaining), limit_retry_after(retry_after)) if remaining > timedelta() else None
