"""Decisions match the hand-written table for every case, and so does the documented table."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import settings as trying
from hypothesis import strategies as st

from pabal.notifications.decision.decide import (
    KOREA_TIMEZONE,
    Criticality,
    DecisionStep,
    NotificationCategory,
    NotificationChannel,
    RecipientProfile,
    SendLater,
    SendNow,
    Suppress,
    SuppressReason,
    decide_delivery,
    is_night_in_korea,
    next_korean_morning,
)
from pabal.notifications.states import (
    CategoryName,
    CriticalityName,
    FailureReason,
    NotificationReason,
    Priority,
    RecipientType,
)

NO_DEADLINE = trying(deadline=None)  # the machine may be busy
EXPECTED_TABLE = Path(__file__).with_name("expected_decisions.md")
DOCUMENTED_TABLE = Path(__file__).parents[2] / "docs" / "notifications.md"
COLUMNS = {
    "channel": [*NotificationChannel],
    "category": [*NotificationCategory],
    "criticality": [*Criticality],
    "DMs": ["on", "off"],
    "category flag": ["on", "off"],
    "address": ["healthy", "unhealthy"],
    "hour": ["day", "night"],
    "night consent": ["given", "none"],
}
HEADING = (*COLUMNS, "result")
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=KOREA_TIMEZONE)
HOURS = {
    "day": [NOON.replace(hour=8), NOON, NOON.replace(hour=20, minute=59, second=59)],
    "night": [NOON.replace(hour=21), NOON.replace(hour=0), NOON.replace(hour=7, minute=59, second=59)],
}
Case = tuple[str, ...]


def rows_of(document: Path) -> list[Case]:
    """The rows of the document's decision table, with the columns in the order of HEADING."""
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in document.read_text(encoding="utf-8").splitlines()
        if line.count("|") == len(HEADING) + 1
    ]
    heading, _, *rows = lines
    assert sorted(heading) == sorted(HEADING)
    return [tuple(row[heading.index(name)] for name in HEADING) for row in rows]


ROWS = rows_of(EXPECTED_TABLE)


def cases(row: tuple[str, ...]) -> Iterator[Case]:
    """Every case that a row of the table covers."""
    cells = [
        [str(value) for value in column_values] if cell == "any" else cell.split(", ")
        for cell, column_values in zip(row[:-1], COLUMNS.values(), strict=True)
    ]
    yield from product(*cells)


def profile_of(case: Case) -> RecipientProfile:
    """A profile with the case's category flag; all other flags are inverted, because they must not matter."""
    channel, category, _criticality, dm, flag, address, _hour, consent = case
    switches: dict[str, Any] = {
        f"{name}_notifications": (flag == "on") is (name == category) for name in NotificationCategory
    }
    del switches["system_notifications"]
    return RecipientProfile(
        dm_enabled=dm == "on",
        night_consent_at=NOON if consent == "given" else None,
        unhealthy=frozenset(name for name in NotificationChannel if (name == channel) is (address == "unhealthy")),
        **switches,
    )


def outcomes(case: Case) -> Iterator[str]:
    channel, category, criticality = NotificationChannel(case[0]), NotificationCategory(case[1]), Criticality(case[2])
    profile = profile_of(case)
    for now in HOURS[case[6]]:
        for zone in (KOREA_TIMEZONE, UTC):
            match decide_delivery(channel, category, criticality, profile, now=now.astimezone(zone)):
                case SendNow():
                    yield "sent"
                case Suppress(reason):
                    yield reason
                case SendLater(until):
                    assert until == next_korean_morning(now)
                    yield "delayed until 08:00"


@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_decisions_match_the_hand_written_table(row: tuple[str, ...]) -> None:
    assert {outcome for case in cases(row) for outcome in outcomes(case)} == {row[-1]}


@pytest.mark.parametrize("document", [EXPECTED_TABLE, DOCUMENTED_TABLE], ids=["hand-written", "documented"])
def test_every_case_is_in_exactly_one_row(document: Path) -> None:
    all_cases = [case for row in rows_of(document) for case in cases(row)]

    assert len(all_cases) == len({*all_cases})
    assert {*all_cases} == {tuple(map(str, case)) for case in product(*COLUMNS.values())}


def test_the_documented_table_matches_the_hand_written_one() -> None:
    by_hand, published = [
        {case: row[-1] for row in rows_of(document) for case in cases(row)}
        for document in (EXPECTED_TABLE, DOCUMENTED_TABLE)
    ]

    assert published == by_hand


@pytest.mark.parametrize(
    ("hour", "until"),
    [
        ((1, 20, 59), None),
        ((1, 21, 0), (2, 8)),
        ((1, 23, 59), (2, 8)),
        ((2, 0, 0), (2, 8)),
        ((2, 7, 59), (2, 8)),
        ((2, 8, 0), None),
    ],
)
def test_the_night_spans_midnight(hour: tuple[int, int, int], until: tuple[int, int] | None) -> None:
    now = datetime(2026, 3, *hour, tzinfo=KOREA_TIMEZONE)
    decision = decide_delivery(
        NotificationChannel.USER_DM,
        NotificationCategory.MARKETING,
        Criticality.NORMAL,
        RecipientProfile(),
        now=now.astimezone(UTC),
    )

    if until is None:
        assert isinstance(decision, SendNow)
    else:
        assert isinstance(decision, SendLater)
        assert decision.until == datetime(2026, 3, *until, tzinfo=KOREA_TIMEZONE)


@NO_DEADLINE
@given(st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 timezones= sets the zone
def test_the_next_morning_is_the_end_of_the_night(now: datetime) -> None:
    morning = next_korean_morning(now)

    assert timedelta() < morning - now <= timedelta(days=1)
    assert not is_night_in_korea(morning)
    assert is_night_in_korea(morning - timedelta(microseconds=1))
    assert morning.astimezone(KOREA_TIMEZONE).hour == 8


def test_an_emergency_lists_what_it_overrides() -> None:
    profile = RecipientProfile(
        dm_enabled=False, antinuke_notifications=False, unhealthy=frozenset({NotificationChannel.USER_DM})
    )

    decision = decide_delivery(
        NotificationChannel.USER_DM, NotificationCategory.ANTINUKE, Criticality.EMERGENCY, profile, now=NOON
    )

    assert isinstance(decision, SendNow)
    assert decision.overrides == (
        SuppressReason.DM_DISABLED,
        SuppressReason.CATEGORY_OFF,
        SuppressReason.ADDRESS_UNHEALTHY,
    )
    assert decision.steps == (
        DecisionStep.EMERGENCY,
        DecisionStep.DM_DISABLED,
        DecisionStep.CATEGORY_OFF,
        DecisionStep.ADDRESS_UNHEALTHY,
    )


def test_the_first_failed_check_is_the_reason_and_all_steps_are_listed() -> None:
    profile = RecipientProfile(dm_enabled=False, payment_notifications=False)

    decision = decide_delivery(
        NotificationChannel.USER_DM, NotificationCategory.PAYMENT, Criticality.NORMAL, profile, now=NOON
    )

    assert decision == Suppress(
        SuppressReason.DM_DISABLED, (DecisionStep.DM_DISABLED, DecisionStep.CATEGORY_OFF, DecisionStep.ADDRESS_HEALTHY)
    )


def test_emergencies_have_the_lowest_priority_number() -> None:
    assert [
        criticality.priority for criticality in (Criticality.EMERGENCY, Criticality.IMPORTANT, Criticality.NORMAL)
    ] == [1, 3, 5]


@pytest.mark.parametrize(
    ("literal", "values"),
    [
        (RecipientType, {*NotificationChannel}),
        (CategoryName, {*NotificationCategory}),
        (CriticalityName, {*Criticality}),
        (NotificationReason, {*get_args(FailureReason), *SuppressReason}),
        (Priority, {criticality.priority for criticality in Criticality}),
    ],
)
def test_the_values_in_rows_are_those_of_the_decision(literal: Any, values: set[object]) -> None:
    assert {*get_args(literal)} == values
