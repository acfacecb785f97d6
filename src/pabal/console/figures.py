"""Numbers, times and ids as a person reads them."""

from datetime import UTC, datetime, timedelta

from markupsafe import Markup, escape

from pabal.relay.accounts import OF_SESSIONS

MINUTE, HOUR, DAY = 60, 3600, 86400


def count(number: int) -> str:
    return f"{number:,}"


def age(span: timedelta) -> str:
    """Write `3.2 s`, `4 min`, `2 h 5 min`, `3 d 4 h`: two places, no more."""
    seconds = span.total_seconds()
    if seconds < MINUTE:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < HOUR:
        return f"{whole // MINUTE} min"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"


def moment(at: datetime | None) -> Markup:
    """A time, to the second, in UTC; the page's script turns it to the clock of whoever looks."""
    if at is None:
        return Markup("")
    utc = at.astimezone(UTC)
    return Markup('<time datetime="{}" data-at>{} UTC</time>').format(
        utc.isoformat(), utc.replace(tzinfo=None).isoformat(" ", "seconds")
    )


def short(name: object) -> Markup:
    """An id in the room a list has: its beginning and its end; all of it is in its title."""
    whole = str(name)
    cut = whole if len(whole) <= 18 else f"{whole[:8]}…{whole[-6:]}"  # noqa: PLR2004 both parts and a little
    return Markup('<code title="{}">{}</code>').format(whole, cut)


def called(name: str) -> Markup:
    """An account's name in a list: one that a session made is an id, and cut like one."""
    return short(name) if name.startswith(OF_SESSIONS) else escape(name)
