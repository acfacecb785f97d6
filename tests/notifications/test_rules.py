"""Rules: an event makes its notices in the transaction that settles it, once, or says what it lacks."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from pabal.core.actor import HUB_ACTOR
from pabal.db.tx import Tx
from pabal.events.lane import LANE, ClaimedEvent
from pabal.events.publish import EventDraft, PublishResult, publish_events
from pabal.events.transactional import TransactionalLane
from pabal.hub import DatabaseUrls, Hub, build_rules_lane
from pabal.notifications.rules.apply_rules import MAX_NOTIFICATIONS_PER_RULE, apply_rules, collect_valid_drafts
from pabal.notifications.rules.payload_paths import PayloadPathError
from pabal.notifications.rules.rules import list_rules, update_rule
from pabal.notifications.templates.catalogue import TemplateCatalogue
from pabal.queue.lane import Settlement
from pabal.queue.outcome import DONE, Outcome
from support.failed_events import replayed
from support.notifications import TESTER, every, notice, registered, sql
from support.rules import BUYER, MINUTE, add, delivery, publish_and_settle, rules_worker, ruling
from support.subscriptions import ends, event, say
from support.wait import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def hub(hub: Hub) -> Hub:
    return await registered(hub)


async def test_an_event_makes_a_notice(hub: Hub, database_urls: DatabaseUrls) -> None:
    rule = await add(hub)

    published, owed = await publish_and_settle(hub, database_urls)

    [made] = await every(hub)
    assert (made.recipient_type, made.recipient_id, made.template_key) == ("user_dm", "100", "payment.succeeded")
    assert made.payload == {"item": "Nitro", "amount": 12900, "currency": "KRW"}
    assert (made.event_id, made.rule_id, made.source_service) == (published, rule.id, "minu_find")
    assert (made.requested_by, made.correlation_id) == ("rule", str(published))
    assert (await event(hub, owed)).status == "completed"
    assert (await event(hub, published)).status == "pending"  # its target has it still to come


async def test_a_broadcast_makes_a_notice_as_well(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add(hub)

    published, _ = await publish_and_settle(hub, database_urls, target=None)

    assert [made.event_id for made in await every(hub)] == [published]


@pytest.mark.parametrize(
    ("pattern", "event_type", "wanted"),
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
async def test_a_pattern_is_for_its_types(hub: Hub, pattern: str, event_type: str, wanted: bool) -> None:
    assert (await add(hub, event_pattern=pattern)).matches(event_type) is wanted


async def test_what_matches_no_rule_after_all_is_done_with(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add(hub, event_pattern="*.paid")  # LIKE takes more than the rule means
    published = await say(hub, "shop.order.paid", payload=BUYER)

    async with ruling(hub):
        await ends(hub, await delivery(database_urls, published), "completed")

    assert await every(hub) == []


# Once


async def settle(hub: Hub, events: Sequence[ClaimedEvent]) -> set[UUID]:
    async with hub.autocommit() as tx:
        return await build_rules_lane(hub.templates).settle(tx, [Settlement(each, DONE) for each in events])


async def claim(hub: Hub) -> list[ClaimedEvent]:
    async with hub.autocommit() as tx:
        return await LANE.claim(tx, 10, MINUTE, "w1", service="hub")


async def test_two_workers_on_one_event_make_one_notice(hub: Hub, database_urls: DatabaseUrls, travel: Any) -> None:
    await add(hub)
    await say(hub, "order.paid", payload=BUYER)
    [slow] = await claim(hub)
    await travel(2 * MINUTE)
    [quick] = await claim(hub)

    assert quick.id == slow.id
    settled = await asyncio.gather(settle(hub, [slow]), settle(hub, [quick]))

    assert settled == [set(), {quick.id}]
    assert len(await every(hub)) == 1


async def test_many_workers_make_each_notice_once(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add(hub)
    for number in range(60):
        await say(hub, "order.paid", payload=BUYER | {"user": {"discord_id": str(number)}})

    async def all_done() -> bool:
        return await sql(
            database_urls,
            "select count(*) = 60 from public.event_queue where target_service = 'hub' and status = 'completed'",
        )

    async with ruling(hub, *(rules_worker(hub) for _ in range(4))):
        await until(all_done)

    assert sorted(int(made.recipient_id) for made in await every(hub)) == [*range(60)]


async def test_notice_and_settling_happen_together_or_not_at_all(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add(hub)
    await say(hub, "order.paid", payload=BUYER)
    [held] = await claim(hub)

    async def asks_and_breaks(tx: Tx, events: Sequence[ClaimedEvent]) -> Sequence[Outcome]:
        await apply_rules(tx, events, hub.templates)
        raise ZeroDivisionError

    async with hub.autocommit() as tx:
        await TransactionalLane(asks_and_breaks).settle(tx, [Settlement(held, DONE)])
    assert await every(hub) == []
    failed = await event(hub, held.id)
    assert (failed.status, failed.error_code) == ("pending", "ZeroDivisionError")

    async with ruling(hub):
        await ends(hub, held.id, "completed")
    assert len(await every(hub)) == 1


async def test_an_event_that_was_called_off_makes_nothing(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add(hub)
    await say(hub, "order.paid", payload=BUYER)
    [held] = await claim(hub)
    await sql(database_urls, "update public.event_queue set status = 'cancelled' where id = $1", held.id)

    assert await settle(hub, [held]) == set()

    assert await every(hub) == []


async def test_a_worker_that_stops_gives_back_what_it_did_not_do(hub: Hub) -> None:
    await add(hub)
    await say(hub, "order.paid", payload=BUYER)
    [held] = await claim(hub)

    async with hub.transaction() as tx:
        assert await build_rules_lane(hub.templates).release(tx, [held]) == {held.id}

    assert await every(hub) == []
    assert [each.id for each in await claim(hub)] == [held.id]


# What an event lacks


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"item": "Nitro"}, "rule paid: user is missing"),
        (BUYER | {"user": {}}, "rule paid: user.discord_id is missing"),
        (BUYER | {"user": {"discord_id": None}}, "rule paid: user.discord_id is null"),
        (BUYER | {"user": {"discord_id": True}}, "rule paid: user.discord_id is not an id"),
        (BUYER | {"user": {"discord_id": "../x"}}, "rule paid: recipient_id: must have 1 to 64"),
        (BUYER | {"user": "100"}, "rule paid: user.discord_id is missing"),
        ({"user": {"discord_id": "100"}}, "rule paid: item is missing"),
        (BUYER | {"amount": "much"}, "rule paid: payload.amount: must be of type integer"),
        (BUYER | {"item": ["a", "b"]}, "rule paid: item has 2 values instead of one"),
        (BUYER | {"user": {"discord_id": [["1"], ["2"]]}}, "rule paid: user.discord_id is a list of lists"),
    ],
)
async def test_an_event_that_lacks_what_a_rule_needs_dies_and_says_what(
    hub: Hub, database_urls: DatabaseUrls, payload: dict[str, Any], why: str
) -> None:
    await add(hub)

    _, owed = await publish_and_settle(hub, database_urls, payload)

    dead = await event(hub, owed)
    assert (dead.status, dead.error_code) == ("failed", "rule_unmet")
    assert (dead.last_error or "").startswith(why)
    assert await every(hub) == []
    letter = "select error_message from public.dead_letter_queue where original_event_id = $1"
    assert (await sql(database_urls, letter, owed)).startswith(why)


async def test_what_other_rules_made_of_a_dead_event_is_made_and_a_replay_makes_the_rest(
    hub: Hub, database_urls: DatabaseUrls
) -> None:
    await add(hub)
    broken = await add(hub, name="broken", recipients=["buyer"])
    _, owed = await publish_and_settle(hub, database_urls)
    assert [made.rule_id for made in await every(hub)] != [broken.id]
    assert len(await every(hub)) == 1

    async with hub.transaction() as tx:
        await update_rule(tx, hub.templates, broken.id, {"recipients": ["user.discord_id"]}, TESTER)
    await replayed(
        hub, await sql(database_urls, "select id from public.dead_letter_queue where original_event_id = $1", owed)
    )
    async with ruling(hub):
        await ends(hub, owed, "completed")

    made = await every(hub)
    assert len(made) == 2
    assert broken.id in {each.rule_id for each in made}


async def test_a_template_this_process_does_not_know_is_tried_again(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add(hub)
    published = await say(hub, "order.paid", payload=BUYER)
    [held] = await claim(hub)

    async with hub.autocommit() as tx:
        await build_rules_lane(TemplateCatalogue({})).settle(tx, [Settlement(held, DONE)])

    waiting = await event(hub, await delivery(database_urls, published))
    assert (waiting.status, waiting.error_code) == ("pending", "template_unknown")


# Whom


async def test_a_list_of_people_is_everybody_in_it_with_what_stands_beside_them(
    hub: Hub, database_urls: DatabaseUrls
) -> None:
    await add(
        hub,
        recipients=["buyers.discord_id", "seller"],
        channels=["user_dm", "dashboard_toast"],
        variables={"item": "cart.0.name", "amount": "buyers.share"},
    )
    buyers = [{"discord_id": 1, "share": 100}, {"discord_id": "2", "share": 200}]

    _, owed = await publish_and_settle(
        hub, database_urls, {"buyers": buyers, "seller": "3", "cart": [{"name": "Nitro"}], "currency": "KRW"}
    )

    assert (await event(hub, owed)).last_error == "rule paid: buyers.share has 2 values instead of one"

    async with hub.transaction() as tx:
        [rule] = await list_rules(tx)
        await update_rule(tx, hub.templates, rule.id, {"recipients": ["buyers.discord_id"]}, TESTER)
    await publish_and_settle(hub, database_urls, {"buyers": buyers, "cart": [{"name": "Nitro"}], "currency": "KRW"})

    made = await every(hub)
    assert {(each.recipient_id, each.recipient_type, each.payload["amount"]) for each in made} == {
        ("1", "user_dm", 100),
        ("1", "dashboard_toast", 100),
        ("2", "user_dm", 200),
        ("2", "dashboard_toast", 200),
    }
    assert {each.payload["item"] for each in made} == {"Nitro"}


async def test_somebody_who_stands_in_a_list_twice_is_told_once_and_an_empty_list_is_nobody(
    hub: Hub, database_urls: DatabaseUrls
) -> None:
    await add(hub, recipients=["users"])

    await publish_and_settle(hub, database_urls, BUYER | {"users": ["1", "2", "1"]})
    _, owed = await publish_and_settle(hub, database_urls, BUYER | {"users": []})

    assert sorted(made.recipient_id for made in await every(hub)) == ["1", "2"]
    assert (await event(hub, owed)).status == "completed"


async def test_more_people_than_a_rule_may_tell_are_refused_whole(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add(hub, recipients=["users"])

    _, owed = await publish_and_settle(hub, database_urls, BUYER | {"users": [*range(10_001)]})

    assert (await event(hub, owed)).last_error == "rule paid: more than 10000 notifications for one event"
    assert await every(hub) == []


async def test_of_far_too_many_no_more_are_made_than_show_it(hub: Hub) -> None:
    made, draft = count(), notice(hub)

    with pytest.raises(PayloadPathError):
        collect_valid_drafts(draft for _ in made)

    assert next(made) == MAX_NOTIFICATIONS_PER_RULE + 1


async def test_guild_incident_and_life_come_from_the_event(hub: Hub, database_urls: DatabaseUrls) -> None:
    guild = await sql(database_urls, "insert into guild.guilds default values returning id")
    await add(hub, guild_path="guild", incident_path="attack", expires_after=timedelta(hours=1))

    for each in (str(guild), "00000000-0000-0000-0000-000000000007", "not one"):
        await publish_and_settle(hub, database_urls, BUYER | {"guild": each, "attack": 9})

    made = sorted(await every(hub), key=lambda each: each.created_at)
    assert [each.guild_id for each in made] == [guild, None, None]
    assert {each.incident for each in made} == {"9"}
    assert all(each.expires_at and MINUTE * 59 < each.expires_at - each.created_at <= MINUTE * 60 for each in made)


# Loops


async def as_hub(hub: Hub, event_type: str) -> UUID:
    async with hub.transaction() as tx:
        [made] = await publish_events(
            tx, [EventDraft(HUB_ACTOR.name, event_type, b'{"user": {"discord_id": "1"}}', "minu_build")]
        )
    assert isinstance(made, PublishResult)
    return made.id


async def test_what_notices_cause_makes_no_notices(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add(hub, event_pattern="*")
    own = await delivery(database_urls, await as_hub(hub, "notification.failed"))
    other = await delivery(database_urls, await as_hub(hub, "token.reused"))

    async with ruling(hub):
        await ends(hub, own, "completed")
        await ends(hub, other, "failed")  # a rule looked at it: it lacks the item

    assert await every(hub) == []
