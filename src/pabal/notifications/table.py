"""The table of what goes out, as the documents print it: worked out by asking about every case there is."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import assert_never

from pabal.notifications.plan import KOREA, Category, Channel, Criticality, Flags, Later, Send, Suppress, decide

COLUMNS: Mapping[str, Sequence[str]] = {
    "category": [*Category],
    "criticality": [*Criticality],
    "channel": [*Channel],
    "DMs": ["on", "off"],
    "category flag": ["on", "off"],
    "address": ["healthy", "unhealthy"],
    "hour": ["day", "night"],
    "night consent": ["given", "none"],
}
HOURS = {"day": datetime(2026, 3, 1, 12, tzinfo=KOREA), "night": datetime(2026, 3, 1, 0, tzinfo=KOREA)}
ANY = "any"

Row = tuple[str, ...]


def markdown() -> str:
    """Every case in one row, and as few rows as the order of the columns allows."""
    heading = [(*COLUMNS, "then"), ("---",) * (len(COLUMNS) + 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (*heading, *rows((), [*COLUMNS.values()])))


def rows(case: Row, left: Sequence[Sequence[str]]) -> tuple[Row, ...]:
    """What becomes of a case for each value it does not have yet; values after which all is the same share rows."""
    if not left:
        return ((outcome(case),),)
    alike: dict[tuple[Row, ...], list[str]] = {}
    for value in left[0]:
        alike.setdefault(rows((*case, value), left[1:]), []).append(value)
    return tuple(joined(alike, left[0]))


def joined(alike: Mapping[tuple[Row, ...], Sequence[str]], known: Sequence[str]) -> Iterator[Row]:
    for following, values in alike.items():
        cell = ANY if len(values) == len(known) else ", ".join(values)
        yield from ((cell, *row) for row in following)


def outcome(case: Row) -> str:
    category, criticality, channel, dms, flag, address, hour, consent = case
    switched = {} if category == Category.SYSTEM else {f"{category}_notifications": flag == "on"}
    flags = Flags(
        dm_enabled=dms == "on",
        night_consent_at=HOURS["day"] if consent == "given" else None,
        unhealthy=frozenset({Channel(channel)} if address == "unhealthy" else ()),
        **switched,
    )
    decision = decide(Channel(channel), Category(category), Criticality(criticality), flags, now=HOURS[hour])
    match decision:
        case Send():
            return "sent"
        case Suppress(reason):
            return reason
        case Later():
            return "waits for the morning"
        case _:
            assert_never(decision)
