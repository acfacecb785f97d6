"""Decisions match the hand-written table for every case, and so does the documented table."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

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

NO_DEADLINE = trying(deadline=None)  # the machine may work for others meanwhile
TRUTH = Path(__file__).with_name("truth.md")
DOCUMENT = Path(__file__).parents[2] / "docs" / "notifications.md"
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
    """The rows of the table whose columns are these, in our order of them, whichever it has itself."""
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in document.read_text(encoding="utf-8").splitlines()
        if line.count("|") == len(HEADING) + 1
    ]
    heading, _, *rows = lines
    assert sorted(heading) == sorted(HEADING)
    return [tuple(row[heading.index(name)] for name in HEADING) for row in rows]


ROWS = rows_of(TRUTH)


def cases(row: tuple[str, ...]) -> Iterator[Case]:
    """Every case a row of the table stands for."""
    cells = [
        [str(item) for item in known] if cell == "any" else cell.split(", ")
        for cell, known in zip(row[:-1], COLUMNS.values(), strict=True)
    ]
    yield from product(*cells)


def profile_of(case: Case) -> RecipientProfile:
    """The flag of the notice's own category as said, and all others the other way round: they must not matter."""
    channel, category, _criticality, dm, flag, address, _hour, consent = case
    switches = {f"{item}_notifications": (flag == "on") is (item == category) for item in NotificationCategory}
    del switches["system_notifications"]
    return RecipientProfile(
        dm_enabled=dm == "on",
        night_consent_at=NOON if consent == "given" else None,
        unhealthy=frozenset(item for item in NotificationChannel if (item == channel) is (address == "unhealthy")),
        **switches,
    )


def outcomes(case: Case) -> Iterator[str]:
    channel, category, criticality = NotificationChannel(case[0]), NotificationCategory(case[1]), Criticality(case[2])
    flags = profile_of(case)
    for now in HOURS[case[6]]:
        for zone in (KOREA_TIMEZONE, UTC):
            match decide_delivery(channel, category, criticality, flags, now=now.astimezone(zone)):
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


@pytest.mark.parametrize("document", [TRUTH, DOCUMENT], ids=["by hand", "the documents"])
def test_every_case_is_in_exactly_one_row(document: Path) -> None:
    result = [case for row in rows_of(document) for case in cases(row)]

    assert len(result) == len({*result})
    assert {*result} == {tuple(map(str, case)) for case in product(*COLUMNS.values())}


def test_the_documented_table_matches_the_hand_written_one() -> None:
    by_hand, published = [
        {case: row[-1] for row in rows_of(document) for case in cases(row)} for document in (TRUTH, DOCUMENT)
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
    matches = decide_delivery(
        NotificationChannel.USER_DM,
        NotificationCategory.MARKETING,
        Criticality.NORMAL,
        RecipientProfile(),
        now=now.astimezone(UTC),
    )

    if until is None:
        assert isinstance(matches, SendNow)
    else:
        assert isinstance(matches, SendLater)
        assert matches.until == datetime(2026, 3, *until, tzinfo=KOREA_TIMEZONE)


@NO_DEADLINE
@given(st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 the zone is beside
def test_the_next_morning_is_the_end_of_the_night(now: datetime) -> None:
    morning = next_korean_morning(now)

    assert timedelta() < morning - now <= timedelta(days=1)
    assert not is_night_in_korea(morning)
    assert is_night_in_korea(morning - timedelta(microseconds=1))
    assert morning.astimezone(KOREA_TIMEZONE).hour == 8


def test_an_emergency_lists_what_it_overrides() -> None:
    flags = RecipientProfile(
        dm_enabled=False, antinuke_notifications=False, unhealthy=frozenset({NotificationChannel.USER_DM})
    )

    matches = decide_delivery(
        NotificationChannel.USER_DM, NotificationCategory.ANTINUKE, Criticality.EMERGENCY, flags, now=NOON
    )

    assert isinstance(matches, SendNow)
    assert matches.overrides == (
        SuppressReason.DM_DISABLED,
        SuppressReason.CATEGORY_OFF,
        SuppressReason.ADDRESS_UNHEALTHY,
    )
    assert matches.steps == (
        DecisionStep.EMERGENCY,
        DecisionStep.DM_DISABLED,
        DecisionStep.CATEGORY_OFF,
        DecisionStep.ADDRESS_UNHEALTHY,
    )


def test_the_first_objection_is_the_reason_and_all_steps_are_listed() -> None:
    flags = RecipientProfile(dm_enabled=False, payment_notifications=False)

    matches = decide_delivery(
        NotificationChannel.USER_DM, NotificationCategory.PAYMENT, Criticality.NORMAL, flags, now=NOON
    )

    assert matches == Suppress(
        SuppressReason.DM_DISABLED, (DecisionStep.DM_DISABLED, DecisionStep.CATEGORY_OFF, DecisionStep.ADDRESS_HEALTHY)
    )


def test_emergencies_have_the_lowest_priority_number() -> None:
    assert [item.priority for item in (Criticality.EMERGENCY, Criticality.IMPORTANT, Criticality.NORMAL)] == [1, 3, 5]
