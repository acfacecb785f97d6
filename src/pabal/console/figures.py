"""Numbers, times and ids as a person reads them."""

import re
from datetime import UTC, datetime, timedelta

from markupsafe import Markup, escape

from pabal.core.phrase import Phrase

MINUTE, HOUR, DAY = 60, 3600, 86400
BY_ID = re.compile(r"(?:[a-z]+:)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""What has no name of its own: an account a session made, whoever came with a token, an event among several."""
KIND = 16
"""So far into an id it may say what it is of, as `conversation:` does."""


def count(number: int) -> str:
    return f"{number:,}"


def age(span: timedelta) -> Phrase:
    """Write `3.2 s`, `4 min`, `2 h 5 min`, `3 d 4 h`: two places, no more."""
    seconds = span.total_seconds()
    if seconds < MINUTE:
        return Phrase("{} s", f"{seconds:.1f}")
    whole = int(seconds)
    if whole < HOUR:
        return Phrase("{} min", whole // MINUTE)
    if whole < DAY:
        return Phrase("{} h {} min", whole // HOUR, whole % HOUR // MINUTE)
    return Phrase("{} d {} h", whole // DAY, whole % DAY // HOUR)


def moment(at: datetime | None) -> Markup:
    """A time, to the second, in UTC; the page's script turns it to the clock of whoever looks."""
    if at is None:
        return Markup("")
    utc = at.astimezone(UTC)
    return Markup('<time datetime="{}" data-at>{} UTC</time>').format(
        utc.isoformat(), utc.replace(tzinfo=None).isoformat(" ", "seconds")
    )


def short(name: object) -> Markup:
    """An id in the room a list has: its beginning and its end, or what it is and its end; all of it is in its title."""
    whole = str(name)
    kind, colon, _ = whole[:KIND].partition(":")
    begins = f"{kind}:" if colon else whole[:8]
    cut = whole if len(whole) <= 18 else f"{begins}…{whole[-6:]}"  # noqa: PLR2004 both parts and a little
    return Markup('<code title="{}">{}</code>').format(whole, cut)


def called(name: str) -> Markup:
    """Whoever it is, in a list: one that is called after an id is cut like one."""
    return short(name) if BY_ID.fullmatch(name) else escape(name)
