"""Rules: an event makes its notices in the transaction that settles it, once, or says what it lacks."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from deaths import replayed
from notices import TESTER, every, registered, sql
from pabal.core.actor import HUB
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.db.tx import Tx
from pabal.events import subscriptions
from pabal.events.lane import LANE, HeldEvent
from pabal.events.publish import Draft as EventDraft
from pabal.events.publish import Published, publish
from pabal.events.together import Together, at_settling
from pabal.notifications import rules
from pabal.notifications.apply import apply
from pabal.notifications.catalogue import Catalogue
from pabal.notifications.rules import Draft, Rule
from pabal.queue.lane import Verdict
from pabal.queue.outcome import DONE, Outcome
from pabal.queue.worker import Pace, Worker
from pabal.wiring import Hub, Roads, for_the_hub, ruled
from patience import until
from subscribed import EVERYBODY, ends, event, say

pytestmark = pytest.mark.anyio

BUYER: dict[str, Any] = {"user": {"discord_id": "100"}, "item": "Nitro", "amount": 12900, "currency": "KRW"}
MINUTE = timedelta(minutes=1)


@pytest.fixture
async def hub(hub: Hub) -> Hub:
    return await registered(hub)


def paid(**how: Any) -> Draft:
    said: dict[str, Any] = {
        "name": "paid",
        "event_pattern": "order.paid",
        "template_key": "payment.succeeded",
        "recipients": ["user.discord_id"],
        "channels": ["user_dm"],
    }
    return Draft(**(said | how))


async def add(hub: Hub, **how: Any) -> Rule:
    async with hub.transaction() as tx:
        return await rules.add(tx, hub.catalogue, paid(**how), TESTER)


def rules_worker(hub: Hub, lane: Together | None = None) -> Worker[HeldEvent]:
    pace = Pace(floor=timedelta(seconds=1))
    return Worker("rules:tester", lane or ruled(hub.catalogue), hub.db, hub.doorbell, at_settling, for_the_hub, pace)


@asynccontextmanager
async def ruling(hub: Hub, *workers: Worker[HeldEvent]) -> AsyncGenerator[None]:
    """Workers that apply the rules, for as long as the block lasts."""
    employed = workers or (rules_worker(hub),)
    running = [asyncio.create_task(each.run()) for each in employed]
    try:
        yield
    finally:
        for each in employed:
            each.stop()
        await asyncio.gather(*running)


async def delivery(roads: Roads, parent: UUID) -> UUID:
    """What is owed to the hub of an event."""
    return await sql(roads, "select id from public.event_queue where parent_id = $1 and target_service = 'hub'", parent)


async def publish_and_settle(hub: Hub, roads: Roads, payload: Any = None, **how: Any) -> tuple[UUID, UUID]:
    """Publish an event and let the rules have it: the event, and the hub's delivery of it when that has ended."""
    published = await say(hub, "order.paid", payload=payload or BUYER, **how)
    owed = await delivery(roads, published)

    async def ended() -> bool:
        return (await event(hub, owed)).status in {"completed", "failed"}

    async with ruling(hub):
        await until(ended)
    return published, owed


async def test_an_event_makes_a_notice(hub: Hub, roads: Roads) -> None:
    rule = await add(hub)

    published, owed = await publish_and_settle(hub, roads)

    [made] = await every(hub)
    assert (made.recipient_type, made.recipient_id, made.template_key) == ("user_dm", "100", "payment.succeeded")
    assert made.payload == {"item": "Nitro", "amount": 12900, "currency": "KRW"}
    assert (made.event_id, made.rule_id, made.source_service) == (published, rule.id, "minu_find")
    assert (made.requested_by, made.correlation_id) == ("rule", str(published))
    assert (await event(hub, owed)).status == "completed"
    assert (await event(hub, published)).status == "pending"  # its target has it still to come


async def test_a_broadcast_makes_a_notice_as_well(hub: Hub, roads: Roads) -> None:
    await add(hub)

    published, _ = await publish_and_settle(hub, roads, target=None)

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
    assert (await add(hub, event_pattern=pattern)).wants(event_type) is wanted


async def test_what_matches_no_rule_after_all_is_done_with(hub: Hub, roads: Roads) -> None:
    await add(hub, event_pattern="*.paid")  # LIKE takes more than the rule means
    published = await say(hub, "shop.order.paid", payload=BUYER)

    async with ruling(hub):
        await ends(hub, await delivery(roads, published), "completed")

    assert await every(hub) == []


# Once


async def settle(hub: Hub, events: Sequence[HeldEvent]) -> set[UUID]:
    async with hub.autocommit() as tx:
        return await ruled(hub.catalogue).settle(tx, [Verdict(each, DONE) for each in events])


async def claim(hub: Hub) -> list[HeldEvent]:
    async with hub.autocommit() as tx:
        return await LANE.claim(tx, 10, MINUTE, "w1", service="hub")


async def test_two_workers_on_one_event_make_one_notice(hub: Hub, roads: Roads, travel: Any) -> None:
    await add(hub)
    await say(hub, "order.paid", payload=BUYER)
    [slow] = await claim(hub)
    await travel(2 * MINUTE)
    [quick] = await claim(hub)

    assert quick.id == slow.id
    settled = await asyncio.gather(settle(hub, [slow]), settle(hub, [quick]))

    assert settled == [set(), {quick.id}]
    assert len(await every(hub)) == 1


async def test_many_workers_make_each_notice_once(hub: Hub, roads: Roads) -> None:
    await add(hub)
    for number in range(60):
        await say(hub, "order.paid", payload=BUYER | {"user": {"discord_id": str(number)}})

    async def all_done() -> bool:
        return await sql(
            roads, "select count(*) = 60 from public.event_queue where target_service = 'hub' and status = 'completed'"
        )

    async with ruling(hub, *(rules_worker(hub) for _ in range(4))):
        await until(all_done)

    assert sorted(int(made.recipient_id) for made in await every(hub)) == [*range(60)]


async def test_notice_and_settling_happen_together_or_not_at_all(hub: Hub, roads: Roads) -> None:
    await add(hub)
    await say(hub, "order.paid", payload=BUYER)
    [held] = await claim(hub)

    async def asks_and_breaks(tx: Tx, events: Sequence[HeldEvent]) -> Sequence[Outcome]:
        await apply(tx, events, hub.catalogue)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with hub.autocommit() as tx:
            await Together(asks_and_breaks).settle(tx, [Verdict(held, DONE)])
    assert await every(hub) == []
    assert (await event(hub, held.id)).status == "processing"

    assert await settle(hub, [held]) == {held.id}
    assert len(await every(hub)) == 1


async def test_an_event_that_was_called_off_makes_nothing(hub: Hub, roads: Roads) -> None:
    await add(hub)
    await say(hub, "order.paid", payload=BUYER)
    [held] = await claim(hub)
    await sql(roads, "update public.event_queue set status = 'cancelled' where id = $1", held.id)

    assert await settle(hub, [held]) == set()

    assert await every(hub) == []


async def test_a_worker_that_stops_gives_back_what_it_did_not_do(hub: Hub) -> None:
    await add(hub)
    await say(hub, "order.paid", payload=BUYER)
    [held] = await claim(hub)

    async with hub.transaction() as tx:
        assert await ruled(hub.catalogue).release(tx, [held]) == {held.id}

    assert await every(hub) == []
    assert [each.id for each in await claim(hub)] == [held.id]


# What an event lacks


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"item": "Nitro"}, "rule paid: there is no user"),
        (BUYER | {"user": {}}, "rule paid: there is no user.discord_id"),
        (BUYER | {"user": {"discord_id": None}}, "rule paid: user.discord_id is null"),
        (BUYER | {"user": {"discord_id": True}}, "rule paid: user.discord_id is no id"),
        (BUYER | {"user": {"discord_id": "../x"}}, "rule paid: recipient_id: is not an id"),
        (BUYER | {"user": "100"}, "rule paid: there is no user.discord_id"),
        ({"user": {"discord_id": "100"}}, "rule paid: there is no item"),
        (BUYER | {"amount": "much"}, "rule paid: payload.amount: is integer"),
        (BUYER | {"item": ["a", "b"]}, "rule paid: item is 2 values, not one"),
    ],
)
async def test_an_event_that_lacks_what_a_rule_needs_dies_and_says_what(
    hub: Hub, roads: Roads, payload: dict[str, Any], why: str
) -> None:
    await add(hub)

    _, owed = await publish_and_settle(hub, roads, payload)

    dead = await event(hub, owed)
    assert (dead.status, dead.error_code) == ("failed", "rule_unmet")
    assert (dead.last_error or "").startswith(why)
    assert await every(hub) == []
    letter = "select error_message from public.dead_letter_queue where original_event_id = $1"
    assert (await sql(roads, letter, owed)).startswith(why)


async def test_what_other_rules_made_of_a_dead_event_is_made_and_a_replay_makes_the_rest(
    hub: Hub, roads: Roads
) -> None:
    await add(hub)
    broken = await add(hub, name="broken", recipients=["buyer"])
    _, owed = await publish_and_settle(hub, roads)
    assert [made.rule_id for made in await every(hub)] != [broken.id]
    assert len(await every(hub)) == 1

    async with hub.transaction() as tx:
        await rules.change(tx, hub.catalogue, broken.id, {"recipients": ["user.discord_id"]}, TESTER)
    await replayed(hub, await sql(roads, "select id from public.dead_letter_queue where original_event_id = $1", owed))
    async with ruling(hub):
        await ends(hub, owed, "completed")

    made = await every(hub)
    assert len(made) == 2
    assert broken.id in {each.rule_id for each in made}


async def test_a_template_this_process_does_not_know_is_tried_again(hub: Hub, roads: Roads) -> None:
    await add(hub)
    published = await say(hub, "order.paid", payload=BUYER)
    [held] = await claim(hub)

    async with hub.autocommit() as tx:
        await ruled(Catalogue({})).settle(tx, [Verdict(held, DONE)])

    waiting = await event(hub, await delivery(roads, published))
    assert (waiting.status, waiting.error_code) == ("pending", "template_unknown")


# Whom


async def test_a_list_of_people_is_everybody_in_it_with_what_stands_beside_them(hub: Hub, roads: Roads) -> None:
    await add(
        hub,
        recipients=["buyers.discord_id", "seller"],
        channels=["user_dm", "dashboard_toast"],
        variables={"item": "cart.0.name", "amount": "buyers.share"},
    )
    buyers = [{"discord_id": 1, "share": 100}, {"discord_id": "2", "share": 200}]

    _, owed = await publish_and_settle(
        hub, roads, {"buyers": buyers, "seller": "3", "cart": [{"name": "Nitro"}], "currency": "KRW"}
    )

    assert (await event(hub, owed)).last_error == "rule paid: buyers.share is 2 values, not one"

    async with hub.transaction() as tx:
        [rule] = await rules.every(tx)
        await rules.change(tx, hub.catalogue, rule.id, {"recipients": ["buyers.discord_id"]}, TESTER)
    await publish_and_settle(hub, roads, {"buyers": buyers, "cart": [{"name": "Nitro"}], "currency": "KRW"})

    made = await every(hub)
    assert {(each.recipient_id, each.recipient_type, each.payload["amount"]) for each in made} == {
        ("1", "user_dm", 100),
        ("1", "dashboard_toast", 100),
        ("2", "user_dm", 200),
        ("2", "dashboard_toast", 200),
    }
    assert {each.payload["item"] for each in made} == {"Nitro"}


async def test_somebody_who_stands_in_a_list_twice_is_told_once_and_an_empty_list_is_nobody(
    hub: Hub, roads: Roads
) -> None:
    await add(hub, recipients=["users"])

    await publish_and_settle(hub, roads, BUYER | {"users": ["1", "2", "1"]})
    _, owed = await publish_and_settle(hub, roads, BUYER | {"users": []})

    assert sorted(made.recipient_id for made in await every(hub)) == ["1", "2"]
    assert (await event(hub, owed)).status == "completed"


async def test_more_people_than_a_rule_may_tell_are_refused_whole(hub: Hub, roads: Roads) -> None:
    await add(hub, recipients=["users"])

    _, owed = await publish_and_settle(hub, roads, BUYER | {"users": [*range(10_001)]})

    assert (await event(hub, owed)).last_error == "rule paid: 10001 notices of one event are more than 10000"
    assert await every(hub) == []


async def test_guild_incident_and_life_come_from_the_event(hub: Hub, roads: Roads) -> None:
    guild = await sql(roads, "insert into guild.guilds default values returning id")
    await add(hub, guild_path="guild", incident_path="attack", expires_after=timedelta(hours=1))

    for each in (str(guild), "00000000-0000-0000-0000-000000000007", "not one"):
        await publish_and_settle(hub, roads, BUYER | {"guild": each, "attack": 9})

    made = sorted(await every(hub), key=lambda each: each.created_at)
    assert [each.guild_id for each in made] == [guild, None, None]
    assert {each.incident for each in made} == {"9"}
    assert all(each.expires_at and MINUTE * 59 < each.expires_at - each.created_at <= MINUTE * 60 for each in made)


# Loops


async def as_hub(hub: Hub, event_type: str) -> UUID:
    async with hub.transaction() as tx:
        [made] = await publish(tx, [EventDraft(HUB.name, event_type, b'{"user": {"discord_id": "1"}}', "minu_build")])
    assert isinstance(made, Published)
    return made.id


async def test_what_notices_cause_makes_no_notices(hub: Hub, roads: Roads) -> None:
    await add(hub, event_pattern="*")
    own = await delivery(roads, await as_hub(hub, "notification.failed"))
    other = await delivery(roads, await as_hub(hub, "token.reused"))

    async with ruling(hub):
        await ends(hub, own, "completed")
        await ends(hub, other, "failed")  # a rule looked at it: it lacks the item

    assert await every(hub) == []


# Keeping them


async def owed(hub: Hub, roads: Roads) -> bool:
    published = await say(hub, "order.paid", payload=BUYER)
    return await sql(roads, "select exists (select from public.event_queue where parent_id = $1)", published)


async def test_the_hub_is_owed_only_what_an_active_rule_is_for(hub: Hub, roads: Roads) -> None:
    assert not await owed(hub, roads)
    rule = await add(hub)
    assert await owed(hub, roads)

    async with hub.transaction() as tx:
        await rules.change(tx, hub.catalogue, rule.id, {"is_active": False}, TESTER)
    assert not await owed(hub, roads)

    async with hub.transaction() as tx:
        await rules.change(tx, hub.catalogue, rule.id, {"is_active": True, "event_pattern": "order.*"}, TESTER)
    assert await owed(hub, roads)

    async with hub.transaction() as tx:
        await rules.remove(tx, rule.id, TESTER)
    assert not await owed(hub, roads)
    assert await sql(roads, "select count(*) from pabal.subscriptions") == 0


async def test_a_rule_written_in_sql_works_as_well(hub: Hub, roads: Roads) -> None:
    await sql(
        roads,
        "insert into notification.rules (name, event_pattern, template_key, recipients, channels) "
        "values ('r', 'order.*', 'payment.succeeded', '[\"user.discord_id\"]', '{dashboard_toast}')",
    )

    await publish_and_settle(hub, roads)

    assert [made.recipient_type for made in await every(hub)] == ["dashboard_toast"]


async def test_a_rules_subscription_goes_with_the_rule_only(hub: Hub) -> None:
    rule = await add(hub)

    with pytest.raises(Conflict, match="belongs to a rule"):
        async with hub.transaction() as tx:
            await subscriptions.remove(tx, rule.id, EVERYBODY, TESTER)


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"event_pattern": "Order Paid"}, "event_pattern"),
        ({"event_pattern": "a*.b"}, "event_pattern"),
        ({"event_pattern": "a" * 129}, "event_pattern"),
        ({"template_key": "shop.gone"}, "template_key"),
        ({"recipients": []}, "recipients"),
        ({"recipients": ["user..id"]}, "recipients[0]"),
        ({"channels": []}, "channels"),
        ({"channels": ["user_dm", "user_dm"]}, "channels"),
        ({"channels": ["guild_audit_channel"]}, "channels"),
        ({"channels": ["user_dm", "guild_audit_channel"], "template_key": "antinuke.detected"}, "channels"),
        ({"variables": {"item": "$.x"}}, "variables.item"),
        ({"variables": {"shop": "shop"}}, "variables.shop"),
        ({"guild_path": "a b"}, "guild_path"),
        ({"incident_path": ""}, "incident_path"),
        ({"expires_after": timedelta()}, "expires_after"),
    ],
)
async def test_a_rule_that_cannot_be_is_refused_by_its_field(hub: Hub, said: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        await add(hub, **said)

    assert [mistake.field for mistake in refused.value.mistakes] == [field]
    async with hub.autocommit() as tx:
        assert await rules.every(tx) == []


async def test_a_change_must_make_sense_with_what_stays(hub: Hub) -> None:
    rule = await add(hub, variables={"item": "thing"})

    with pytest.raises(Invalid, match=r"variables\.item: is no variable of marketing\.news"):
        async with hub.transaction() as tx:
            await rules.change(tx, hub.catalogue, rule.id, {"template_key": "marketing.news"}, TESTER)
    async with hub.transaction() as tx:
        both = {"template_key": "marketing.news", "variables": {}}
        changed = await rules.change(tx, hub.catalogue, rule.id, both, TESTER)

    assert (changed.template_key, changed.variables, changed.created_by) == ("marketing.news", {}, "tester")


async def test_a_name_is_taken_once(hub: Hub) -> None:
    await add(hub)
    other = await add(hub, name="other")

    with pytest.raises(Conflict, match="paid"):
        await add(hub)
    with pytest.raises(Conflict, match="paid"):
        async with hub.transaction() as tx:
            await rules.change(tx, hub.catalogue, other.id, {"name": "paid"}, TESTER)


async def test_who_changed_a_rule_is_written_down(hub: Hub, roads: Roads) -> None:
    rule = await add(hub)
    async with hub.transaction() as tx:
        await rules.change(tx, hub.catalogue, rule.id, {"is_active": False}, TESTER)
        await rules.remove(tx, rule.id, TESTER)

    deeds = await sql(
        roads, "select array_agg(action order by id) from pabal.audit_log where subject = $1", str(rule.id)
    )
    assert deeds == ["rule.added", "rule.changed", "rule.removed"]
    async with hub.autocommit() as tx:
        with pytest.raises(NotFound):
            await rules.find(tx, rule.id)
