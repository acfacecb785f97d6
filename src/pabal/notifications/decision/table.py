"""The table of what goes out, as the documents print it: worked out by asking about every case there is."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import assert_never

from pabal.notifications.decision.decide import (
    KOREA_TIMEZONE,
    Criticality,
    NotificationCategory,
    NotificationChannel,
    RecipientProfile,
    SendLater,
    SendNow,
    Suppress,
    decide_delivery,
)

COLUMNS: Mapping[str, Sequence[str]] = {
    "category": [*NotificationCategory],
    "criticality": [*Criticality],
    "channel": [*NotificationChannel],
    "DMs": ["on", "off"],
    "category flag": ["on", "off"],
    "address": ["healthy", "unhealthy"],
    "hour": ["day", "night"],
    "night consent": ["given", "none"],
}
HOURS = {
    "day": datetime(2026, 3, 1, 12, tzinfo=KOREA_TIMEZONE),
    "night": datetime(2026, 3, 1, 0, tzinfo=KOREA_TIMEZONE),
}
ANY_VALUE = "any"

TableRow = tuple[str, ...]


def decision_table_markdown() -> str:
    """Every case in one row, and as few rows as the order of the columns allows."""
    heading = [(*COLUMNS, "then"), ("---",) * (len(COLUMNS) + 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (*heading, *decision_table_rows((), [*COLUMNS.values()])))


def decision_table_rows(case: TableRow, remaining_columns: Sequence[Sequence[str]]) -> tuple[TableRow, ...]:
    """What becomes of a case for each value it does not have yet; values after which all is the same share rows."""
    if not remaining_columns:
        return ((decision_cell(case),),)
    alike: dict[tuple[TableRow, ...], list[str]] = {}
    for value in remaining_columns[0]:
        alike.setdefault(decision_table_rows((*case, value), remaining_columns[1:]), []).append(value)
    return tuple(merge_equal_rows(alike, remaining_columns[0]))


def merge_equal_rows(alike: Mapping[tuple[TableRow, ...], Sequence[str]], known: Sequence[str]) -> Iterator[TableRow]:
    for following, values in alike.items():
        cell = ANY_VALUE if len(values) == len(known) else ", ".join(values)
        yield from ((cell, *row) for row in following)


def decision_cell(case: TableRow) -> str:
    category, criticality, channel, dms, flag, address, hour, consent = case
    switched = {} if category == NotificationCategory.SYSTEM else {f"{category}_notifications": flag == "on"}
    flags = RecipientProfile(
        dm_enabled=dms == "on",
        night_consent_at=HOURS["day"] if consent == "given" else None,
        unhealthy=frozenset({NotificationChannel(channel)} if address == "unhealthy" else ()),
        **switched,
    )
    decision = decide_delivery(
        NotificationChannel(channel), NotificationCategory(category), Criticality(criticality), flags, now=HOURS[hour]
    )
    match decision:
        case SendNow():
            return "sent"
        case Suppress(reason):
            return reason
        case SendLater():
            return "waits for the morning"
        case _:
            assert_never(decision)
