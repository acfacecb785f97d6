"""Applying rules: notifications are requested in the transaction that settles the event, once."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from pabal.core.actor import HUB_ACTOR
from pabal.db.tx import Tx
from pabal.events.consume.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.events.consume.transactional import TransactionalHandler
from pabal.events.publish.publish import EventDraft, PublishResult, publish_events
from pabal.hub import DatabaseUrls, Hub
from pabal.hub_workers import build_rules_handler
from pabal.notifications.rules.apply_rules import apply_rules
from pabal.notifications.rules.evaluate_rules import MAX_NOTIFICATIONS_PER_RULE, RuleResult, collect_valid_drafts
from pabal.notifications.rules.payload_paths import PayloadPathError
from pabal.notifications.rules.rules import list_rules, update_rule
from pabal.notifications.templates.catalogue import TemplateCatalogue
from pabal.queue.outcome import Outcome
from pabal.queue.pacer import LoopPacer
from support.failed_events import replay_as_operator
from support.notifications import TESTER, draft_notification, list_all_notifications, register_builtin_templates, sql
from support.rules import (
    BUYER,
    MINUTE,
    add_test_rule,
    hub_delivery,
    publish_and_settle,
    rules_worker,
    run_rules_workers,
)
from support.subscriptions import load_event, publish_test_event, wait_for_status
from support.wait import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def hub(hub: Hub) -> Hub:
    return await register_builtin_templates(hub)


async def test_an_event_causes_a_notification(hub: Hub, database_urls: DatabaseUrls) -> None:
    rule = await add_test_rule(hub)

    published, delivery_id = await publish_and_settle(hub, database_urls)

    [notification] = await list_all_notifications(hub)
    assert (notification.recipient_type, notification.recipient_id, notification.template_key) == (
        "user_dm",
        "100",
        "payment.succeeded",
    )
    assert notification.payload == {"item": "Nitro", "amount": 12900, "currency": "KRW"}
    assert (notification.event_id, notification.rule_id, notification.source_service) == (
        published,
        rule.id,
        "minu_find",
    )
    assert (notification.requested_by, notification.correlation_id) == ("rule", str(published))
    assert (await load_event(hub, delivery_id)).status == "completed"
    assert (await load_event(hub, published)).status == "pending"  # its target has not consumed it


async def test_a_broadcast_causes_a_notification(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add_test_rule(hub)

    published, _ = await publish_and_settle(hub, database_urls, target=None)

    assert [notification.event_id for notification in await list_all_notifications(hub)] == [published]


@pytest.mark.parametrize(
    ("pattern", "event_type", "matches"),
    [
        ("order.paid", "order.paid", True),
        ("order.paid", "order.paid.late", False),
        ("order.*", "order.paid", True),
        ("order.*", "order.paid.late", True),
        ("order.*", "order", False),
        ("order.*", "orders.paid", False),
        ("*.paid", "order.paid", True),
        ("*.paid", "shop.order.paid", False),
        ("order.*.late", "order.paid.late", True),
        ("order.*.late", "order.late", False),
        ("*", "order.paid", True),
        ("a_b.*", "aXb.c", False),
    ],
)
async def test_a_pattern_matches_its_types(hub: Hub, pattern: str, event_type: str, matches: bool) -> None:
    assert (await add_test_rule(hub, event_pattern=pattern)).matches(event_type) is matches


async def test_an_event_without_a_matching_rule_is_completed(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add_test_rule(hub, event_pattern="*.paid")  # the SQL pre-filter with LIKE matches more than the rule
    published = await publish_test_event(hub, "shop.order.paid", payload=BUYER)

    async with run_rules_workers(hub):
        await wait_for_status(hub, await hub_delivery(database_urls, published), "completed")

    assert await list_all_notifications(hub) == []


# Exactly once


async def settle(hub: Hub, events: Sequence[ClaimedEvent]) -> set[UUID]:
    return await build_rules_handler(hub).handle_events(events)


async def claim(hub: Hub) -> list[ClaimedEvent]:
    async with hub.autocommit() as tx:
        return await LANE.claim(tx, 10, MINUTE, "w1", EventClaimFilter("hub"))


async def test_two_workers_on_one_event_request_one_notification(
    hub: Hub, database_urls: DatabaseUrls, travel: Any
) -> None:
    await add_test_rule(hub)
    await publish_test_event(hub, "order.paid", payload=BUYER)
    [first_claim] = await claim(hub)
    await travel(2 * MINUTE)
    [second_claim] = await claim(hub)

    assert second_claim.id == first_claim.id
    settled = await asyncio.gather(settle(hub, [first_claim]), settle(hub, [second_claim]))

    assert settled == [set(), {second_claim.id}]
    assert len(await list_all_notifications(hub)) == 1


async def test_many_workers_request_each_notification_once(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add_test_rule(hub)
    for number in range(60):
        await publish_test_event(hub, "order.paid", payload=BUYER | {"user": {"discord_id": str(number)}})

    async def all_completed() -> bool:
        return await sql(
            database_urls,
            "select count(*) = 60 from public.event_queue where target_service = 'hub' and status = 'completed'",
        )

    async with run_rules_workers(hub, *(rules_worker(hub) for _ in range(4))):
        await wait_until(all_completed)

    assert sorted(int(notification.recipient_id) for notification in await list_all_notifications(hub)) == [*range(60)]


async def test_notifications_and_settling_are_one_transaction(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add_test_rule(hub)
    await publish_test_event(hub, "order.paid", payload=BUYER)
    [claimed] = await claim(hub)

    async def apply_and_fail(tx: Tx, events: Sequence[ClaimedEvent]) -> Sequence[Outcome]:
        await apply_rules(tx, events, hub.templates)
        raise ZeroDivisionError

    await TransactionalHandler(hub.db, apply_and_fail).handle_events([claimed])
    assert await list_all_notifications(hub) == []
    failed = await load_event(hub, claimed.id)
    assert (failed.status, failed.error_code) == ("pending", "ZeroDivisionError")

    async with run_rules_workers(hub):
        await wait_for_status(hub, claimed.id, "completed")
    assert len(await list_all_notifications(hub)) == 1


async def test_a_cancelled_event_causes_no_notification(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add_test_rule(hub)
    await publish_test_event(hub, "order.paid", payload=BUYER)
    [claimed] = await claim(hub)
    await sql(database_urls, "update public.event_queue set status = 'cancelled' where id = $1", claimed.id)

    assert await settle(hub, [claimed]) == set()

    assert await list_all_notifications(hub) == []


async def test_a_stopping_worker_releases_its_events(hub: Hub) -> None:
    await add_test_rule(hub)
    await publish_test_event(hub, "order.paid", payload=BUYER)
    [claimed] = await claim(hub)

    async with hub.transaction() as tx:
        assert await LANE.release(tx, [claimed]) == {claimed.id}

    assert await list_all_notifications(hub) == []
    assert [event.id for event in await claim(hub)] == [claimed.id]


# Missing values


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({"item": "Nitro"}, "rule paid: user is missing"),
        (BUYER | {"user": {}}, "rule paid: user.discord_id is missing"),
        (BUYER | {"user": {"discord_id": None}}, "rule paid: user.discord_id is null"),
        (BUYER | {"user": {"discord_id": True}}, "rule paid: user.discord_id is not an id"),
        (BUYER | {"user": {"discord_id": "../x"}}, "rule paid: recipient_id: must be a Discord id"),
        (BUYER | {"user": "100"}, "rule paid: user.discord_id is missing"),
        ({"user": {"discord_id": "100"}}, "rule paid: item is missing"),
        (BUYER | {"amount": "much"}, "rule paid: payload.amount: must be of type integer"),
        (BUYER | {"item": ["a", "b"]}, "rule paid: item has 2 values instead of one"),
        (BUYER | {"user": {"discord_id": [["1"], ["2"]]}}, "rule paid: user.discord_id is a list of lists"),
    ],
)
async def test_an_event_without_a_rules_values_becomes_a_dead_letter(
    hub: Hub, database_urls: DatabaseUrls, payload: dict[str, Any], error: str
) -> None:
    await add_test_rule(hub)

    _, delivery_id = await publish_and_settle(hub, database_urls, payload)

    failed = await load_event(hub, delivery_id)
    assert (failed.status, failed.error_code) == ("failed", "rule_unmet")
    assert (failed.last_error or "").startswith(error)
    assert await list_all_notifications(hub) == []
    dead_letter_query = "select error_message from public.dead_letter_queue where original_event_id = $1"
    assert (await sql(database_urls, dead_letter_query, delivery_id)).startswith(error)


async def test_other_rules_of_a_dead_event_apply_and_a_replay_adds_the_rest(
    hub: Hub, database_urls: DatabaseUrls
) -> None:
    await add_test_rule(hub)
    broken_rule = await add_test_rule(hub, name="broken", recipients=["buyer"])
    _, delivery_id = await publish_and_settle(hub, database_urls)
    assert [notification.rule_id for notification in await list_all_notifications(hub)] != [broken_rule.id]
    assert len(await list_all_notifications(hub)) == 1

    async with hub.transaction() as tx:
        await update_rule(tx, hub.templates, broken_rule.id, {"recipients": ["user.discord_id"]}, TESTER)
    await replay_as_operator(
        hub,
        await sql(database_urls, "select id from public.dead_letter_queue where original_event_id = $1", delivery_id),
    )
    async with run_rules_workers(hub):
        await wait_for_status(hub, delivery_id, "completed")

    notifications = await list_all_notifications(hub)
    assert len(notifications) == 2
    assert broken_rule.id in {notification.rule_id for notification in notifications}


async def test_an_unknown_template_is_retried(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add_test_rule(hub)
    published = await publish_test_event(hub, "order.paid", payload=BUYER)
    [claimed] = await claim(hub)

    await build_rules_handler(replace(hub, templates=TemplateCatalogue({}))).handle_events([claimed])

    delivery = await load_event(hub, await hub_delivery(database_urls, published))
    assert (delivery.status, delivery.error_code) == ("pending", "template_unknown")


# Recipients


async def test_every_element_of_a_list_is_a_recipient_with_its_own_values(
    hub: Hub, database_urls: DatabaseUrls
) -> None:
    await add_test_rule(
        hub,
        recipients=["buyers.discord_id", "seller"],
        channels=["user_dm", "dashboard_toast"],
        variables={"item": "cart.0.name", "amount": "buyers.share"},
    )
    buyers = [{"discord_id": 1, "share": 100}, {"discord_id": "2", "share": 200}]

    _, delivery_id = await publish_and_settle(
        hub, database_urls, {"buyers": buyers, "seller": "3", "cart": [{"name": "Nitro"}], "currency": "KRW"}
    )

    assert (await load_event(hub, delivery_id)).last_error == "rule paid: buyers.share has 2 values instead of one"

    async with hub.transaction() as tx:
        [rule] = await list_rules(tx)
        await update_rule(tx, hub.templates, rule.id, {"recipients": ["buyers.discord_id"]}, TESTER)
    await publish_and_settle(hub, database_urls, {"buyers": buyers, "cart": [{"name": "Nitro"}], "currency": "KRW"})

    notifications = await list_all_notifications(hub)
    assert {
        (notification.recipient_id, notification.recipient_type, notification.payload["amount"])
        for notification in notifications
    } == {
        ("1", "user_dm", 100),
        ("1", "dashboard_toast", 100),
        ("2", "user_dm", 200),
        ("2", "dashboard_toast", 200),
    }
    assert {notification.payload["item"] for notification in notifications} == {"Nitro"}


async def test_a_repeated_recipient_gets_one_notification_and_an_empty_list_none(
    hub: Hub, database_urls: DatabaseUrls
) -> None:
    await add_test_rule(hub, recipients=["users"])

    await publish_and_settle(hub, database_urls, BUYER | {"users": ["1", "2", "1"]})
    _, delivery_id = await publish_and_settle(hub, database_urls, BUYER | {"users": []})

    assert sorted(notification.recipient_id for notification in await list_all_notifications(hub)) == ["1", "2"]
    assert (await load_event(hub, delivery_id)).status == "completed"


async def test_too_many_recipients_fail_the_event(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add_test_rule(hub, recipients=["users"])

    _, delivery_id = await publish_and_settle(hub, database_urls, BUYER | {"users": [*range(10_001)]})

    assert (await load_event(hub, delivery_id)).last_error == "rule paid: more than 10000 notifications for one event"
    assert await list_all_notifications(hub) == []


async def test_drafting_stops_one_beyond_the_limit(hub: Hub) -> None:
    counter, draft = count(), draft_notification(hub)

    with pytest.raises(PayloadPathError):
        await collect_valid_drafts((draft for _ in counter), RuleResult("minu_find"), LoopPacer())

    assert next(counter) == MAX_NOTIFICATIONS_PER_RULE + 1


async def test_guild_incident_and_expiry_come_from_the_event(hub: Hub, database_urls: DatabaseUrls) -> None:
    guild = await sql(database_urls, "insert into guild.guilds default values returning id")
    await add_test_rule(hub, guild_path="guild", incident_path="attack", expires_after=timedelta(hours=1))

    for guild_value in (str(guild), "00000000-0000-0000-0000-000000000007", "not a uuid"):
        await publish_and_settle(hub, database_urls, BUYER | {"guild": guild_value, "attack": 9})

    notifications = sorted(await list_all_notifications(hub), key=lambda notification: notification.created_at)
    assert [notification.guild_id for notification in notifications] == [guild, None, None]
    assert {notification.incident for notification in notifications} == {"9"}
    assert all(
        notification.expires_at and MINUTE * 59 < notification.expires_at - notification.created_at <= MINUTE * 60
        for notification in notifications
    )


# Loops


async def publish_as_hub(hub: Hub, event_type: str) -> UUID:
    async with hub.transaction() as tx:
        [published] = await publish_events(
            tx, [EventDraft(HUB_ACTOR.name, event_type, b'{"user": {"discord_id": "1"}}', "minu_build")]
        )
    assert isinstance(published, PublishResult)
    return published.id


async def test_events_about_notifications_cause_no_notifications(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add_test_rule(hub, event_pattern="*")
    about_notifications = await hub_delivery(database_urls, await publish_as_hub(hub, "notification.failed"))
    about_tokens = await hub_delivery(database_urls, await publish_as_hub(hub, "token.reused"))

    async with run_rules_workers(hub):
        await wait_for_status(hub, about_notifications, "completed")
        await wait_for_status(hub, about_tokens, "failed")  # the rule applies, but the event has no item

    assert await list_all_notifications(hub) == []
