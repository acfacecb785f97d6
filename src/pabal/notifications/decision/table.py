"""The decision table in docs/notifications.md, computed by deciding every possible case."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, assert_never

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
    """Return the table as Markdown: every case in one row, and as few rows as the order of the columns allows."""
    heading = [(*COLUMNS, "result"), ("---",) * (len(COLUMNS) + 1)]
    rows = decision_table_rows((), [*COLUMNS.values()])
    return "".join(f"| {' | '.join(row)} |\n" for row in (*heading, *rows))


def decision_table_rows(case: TableRow, remaining_columns: Sequence[Sequence[str]]) -> tuple[TableRow, ...]:
    """Return the rows for a case whose last columns are open. Values with the same rows below share one row."""
    if not remaining_columns:
        return ((decision_cell(case),),)
    values_by_rows: dict[tuple[TableRow, ...], list[str]] = {}
    for value in remaining_columns[0]:
        values_by_rows.setdefault(decision_table_rows((*case, value), remaining_columns[1:]), []).append(value)
    return tuple(merge_equal_rows(values_by_rows, remaining_columns[0]))


def merge_equal_rows(
    values_by_rows: Mapping[tuple[TableRow, ...], Sequence[str]], all_values: Sequence[str]
) -> Iterator[TableRow]:
    for rows, values in values_by_rows.items():
        cell = ANY_VALUE if len(values) == len(all_values) else ", ".join(values)
        yield from ((cell, *row) for row in rows)


def decision_cell(case: TableRow) -> str:
    category, criticality, channel, dms, flag, address, hour, consent = case
    """Decide one case."""
    category_flag: dict[str, Any] = {}
    if category != NotificationCategory.SYSTEM:
        category_flag[f"{category}_notifications"] = flag == "on"
    profile = RecipientProfile(
        dm_enabled=dms == "on",
        night_consent_at=HOURS["day"] if consent == "given" else None,
        unhealthy=frozenset({NotificationChannel(channel)} if address == "unhealthy" else ()),
        **category_flag,
    )
    decision = decide_delivery(
        NotificationChannel(channel), NotificationCategory(category), Criticality(criticality), profile, now=HOURS[hour]
    )
    match decision:
        case SendNow():
            return "sent"
        case Suppress(reason):
            return reason
        case SendLater():
            return "delayed until 08:00"
        case _:
            assert_never(decision)
