"""Asking for notices: checked, planned and recorded in one transaction, and never twice under one key."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from pabal.core.errors import Conflict, Invalid, PabalError
from pabal.db.channels import Channel, Wakeup
from pabal.hub import DatabaseUrls, Hub
from pabal.notifications.decision.decide import KOREA_TIMEZONE, NotificationChannel
from pabal.notifications.requests import (
    NotificationDraft,
    RequestedNotification,
    request_notifications,
    try_request_notifications,
)
from support.notifications import NUKED, PAID, TESTER, asked, every, notice, registered, seen, sql
from support.wait import until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]


@pytest.fixture
async def hub(hub: Hub) -> Hub:
    return await registered(hub)


async def at_hour(hub: Hub, travel: Travel, hour: int) -> datetime:
    """Move to that hour in Korea, at least a little later than now; when that is."""
    now = datetime.now(KOREA_TIMEZONE)
    there = now.replace(hour=hour, minute=30)
    await travel(there + timedelta(days=there <= now) - now)
    async with hub.autocommit() as tx:
        rows = await request_notifications(tx, [notice(hub, recipient="clock")], TESTER)
    return rows[0].created_at


async def test_a_notice_waits_with_its_decision(hub: Hub) -> None:
    [made] = await asked(hub, notice(hub, correlation_id="c1"))

    row = await seen(hub, made.id)
    assert (row.state, row.reason, row.payload, row.requested_by) == ("pending", None, PAID, "tester")
    assert row.decision == ["dm_enabled", "category_on", "address_healthy"]
    assert row.scheduled_at == row.created_at == made.scheduled_at
    assert row.correlation_id == "c1"


@pytest.mark.parametrize(
    ("key", "priority"), [("antinuke.triggered", 1), ("payment.succeeded", 5), ("marketing.news", 5)]
)
async def test_its_template_says_how_urgent_it_is(hub: Hub, key: str, priority: int) -> None:
    [made] = await asked(hub, notice(hub, key))

    assert (await seen(hub, made.id)).priority == priority


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"channel": NotificationChannel.GUILD_AUDIT_CHANNEL}, "recipient_type"),
        ({"recipient": ""}, "recipient_id"),
        ({"recipient": "../../users"}, "recipient_id"),
        ({"recipient": "1" * 65}, "recipient_id"),
        ({"locale": "korean"}, "locale"),
        ({"guild": UUID(int=7)}, "guild_id"),
        ({"scheduled_at": datetime(2030, 1, 1)}, "scheduled_at"),  # noqa: DTZ001 the mistake itself
        ({"expires_at": datetime.min.replace(tzinfo=KOREA_TIMEZONE)}, "expires_at"),
        ({"idempotency_key": "", "source": "minu_find"}, "idempotency_key"),
        ({"idempotency_key": "k"}, "idempotency_key"),
        ({"dedupe_key": "x" * 256}, "dedupe_key"),
        ({"incident": ""}, "incident"),
        ({"correlation_id": ""}, "correlation_id"),
        ({"payload": {}}, "payload.amount"),
        ({"payload": PAID | {"amount": "12900"}}, "payload.amount"),
        ({"payload": PAID | {"item": None}}, "payload.item"),
        ({"payload": PAID | {"item": "x" * 70_000}}, "payload"),
    ],
)
async def test_what_is_wrong_is_named(hub: Hub, said: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        await asked(hub, notice(hub, **said))

    assert refused.value.errors[0].field == field
    assert await every(hub) == []


async def test_every_variable_that_is_wrong_is_named_at_once(hub: Hub) -> None:
    with pytest.raises(Invalid) as refused:
        await asked(hub, notice(hub, payload={"amount": 1.5, "currency": "KRW"}))

    assert {each.field: each.why for each in refused.value.errors} == {
        "payload.amount": "must be of type integer",
        "payload.item": "is required, of type text",
    }


async def test_what_a_payload_brings_besides_is_not_kept(hub: Hub) -> None:
    [made] = await asked(hub, notice(hub, payload=PAID | {"card": "4111"}))

    assert (await seen(hub, made.id)).payload == PAID


# What people want


@pytest.mark.parametrize(
    ("off", "what", "reason"),
    [
        ("dm_enabled", ("payment.succeeded", "user_dm"), "dm_disabled"),
        ("payment_notifications", ("payment.succeeded", "user_dm"), "category_off"),
        ("marketing_notifications", ("marketing.news", "dashboard_toast"), "category_off"),
        ("dm_enabled", ("payment.succeeded", "dashboard_toast"), None),
        ("antinuke_notifications", ("antinuke.triggered", "user_dm"), None),
        ("antinuke_notifications", ("antinuke.triggered", "guild_audit_channel"), None),
    ],
)
async def test_what_nobody_wants_is_suppressed_at_once_and_says_why(
    hub: Hub, database_urls: DatabaseUrls, off: str, what: tuple[str, str], reason: str | None
) -> None:
    await sql(database_urls, f"insert into notification.people (discord_id, {off}) values ('100', false)")

    [made] = await asked(hub, notice(hub, what[0], channel=NotificationChannel(what[1])))

    row = await seen(hub, made.id)
    assert made.reason == row.reason == reason
    assert row.state == ("suppressed" if reason else "pending")
    assert (row.ended_at is not None) == (reason is not None)
    assert not reason or reason in row.decision


async def test_marketing_at_night_waits_for_the_morning(hub: Hub, travel: Travel) -> None:
    now = await at_hour(hub, travel, 23)

    [news, paid] = await asked(hub, notice(hub, "marketing.news"), notice(hub))

    morning = news.scheduled_at.astimezone(KOREA_TIMEZONE)
    assert (morning.hour, morning.minute) == (8, 0)
    assert timedelta(hours=8) < news.scheduled_at - now <= timedelta(hours=8, minutes=30)
    assert (await seen(hub, news.id)).decision[-1] == "night_waits"
    assert paid.scheduled_at - now < timedelta(minutes=1)


async def test_marketing_that_is_planned_for_the_night_is_planned_for_the_morning(hub: Hub, travel: Travel) -> None:
    now = await at_hour(hub, travel, 12)

    [news, paid] = await asked(
        hub,
        *(notice(hub, key, scheduled_at=now + timedelta(hours=14)) for key in ("marketing.news", "payment.succeeded")),
    )

    assert news.scheduled_at.astimezone(KOREA_TIMEZONE).hour == 8
    assert paid.scheduled_at == now + timedelta(hours=14)


async def test_a_late_emergency_is_still_sent(hub: Hub) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=5)

    [nuked, paid] = await asked(hub, notice(hub, "antinuke.triggered", expires_at=soon), notice(hub, expires_at=soon))

    assert (await seen(hub, nuked.id)).expires_at is None
    assert (await seen(hub, paid.id)).expires_at == soon


async def test_a_guild_is_kept_with_it(hub: Hub, database_urls: DatabaseUrls) -> None:
    guild = await sql(database_urls, "insert into guild.guilds default values returning id")

    [made] = await asked(hub, notice(hub, guild=guild))

    assert (await seen(hub, made.id)).guild_id == guild


# Keys


def keyed(hub: Hub, key: str = "k", **how: Any) -> NotificationDraft:
    return notice(hub, **({"source": "minu_find", "idempotency_key": key} | how))


async def test_the_same_key_is_the_same_notice(hub: Hub) -> None:
    [first] = await asked(hub, keyed(hub))
    [again] = await asked(hub, keyed(hub, payload=dict(reversed(PAID.items())) | {"more": 1}, correlation_id="other"))

    assert (first.repeated, again.repeated) == (False, True)
    assert again.id == first.id
    assert len(await every(hub)) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"recipient": "101"},
        {"channel": NotificationChannel.DASHBOARD_TOAST},
        {"payload": PAID | {"amount": 1}},
        {"locale": "en"},
        {"scheduled_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"expires_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"incident": "i"},
        {"dedupe_key": "d"},
    ],
)
async def test_the_same_key_with_other_content_is_refused(hub: Hub, other: dict[str, Any]) -> None:
    [first] = await asked(hub, keyed(hub))

    with pytest.raises(Conflict, match=str(first.id)):
        await asked(hub, keyed(hub, **other))

    assert len(await every(hub)) == 1


async def test_a_service_has_its_own_keys(hub: Hub) -> None:
    made = await asked(
        hub,
        keyed(hub, dedupe_key="d"),
        keyed(hub, source="minu_build", dedupe_key="d"),
        notice(hub, dedupe_key="d"),
    )

    assert len({each.id for each in made}) == 3


async def test_there_is_one_notice_of_a_dedupe_key_whatever_it_says(hub: Hub) -> None:
    first, second = await asked(hub, notice(hub, dedupe_key="d"), notice(hub, recipient="101", dedupe_key="d"))
    [third] = await asked(hub, notice(hub, "antinuke.triggered", dedupe_key="d"))

    assert first.id == second.id == third.id
    assert [each.repeated for each in (first, second, third)] == [False, True, True]


async def test_of_many_each_fails_alone(hub: Hub) -> None:
    await asked(hub, keyed(hub, "used"))
    drafts = [
        keyed(hub, "new"),
        keyed(hub, "used", recipient="101"),
        notice(hub, payload={}),
        keyed(hub, "new"),
        notice(hub, recipient="102"),
    ]

    async with hub.transaction() as tx:
        results = await try_request_notifications(tx, drafts, TESTER)

    assert [type(each).__name__ for each in results] == [
        "RequestedNotification",
        "Conflict",
        "Invalid",
        "RequestedNotification",
        "RequestedNotification",
    ]
    assert len(await every(hub)) == 3


async def test_all_or_none(hub: Hub) -> None:
    with pytest.raises(Invalid):
        await asked(hub, notice(hub), notice(hub, payload={}))

    assert await every(hub) == []


async def test_what_is_rolled_back_was_not_asked_for(hub: Hub) -> None:
    with pytest.raises(ZeroDivisionError):
        async with hub.transaction() as tx:
            await request_notifications(tx, [keyed(hub)], TESTER)
            _ = 1 / 0
    assert await every(hub) == []

    [made] = await asked(hub, keyed(hub))
    assert not made.repeated


async def test_a_hundred_that_ask_at_once_get_one_notice(hub: Hub) -> None:
    made = await asyncio.gather(*(asked(hub, keyed(hub, dedupe_key="d")) for _ in range(100)))

    assert len({each.id for [each] in made}) == 1
    assert sum(not each.repeated for [each] in made) == 1
    assert len(await every(hub)) == 1


async def test_those_who_bring_the_same_keys_in_another_order_do_not_block_each_other(
    hub: Hub, database_urls: DatabaseUrls
) -> None:
    low, middle, high = (keyed(hub, key) for key in ("a", "b", "c"))

    async def after(there: int, *drafts: NotificationDraft) -> list[RequestedNotification]:
        await until(lambda: waits(database_urls, there))
        return await asked(hub, *drafts)

    async with given_up(hub, middle):
        both = asyncio.gather(after(0, low, middle, high), after(1, high, middle, low))
        await until(lambda: waits(database_urls, 2))  # each with its first key, did they not come in one order

    upward, downward = await both
    assert [each.id for each in upward] == [each.id for each in reversed(downward)]


async def test_who_waits_for_a_key_that_is_given_up_has_it(hub: Hub, database_urls: DatabaseUrls) -> None:
    async with given_up(hub, keyed(hub)):
        second = asyncio.create_task(asked(hub, keyed(hub)))
        await until(lambda: waits(database_urls, 1))

    [made] = await second
    assert not made.repeated


@asynccontextmanager
async def given_up(hub: Hub, draft: NotificationDraft) -> AsyncGenerator[None]:
    """A notice that is asked for as long as the block lasts, and then not asked for after all."""
    with pytest.raises(ZeroDivisionError):
        async with hub.transaction() as tx:
            await request_notifications(tx, [draft], TESTER)
            yield
            _ = 1 / 0


async def waits(database_urls: DatabaseUrls, number: int) -> bool:
    """Whether so many wait for somebody else's key."""
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    return await sql(database_urls, waiting) == number


# Many


async def test_ten_thousand_recipients_are_one_statement(hub: Hub, database_urls: DatabaseUrls) -> None:
    await sql(database_urls, "insert into notification.people (discord_id, payment_notifications) values ('7', false)")
    drafts = [notice(hub, recipient=str(number), dedupe_key=str(number)) for number in range(10_000)]
    ran: list[str] = []

    def note(query: asyncpg.connection.LoggedQuery) -> None:  # type: ignore[name-defined]
        ran.append(query.query)

    async with hub.transaction() as tx:
        tx._connection.add_query_logger(note)
        await request_notifications(tx, drafts, TESTER)
        tx._connection.remove_query_logger(note)

    assert sum("insert into notification.requests" in query for query in ran) == 1
    assert len(ran) <= 5
    for state, number in (("pending", 9999), ("suppressed", 1)):
        assert await sql(database_urls, "select count(*) from notification.requests where state = $1", state) == number


async def test_somebody_is_woken_when_there_is_something_to_send(hub: Hub, database_urls: DatabaseUrls) -> None:
    await sql(database_urls, "insert into notification.people (discord_id, dm_enabled) values ('100', false)")
    async with hub.transaction() as tx:
        await request_notifications(tx, [notice(hub)], TESTER)
        assert tx.wakeups == set()
        await request_notifications(tx, [notice(hub, recipient="101")], TESTER)
        assert tx.wakeups == {Wakeup(Channel.NOTIFICATIONS)}


async def test_a_template_the_database_does_not_know_is_refused_by_it(hub: Hub, database_urls: DatabaseUrls) -> None:
    await sql(database_urls, "delete from notification.templates where key = 'payment.succeeded'")

    with pytest.raises(PabalError):
        await asked(hub, notice(hub))
    assert await every(hub) == []


async def test_an_emergency_is_recorded_though_everything_is_off(hub: Hub, database_urls: DatabaseUrls) -> None:
    await sql(
        database_urls,
        "insert into notification.people (discord_id, dm_enabled, antinuke_notifications) values ('100', false, false)",
    )

    [made] = await asked(hub, notice(hub, "antinuke.triggered", payload=NUKED, incident=str(uuid4())))

    assert (await seen(hub, made.id)).decision[0] == "emergency"
    assert made.state == "pending"
