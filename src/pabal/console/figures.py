"""Numbers, times and ids as a person reads them."""

import re
from datetime import UTC, datetime, timedelta

from markupsafe import Markup, escape

from pabal.core.phrase import Message

MINUTE_SECONDS, HOUR_SECONDS, DAY_SECONDS = 60, 3600, 86400
ID_NAME_PATTERN = re.compile(r"(?:[a-z]+:)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""What has no name of its own: an account a session made, whoever came with a token, an event among several."""
MAX_ID_KIND_LENGTH = 16
"""So far into an id it may say what it is of, as `conversation:` does."""


def format_count(number: int) -> str:
    return f"{number:,}"


def format_age(duration: timedelta) -> Message:
    """Write `3.2 s`, `4 min`, `2 h 5 min`, `3 d 4 h`: two places, no more."""
    seconds = duration.total_seconds()
    if seconds < MINUTE_SECONDS:
        return Message("{} s", f"{seconds:.1f}")
    whole = int(seconds)
    if whole < HOUR_SECONDS:
        return Message("{} min", whole // MINUTE_SECONDS)
    if whole < DAY_SECONDS:
        return Message("{} h {} min", whole // HOUR_SECONDS, whole % HOUR_SECONDS // MINUTE_SECONDS)
    return Message("{} d {} h", whole // DAY_SECONDS, whole % DAY_SECONDS // HOUR_SECONDS)


def time_element(at: datetime | None) -> Markup:
    """A time, to the second, in UTC; the page's script turns it to the clock of whoever looks."""
    if at is None:
        return Markup("")
    utc = at.astimezone(UTC)
    return Markup('<time datetime="{}" data-at>{} UTC</time>').format(
        utc.isoformat(), utc.replace(tzinfo=None).isoformat(" ", "seconds")
    )


def short_id(name: object) -> Markup:
    """An id in the room a list has: its beginning and its end, or what it is and its end; all of it is in its title."""
    whole = str(name)
    kind, colon, _ = whole[:MAX_ID_KIND_LENGTH].partition(":")
    begins = f"{kind}:" if colon else whole[:8]
    cut = whole if len(whole) <= 18 else f"{begins}…{whole[-6:]}"  # noqa: PLR2004 both parts and a little
    return Markup('<code title="{}">{}</code>').format(whole, cut)


def display_name(name: str) -> Markup:
    """Whoever it is, in a list: one that is called after an id is cut like one."""
    return short_id(name) if ID_NAME_PATTERN.fullmatch(name) else escape(name)
