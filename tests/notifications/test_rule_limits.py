"""Notifications that rules make count against the rate limit of the publisher: the rest waits, nothing is lost."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import httpx2
import msgspec
import pytest

from pabal.core.errors import RateLimited
from pabal.db.tx import Tx
from pabal.events.consume.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.events.consume.transactional import TransactionalHandler
from pabal.events.publish.publish import EventDraft, publish_events
from pabal.hub import DatabaseUrls, Hub
from pabal.hub_workers import build_rules_handler
from pabal.limits import RateLimit, consume_rate_limit, read_rate_limits, refund_rate_limits, reserve_rate_limits
from pabal.notifications.decision.texts import STEP_TEXTS
from pabal.notifications.lane import LANE as NOTIFICATION_LANE
from pabal.notifications.notifications import Notification
from pabal.notifications.requests import notification_rate_limit
from pabal.notifications.rules.apply_rules import apply_rules
from pabal.queue.outcome import Outcome
from pabal.trace.explain_notification import explain_notification
from support.lane_under_test import Travel
from support.notification_api import register_service
from support.notifications import ALL_SERVICES, list_all_notifications, register_builtin_templates, sql
from support.rules import BUYER, MINUTE, add_test_rule
from support.server import serve_hub
from support.subscriptions import publish_test_event

pytestmark = pytest.mark.anyio

LIMIT = 6
STEP = MINUTE / LIMIT
ATTACK: dict[str, Any] = {"guild": "Minu", "actor": "x", "action": "ban", "count": 3}


@pytest.fixture
async def hub(hub: Hub) -> Hub:
    settings = hub.settings.model_copy(update={"notifications_per_service": LIMIT})
    return await register_builtin_templates(replace(hub, settings=settings))


async def apply_to(hub: Hub, users: Sequence[object], source: str = "minu_find", **payload: Any) -> None:
    """Publish an event for these users and apply the rules."""
    body = msgspec.json.encode(BUYER | {"users": [*users]} | payload)
    async with hub.transaction() as tx:
        await publish_events(tx, [EventDraft(source, "order.paid", body, "minu_build")])
    async with hub.autocommit() as tx:
        events = await LANE.claim(tx, 100, MINUTE, "w1", EventClaimFilter("hub"))
    await build_rules_handler(hub).handle_events(events)


async def waits_by_recipient(hub: Hub) -> dict[str, timedelta]:
    notifications: list[Notification] = await list_all_notifications(hub)
    return {
        notification.recipient_id: notification.scheduled_at - notification.created_at for notification in notifications
    }


async def test_notifications_beyond_the_publishers_limit_wait_in_order(hub: Hub) -> None:
    await add_test_rule(hub, recipients=["users"])

    await apply_to(hub, range(LIMIT + 3))

    waits = await waits_by_recipient(hub)
    assert len(waits) == LIMIT + 3
    assert [waits[str(number)] for number in range(LIMIT)] == [timedelta()] * LIMIT
    assert [waits[str(LIMIT + number)] for number in range(3)] == [STEP, 2 * STEP, 3 * STEP]


async def test_the_dispatcher_gets_them_when_their_time_has_come(hub: Hub, travel: Travel) -> None:
    await add_test_rule(hub, recipients=["users"])
    await apply_to(hub, range(LIMIT + 3))

    async def claim() -> list[str]:
        async with hub.transaction() as tx:
            claimed = await NOTIFICATION_LANE.claim(tx, 100, MINUTE * 10, "w1")
        return sorted(notification.recipient_id for notification in claimed)

    assert await claim() == [str(number) for number in range(LIMIT)]
    for number in range(LIMIT, LIMIT + 3):
        await travel(STEP)
        assert await claim() == [str(number)]


async def test_a_second_event_waits_behind_the_first_and_another_publisher_does_not(hub: Hub) -> None:
    await add_test_rule(hub, recipients=["users"])

    await apply_to(hub, range(LIMIT))
    await apply_to(hub, ["9000"])
    await apply_to(hub, ["9001"], source="minu_keep")

    waits = await waits_by_recipient(hub)
    assert waits["9000"] > STEP / 2
    assert waits["9001"] == timedelta()


async def test_an_emergency_never_waits_and_counts_for_nothing(hub: Hub) -> None:
    await add_test_rule(hub, recipients=["users"])
    await add_test_rule(hub, name="attack", recipients=["admins"], template_key="antinuke.triggered")

    await apply_to(hub, range(3 * LIMIT), admins=[f"700{number}" for number in range(3 * LIMIT)], **ATTACK)

    waits = await waits_by_recipient(hub)
    assert {waits[f"700{number}"] for number in range(3 * LIMIT)} == {timedelta()}
    assert waits[str(3 * LIMIT - 1)] == 2 * LIMIT * STEP


async def test_direct_requests_share_the_limit_and_direct_emergencies_have_their_own(hub: Hub) -> None:
    await add_test_rule(hub, recipients=["users"])
    async with serve_hub(hub) as address, httpx2.AsyncClient(base_url=address) as web:
        shop = await register_service(hub, web, "shop", "write")
        await apply_to(hub, range(10 * LIMIT), source="shop")
        request = {"recipient_type": "user_dm", "recipient_id": "7", "template_key": "payment.succeeded"}
        refused = await web.post("/v1/notifications", headers=shop.header, json=request | {"payload": BUYER})
        emergency = request | {"template_key": "antinuke.triggered", "payload": ATTACK}
        accepted = await web.post("/v1/notifications", headers=shop.header, json=emergency)
        many = [await web.post("/v1/notifications", headers=shop.header, json=[emergency] * LIMIT) for _ in range(2)]

    assert (refused.status_code, accepted.status_code) == (429, 202)
    assert int(refused.headers["retry-after"]) > (9 * MINUTE - STEP).total_seconds()
    assert 429 in {response.status_code for response in many}


async def test_a_rolled_back_transaction_uses_nothing_of_the_limit(hub: Hub) -> None:
    await add_test_rule(hub, recipients=["users"])
    await publish_test_event(hub, "order.paid", payload=BUYER | {"users": [*range(LIMIT)]})
    async with hub.autocommit() as tx:
        events = await LANE.claim(tx, 100, MINUTE, "w1", EventClaimFilter("hub"))
    limit = notification_rate_limit(LIMIT)

    async def apply_and_fail(tx: Tx, batch: Sequence[ClaimedEvent]) -> Sequence[Outcome]:
        await apply_rules(tx, batch, hub.templates, limit)
        raise ZeroDivisionError

    await TransactionalHandler(hub.db, apply_and_fail).handle_events(events)

    assert limit is not None
    async with hub.autocommit() as tx:
        [state] = await read_rate_limits(tx, (limit, "minu_find"))
    assert not state.is_used


async def test_a_replay_uses_nothing_of_the_limit(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add_test_rule(hub, recipients=["users"])
    await apply_to(hub, range(LIMIT - 2))
    replay = "update public.event_queue set status = 'pending', processed_at = null where target_service = 'hub'"
    await sql(database_urls, replay)
    async with hub.autocommit() as tx:
        events = await LANE.claim(tx, 100, MINUTE, "w1", EventClaimFilter("hub"))
    assert len(events) == 1
    await build_rules_handler(hub).handle_events(events)

    await apply_to(hub, ["9002"])
    assert len(await waits_by_recipient(hub)) == LIMIT - 1
    assert (await waits_by_recipient(hub))["9002"] == timedelta()


@pytest.mark.parametrize("language", ["ko", "en"])
async def test_the_explanation_names_the_rate_limit(hub: Hub, language: Any) -> None:
    await add_test_rule(hub, recipients=["users"])
    await apply_to(hub, range(LIMIT + 1))
    [late] = [row for row in await list_all_notifications(hub) if row.recipient_id == str(LIMIT)]

    async with hub.autocommit() as tx:
        explanation = await explain_notification(tx, late.id, ALL_SERVICES, language, datetime.isoformat)

    assert late.decision[-1] == "rate_limit_waits"
    expected = STEP_TEXTS["rate_limit_waits"][0 if language == "ko" else 1]
    assert expected in [line.says for line in explanation.lines]


async def test_without_a_limit_nothing_waits(hub: Hub) -> None:
    free = replace(hub, settings=hub.settings.model_copy(update={"notifications_per_service": 0}))
    await add_test_rule(free, recipients=["users"])

    await apply_to(free, range(3 * LIMIT))

    assert {*(await waits_by_recipient(free)).values()} == {timedelta()}


async def test_reserved_slots_continue_where_consumed_ones_end(hub: Hub) -> None:
    limit = RateLimit("test", LIMIT, MINUTE)
    async with hub.transaction() as tx:
        await consume_rate_limit(tx, limit, "a", 4)
        reserved = await reserve_rate_limits(tx, limit, {"b": 1, "a": 4})
        assert [reserved["a"].wait_for_slot(number) for number in range(4)] == [
            timedelta(),
            timedelta(),
            STEP,
            2 * STEP,
        ]
        assert reserved["b"].wait_for_slot(0) == timedelta()
        with pytest.raises(RateLimited):
            await consume_rate_limit(tx, limit, "a")
        await refund_rate_limits(tx, limit, {"a": 4})
        await consume_rate_limit(tx, limit, "a", 2)
