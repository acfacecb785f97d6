"""Requests: checked, decided and stored in one transaction, once per key."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from pabal.core.errors import Conflict, Invalid, PabalError
from pabal.db.doorbell.channels import Channel, Wakeup
from pabal.hub import DatabaseUrls, Hub
from pabal.notifications.decision.decide import KOREA_TIMEZONE, NotificationChannel
from pabal.notifications.requests import (
    NotificationDraft,
    RequestedNotification,
    request_notifications,
    try_request_notifications,
)
from support.notifications import (
    ATTACK,
    PAID,
    TESTER,
    draft_notification,
    list_all_notifications,
    load_notification,
    register_builtin_templates,
    request_drafts,
    sql,
)
from support.wait import wait_until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]


@pytest.fixture
async def hub(hub: Hub) -> Hub:
    return await register_builtin_templates(hub)


async def travel_to_korean_hour(hub: Hub, travel: Travel, hour: int) -> datetime:
    """Travel to the next half past this hour in Korea. Return the time."""
    now = datetime.now(KOREA_TIMEZONE)
    target = now.replace(hour=hour, minute=30)
    await travel(target + timedelta(days=target <= now) - now)
    async with hub.autocommit() as tx:
        rows = await request_notifications(tx, [draft_notification(hub, recipient="99999")], TESTER)
    return rows[0].created_at


async def test_a_request_is_pending_with_its_decision(hub: Hub) -> None:
    [requested] = await request_drafts(hub, draft_notification(hub, correlation_id="c1"))

    row = await load_notification(hub, requested.id)
    assert (row.state, row.reason, row.payload, row.requested_by) == ("pending", None, PAID, "tester")
    assert row.decision == ["dm_enabled", "category_on", "address_healthy"]
    assert row.scheduled_at == row.created_at == requested.scheduled_at
    assert row.correlation_id == "c1"


@pytest.mark.parametrize(
    ("key", "priority"), [("antinuke.triggered", 1), ("payment.succeeded", 5), ("marketing.news", 5)]
)
async def test_priority_comes_from_the_template(hub: Hub, key: str, priority: int) -> None:
    [requested] = await request_drafts(hub, draft_notification(hub, key))

    assert (await load_notification(hub, requested.id)).priority == priority


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"channel": NotificationChannel.GUILD_AUDIT_CHANNEL}, "recipient_type"),
        ({"recipient": ""}, "recipient_id"),
        ({"recipient": "../../users"}, "recipient_id"),
        ({"recipient": "1" * 65}, "recipient_id"),
        ({"locale": "korean"}, "locale"),
        ({"guild": UUID(int=7)}, "guild_id"),
        ({"scheduled_at": datetime(2030, 1, 1)}, "scheduled_at"),  # noqa: DTZ001 naive on purpose
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
async def test_invalid_fields_are_reported(hub: Hub, values: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as error:
        await request_drafts(hub, draft_notification(hub, **values))

    assert error.value.errors[0].field == field
    assert await list_all_notifications(hub) == []


async def test_all_invalid_variables_are_reported_together(hub: Hub) -> None:
    with pytest.raises(Invalid) as error:
        await request_drafts(hub, draft_notification(hub, payload={"amount": 1.5, "currency": "KRW"}))

    assert {field_error.field: field_error.why for field_error in error.value.errors} == {
        "payload.amount": "must be of type integer",
        "payload.item": "is required, of type text",
    }


async def test_unused_payload_keys_are_not_stored(hub: Hub) -> None:
    [requested] = await request_drafts(hub, draft_notification(hub, payload=PAID | {"card": "4111"}))

    assert (await load_notification(hub, requested.id)).payload == PAID


# Preferences


@pytest.mark.parametrize(
    ("flag", "template_and_channel", "reason"),
    [
        ("dm_enabled", ("payment.succeeded", "user_dm"), "dm_disabled"),
        ("payment_notifications", ("payment.succeeded", "user_dm"), "category_off"),
        ("marketing_notifications", ("marketing.news", "dashboard_toast"), "category_off"),
        ("dm_enabled", ("payment.succeeded", "dashboard_toast"), None),
        ("antinuke_notifications", ("antinuke.triggered", "user_dm"), None),
        ("antinuke_notifications", ("antinuke.triggered", "guild_audit_channel"), None),
    ],
)
async def test_preferences_suppress_a_request_with_a_reason(
    hub: Hub, database_urls: DatabaseUrls, flag: str, template_and_channel: tuple[str, str], reason: str | None
) -> None:
    await sql(database_urls, f"insert into notification.people (discord_id, {flag}) values ('100', false)")

    [requested] = await request_drafts(
        hub, draft_notification(hub, template_and_channel[0], channel=NotificationChannel(template_and_channel[1]))
    )

    row = await load_notification(hub, requested.id)
    assert requested.reason == row.reason == reason
    assert row.state == ("suppressed" if reason else "pending")
    assert (row.ended_at is not None) == (reason is not None)
    assert not reason or reason in row.decision


async def test_marketing_at_night_is_scheduled_for_the_morning(hub: Hub, travel: Travel) -> None:
    now = await travel_to_korean_hour(hub, travel, 23)

    [news, paid] = await request_drafts(hub, draft_notification(hub, "marketing.news"), draft_notification(hub))

    morning = news.scheduled_at.astimezone(KOREA_TIMEZONE)
    assert (morning.hour, morning.minute) == (8, 0)
    assert timedelta(hours=8) < news.scheduled_at - now <= timedelta(hours=8, minutes=30)
    assert (await load_notification(hub, news.id)).decision[-1] == "night_waits"
    assert paid.scheduled_at - now < timedelta(minutes=1)


async def test_marketing_scheduled_for_the_night_moves_to_the_morning(hub: Hub, travel: Travel) -> None:
    now = await travel_to_korean_hour(hub, travel, 12)

    [news, paid] = await request_drafts(
        hub,
        *(
            draft_notification(hub, key, scheduled_at=now + timedelta(hours=14))
            for key in ("marketing.news", "payment.succeeded")
        ),
    )

    assert news.scheduled_at.astimezone(KOREA_TIMEZONE).hour == 8
    assert paid.scheduled_at == now + timedelta(hours=14)


async def test_an_emergency_never_expires(hub: Hub) -> None:
    expires_at = datetime.now(UTC) + timedelta(minutes=5)

    [emergency, paid] = await request_drafts(
        hub,
        draft_notification(hub, "antinuke.triggered", expires_at=expires_at),
        draft_notification(hub, expires_at=expires_at),
    )

    assert (await load_notification(hub, emergency.id)).expires_at is None
    assert (await load_notification(hub, paid.id)).expires_at == expires_at


async def test_the_guild_is_stored(hub: Hub, database_urls: DatabaseUrls) -> None:
    guild = await sql(database_urls, "insert into guild.guilds default values returning id")

    [requested] = await request_drafts(hub, draft_notification(hub, guild=guild))

    assert (await load_notification(hub, requested.id)).guild_id == guild


# Keys


def draft_with_key(hub: Hub, key: str = "k", **overrides: Any) -> NotificationDraft:
    return draft_notification(hub, **({"source": "minu_find", "idempotency_key": key} | overrides))


async def test_the_same_key_returns_the_same_notification(hub: Hub) -> None:
    [first] = await request_drafts(hub, draft_with_key(hub))
    [repeated] = await request_drafts(
        hub, draft_with_key(hub, payload=dict(reversed(PAID.items())) | {"more": 1}, correlation_id="other")
    )

    assert (first.repeated, repeated.repeated) == (False, True)
    assert repeated.id == first.id
    assert len(await list_all_notifications(hub)) == 1


@pytest.mark.parametrize(
    "overrides",
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
async def test_the_same_key_with_other_content_is_a_conflict(hub: Hub, overrides: dict[str, Any]) -> None:
    [first] = await request_drafts(hub, draft_with_key(hub))

    with pytest.raises(Conflict, match=str(first.id)):
        await request_drafts(hub, draft_with_key(hub, **overrides))

    assert len(await list_all_notifications(hub)) == 1


async def test_a_service_has_its_own_keys(hub: Hub) -> None:
    requested = await request_drafts(
        hub,
        draft_with_key(hub, dedupe_key="d"),
        draft_with_key(hub, source="minu_build", dedupe_key="d"),
        draft_notification(hub, dedupe_key="d"),
    )

    assert len({notification.id for notification in requested}) == 3


async def test_a_dedupe_key_allows_one_notification(hub: Hub) -> None:
    first, second = await request_drafts(
        hub, draft_notification(hub, dedupe_key="d"), draft_notification(hub, recipient="101", dedupe_key="d")
    )
    [third] = await request_drafts(hub, draft_notification(hub, "antinuke.triggered", dedupe_key="d"))

    assert first.id == second.id == third.id
    assert [notification.repeated for notification in (first, second, third)] == [False, True, True]


async def test_each_draft_of_a_batch_fails_alone(hub: Hub) -> None:
    await request_drafts(hub, draft_with_key(hub, "used"))
    drafts = [
        draft_with_key(hub, "new"),
        draft_with_key(hub, "used", recipient="101"),
        draft_notification(hub, payload={}),
        draft_with_key(hub, "new"),
        draft_notification(hub, recipient="102"),
    ]

    async with hub.transaction() as tx:
        results = await try_request_notifications(tx, drafts, TESTER)

    assert [type(result).__name__ for result in results] == [
        "RequestedNotification",
        "Conflict",
        "Invalid",
        "RequestedNotification",
        "RequestedNotification",
    ]
    assert len(await list_all_notifications(hub)) == 3


async def test_request_notifications_requests_all_or_none(hub: Hub) -> None:
    with pytest.raises(Invalid):
        await request_drafts(hub, draft_notification(hub), draft_notification(hub, payload={}))

    assert await list_all_notifications(hub) == []


async def test_a_rolled_back_request_is_not_stored(hub: Hub) -> None:
    with pytest.raises(ZeroDivisionError):
        async with hub.transaction() as tx:
            await request_notifications(tx, [draft_with_key(hub)], TESTER)
            _ = 1 / 0
    assert await list_all_notifications(hub) == []

    [requested] = await request_drafts(hub, draft_with_key(hub))
    assert not requested.repeated


async def test_a_hundred_concurrent_requests_create_one_notification(hub: Hub) -> None:
    batches = await asyncio.gather(*(request_drafts(hub, draft_with_key(hub, dedupe_key="d")) for _ in range(100)))

    assert len({notification.id for [notification] in batches}) == 1
    assert sum(not notification.repeated for [notification] in batches) == 1
    assert len(await list_all_notifications(hub)) == 1


async def test_the_same_keys_in_another_order_do_not_deadlock(hub: Hub, database_urls: DatabaseUrls) -> None:
    low, middle, high = (draft_with_key(hub, key) for key in ("a", "b", "c"))

    async def request_when_waiting(waiting: int, *drafts: NotificationDraft) -> list[RequestedNotification]:
        await wait_until(lambda: is_waiting(database_urls, waiting))
        return await request_drafts(hub, *drafts)

    async with roll_back_after(hub, middle):
        requests = asyncio.gather(
            request_when_waiting(0, low, middle, high), request_when_waiting(1, high, middle, low)
        )
        await wait_until(
            lambda: is_waiting(database_urls, 2)
        )  # without a common lock order, each would hold its first key

    ascending, descending = await requests
    assert [notification.id for notification in ascending] == [notification.id for notification in reversed(descending)]


async def test_a_key_of_a_rolled_back_transaction_is_free(hub: Hub, database_urls: DatabaseUrls) -> None:
    async with roll_back_after(hub, draft_with_key(hub)):
        second = asyncio.create_task(request_drafts(hub, draft_with_key(hub)))
        await wait_until(lambda: is_waiting(database_urls, 1))

    [requested] = await second
    assert not requested.repeated


@asynccontextmanager
async def roll_back_after(hub: Hub, draft: NotificationDraft) -> AsyncGenerator[None]:
    """Request the notification for the duration of the block, then roll it back."""
    with pytest.raises(ZeroDivisionError):
        async with hub.transaction() as tx:
            await request_notifications(tx, [draft], TESTER)
            yield
            _ = 1 / 0


async def is_waiting(database_urls: DatabaseUrls, number: int) -> bool:
    """Whether exactly this many transactions wait for a lock."""
    query = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    return await sql(database_urls, query) == number


# Batches


async def test_ten_thousand_recipients_are_one_statement(hub: Hub, database_urls: DatabaseUrls) -> None:
    await sql(database_urls, "insert into notification.people (discord_id, payment_notifications) values ('7', false)")
    drafts = [draft_notification(hub, recipient=str(number), dedupe_key=str(number)) for number in range(10_000)]
    queries: list[str] = []

    def record_query(query: asyncpg.connection.LoggedQuery) -> None:  # type: ignore[name-defined]
        queries.append(query.query)

    async with hub.transaction() as tx:
        tx._connection.add_query_logger(record_query)
        await request_notifications(tx, drafts, TESTER)
        tx._connection.remove_query_logger(record_query)

    assert sum("insert into notification.requests" in query for query in queries) == 1
    assert len(queries) <= 5
    for state, number in (("pending", 9999), ("suppressed", 1)):
        assert await sql(database_urls, "select count(*) from notification.requests where state = $1", state) == number


async def test_workers_are_notified_of_pending_notifications(hub: Hub, database_urls: DatabaseUrls) -> None:
    await sql(database_urls, "insert into notification.people (discord_id, dm_enabled) values ('100', false)")
    async with hub.transaction() as tx:
        await request_notifications(tx, [draft_notification(hub)], TESTER)
        assert tx.wakeups == set()
        await request_notifications(tx, [draft_notification(hub, recipient="101")], TESTER)
        assert tx.wakeups == {Wakeup(Channel.NOTIFICATIONS)}


async def test_an_unregistered_template_violates_the_foreign_key(hub: Hub, database_urls: DatabaseUrls) -> None:
    await sql(database_urls, "delete from notification.templates where key = 'payment.succeeded'")

    with pytest.raises(PabalError):
        await request_drafts(hub, draft_notification(hub))
    assert await list_all_notifications(hub) == []


async def test_an_emergency_is_pending_with_all_preferences_off(hub: Hub, database_urls: DatabaseUrls) -> None:
    await sql(
        database_urls,
        "insert into notification.people (discord_id, dm_enabled, antinuke_notifications) values ('100', false, false)",
    )

    [requested] = await request_drafts(
        hub, draft_notification(hub, "antinuke.triggered", payload=ATTACK, incident=str(uuid4()))
    )

    assert (await load_notification(hub, requested.id)).decision[0] == "emergency"
    assert requested.state == "pending"
