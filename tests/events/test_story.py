"""An event's story: nothing that is known of it is left out, under whatever name it is asked for."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.core.errors import Invalid, NotFound
from pabal.core.ids import new_id
from pabal.events.dead_letters import resolve_dead_letter
from pabal.events.events import EventAccess, cancel_event, find_event
from pabal.events.lane import LANE
from pabal.events.replay import replay_dead_letter
from pabal.hub import Hub
from pabal.queue.outcome import Dead, Retry, Snooze
from pabal.trace.event_entries import TracedEvent, event_attempt_entries, event_status_text
from pabal.trace.events import EventTrace, trace_event
from support.failed_events import MINA, Deaths

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
SECOND = timedelta(seconds=1)


async def told(hub: Hub, name: object) -> EventTrace:
    async with hub.autocommit() as tx:
        return await trace_event(tx, str(name))


def kinds(found: EventTrace) -> list[str]:
    return [moment.kind for moment in found.entries]


async def test_a_long_life_is_told_from_its_beginning_to_its_end(hub: Hub, deaths: Deaths, travel: Travel) -> None:
    event = await deaths.publish(max_retries=1)
    for outcome in (Retry("no answer", SECOND, "net"), Dead("gave up")):
        [held] = await deaths.claim()
        await travel(3 * SECOND)
        await deaths.settle(held, outcome)
        await travel(2 * SECOND)
    letter = await deaths.letter(event)
    async with hub.transaction() as tx:
        await replay_dead_letter(tx, letter, MINA)
    await travel(60 * SECOND)
    [held] = await deaths.claim()
    await travel(3 * SECOND)
    await deaths.settle(held)

    found = await told(hub, event)

    assert kinds(found) == ["published", "failed", "failed", "died", "replayed", "completed"]
    published, first, second, died, replayed, completed = found.entries
    assert published.says == "order.paid published by minu_find for minu_build"
    assert first.says == "attempt 1 by w1 failed: no answer"
    assert second.says == "attempt 2 by w1 failed: gave up"
    assert (died.says, died.letter_id) == (f"moved to the dead letters: gave up; dead letter {letter}", letter)
    assert (replayed.says, replayed.by) == ("replayed by operator:mina", MINA.name)
    assert completed.says == "attempt 1 by w1 succeeded"
    assert completed.took is not None
    assert timedelta(seconds=3) <= completed.took < timedelta(seconds=10)
    assert published.took is None
    for failed in (first, second):
        assert failed.took is not None
        assert timedelta(seconds=3) <= failed.took < timedelta(seconds=10)
    assert [moment.at for moment in found.entries] == sorted(moment.at for moment in found.entries)


async def test_an_attempt_whose_worker_died_took_until_its_lease_ended(
    hub: Hub, deaths: Deaths, travel: Travel
) -> None:
    event = await deaths.publish()
    await deaths.claim()
    await travel(timedelta(minutes=2))
    async with hub.autocommit() as tx:
        await LANE.revive(tx, 10)
    [held] = await deaths.claim()
    await deaths.settle(held, Dead("gave up"))
    await deaths.owner.execute("delete from public.event_queue where id = $1", event)

    crashed, failed, _ = (await told(hub, event)).entries

    assert crashed.took is not None
    assert timedelta(minutes=2) <= crashed.took < timedelta(minutes=3)
    assert failed.took is not None
    assert failed.took < timedelta(seconds=10)


async def test_what_no_handler_takes_says_so(hub: Hub, deaths: Deaths) -> None:
    await deaths.owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types) values ('minu_build', 'handler', '{cart.*}')"
    )
    strange, known = await deaths.publish("order.paid"), await deaths.publish("cart.paid")

    found = [await told(hub, event) for event in (strange, known)]

    assert [event_status_text(each.events[0], each.now) for each in found] == [
        "pending, due; no handler of minu_build accepts order.paid",
        "pending, due",
    ]


async def test_how_long_the_last_attempt_took_is_known_of_a_death_too(hub: Hub, deaths: Deaths, travel: Travel) -> None:
    event = await deaths.publish()
    [held] = await deaths.claim()
    await travel(4 * SECOND)
    await deaths.settle(held, Dead("gave up"))

    _, failed, died = (await told(hub, event)).entries

    assert failed.took is not None
    assert timedelta(seconds=4) <= failed.took < timedelta(seconds=10)
    assert died.at == failed.at


async def test_what_is_under_way_is_told_as_it_stands(hub: Hub, deaths: Deaths, travel: Travel) -> None:
    async def stands(event: UUID) -> str:
        found = await told(hub, event)
        [row] = found.events
        return event_status_text(row, found.now)

    event = await deaths.publish()
    assert await stands(event) == "pending, due"
    [held] = await deaths.claim()
    assert (await told(hub, event)).entries[-1].says == "attempt 1 started by w1"
    assert (await stands(event)).startswith("processing, held by w1; the lease ends in ")
    await travel(timedelta(minutes=2))
    assert await stands(event) == "processing, held by w1; the lease has ended"
    await deaths.settle(held, Snooze("not before noon", timedelta(minutes=30)))

    found = await told(hub, event)
    assert found.entries[-1].says == "postponed without using an attempt: not before noon"
    assert re.fullmatch(r"pending, due in (30 min 0|29 min \d+) s", await stands(event))
    await deaths.owner.execute("update public.event_queue set status = 'completed' where id = $1", event)
    assert (await told(hub, event)).entries[-1].says == "completed manually"


async def test_a_lease_that_ended_is_an_attempt_that_failed(hub: Hub, deaths: Deaths, travel: Travel) -> None:
    event = await deaths.publish()
    await deaths.claim()
    await travel(timedelta(minutes=2))
    async with hub.autocommit() as tx:
        await LANE.revive(tx, 10)

    assert (await told(hub, event)).entries[-1].says == "attempt 1 by w1 failed: lease expired"


async def test_an_event_for_later_says_so(hub: Hub, deaths: Deaths) -> None:
    event = await deaths.publish(deliver_at=datetime.now(UTC) + timedelta(hours=1))

    [published] = (await told(hub, event)).entries

    assert published.says.endswith(", scheduled for later")


async def test_a_cancellation_says_by_whom_and_an_expiry_that_it_was_one(
    hub: Hub, deaths: Deaths, travel: Travel
) -> None:
    called_off = await deaths.publish()
    late = await deaths.publish(expires_at=datetime.now(UTC) + timedelta(minutes=1))
    async with hub.transaction() as tx:
        await cancel_event(tx, await find_event(tx, called_off, EventAccess("hub", all_services=True)), MINA)
    await travel(timedelta(minutes=2))
    async with hub.autocommit() as tx:
        await LANE.expire(tx, 10)

    cancelled, expired = (await told(hub, called_off)).entries[1:], (await told(hub, late)).entries[1:]

    assert [(each.kind, each.says, each.by) for each in cancelled] == [
        ("cancelled", "cancelled by operator:mina", MINA.name)
    ]
    assert [(each.kind, each.says) for each in expired] == [("expired", "expired before a consumer claimed it")]


@pytest.fixture
async def broadcast(deaths: Deaths) -> UUID:
    await deaths.owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types)"
        " values ('minu_build', 'pull', '{*}'), ('minu_keep', 'pull', '{*}')"
    )
    return await deaths.publish(target=None, correlation_id="order-77")


async def test_a_broadcast_is_told_with_each_of_its_deliveries(hub: Hub, deaths: Deaths, broadcast: UUID) -> None:
    [first] = await deaths.claim()
    await deaths.settle(first)
    [second] = await deaths.claim(service="minu_keep")
    await deaths.settle(second, Dead("boom"))

    found = await told(hub, broadcast)

    assert [event.id for event in found.events] == [broadcast, first.id, second.id]
    assert kinds(found) == ["published", "owed", "owed", "completed", "failed", "died"]
    assert found.entries[0].says == "order.paid published by minu_find for all subscribers"
    assert [moment.event_id for moment in found.entries[3:]] == [first.id, second.id, second.id]


async def test_what_the_hubs_rules_got_of_an_event_is_told_with_it(hub: Hub, deaths: Deaths) -> None:
    await deaths.owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types) values ('hub', 'rule', '{order.*}')"
    )
    event = await deaths.publish()

    found = await told(hub, event)

    assert [moment.says for moment in found.entries][1:] == ["queued for hub"]


async def test_a_delivery_is_told_alone_and_names_its_broadcast(hub: Hub, deaths: Deaths, broadcast: UUID) -> None:
    [held] = await deaths.claim()
    await deaths.settle(held)

    found = await told(hub, held.id)

    assert [event.id for event in found.events] == [held.id]
    assert kinds(found) == ["published", "completed"]
    assert found.entries[0].says.endswith(f"published by minu_find for minu_build, a delivery of {broadcast}")


async def test_a_broadcast_that_was_called_off_says_by_whom(hub: Hub, deaths: Deaths, broadcast: UUID) -> None:
    async with hub.transaction() as tx:
        await cancel_event(tx, await find_event(tx, broadcast, EventAccess("hub", all_services=True)), MINA)

    found = await told(hub, broadcast)

    whole, *parts = [moment for moment in found.entries if moment.kind == "cancelled"][::-1]
    assert (whole.event_id, whole.says) == (broadcast, "cancelled by operator:mina, 2 deliveries")
    assert [part.by for part in parts] == [MINA.name, MINA.name]


async def test_an_event_that_is_gone_is_told_by_its_letters_and_followed_into_its_next_life(
    hub: Hub, deaths: Deaths
) -> None:
    event, letter = await deaths.dead()
    await deaths.owner.execute("delete from public.event_queue where id = $1", event)
    assert kinds(await told(hub, event)) == ["failed", "died"]
    async with hub.transaction() as tx:
        anew = await replay_dead_letter(tx, letter, MINA)
    again = await deaths.die(anew, Dead("boom again"))
    async with hub.transaction() as tx:
        await resolve_dead_letter(tx, again, MINA, "known")

    by_name = {name: await told(hub, name) for name in (event, letter, anew, again)}

    for found in by_name.values():
        assert [(moment.kind, moment.event_id) for moment in found.entries if moment.kind != "failed"] == [
            ("died", event),
            ("replayed", event),
            ("died", anew),
            ("resolved", anew),
        ]
        says = [moment.says for moment in found.entries]
        assert f"replayed by operator:mina, as the new event {anew}" in says
        assert "dead letter resolved by operator:mina: known" in says
    assert (by_name[letter].kind, by_name[letter].subject) == ("dead letter", str(letter))


async def test_a_second_death_says_that_it_is_one(hub: Hub, deaths: Deaths) -> None:
    event, first = await deaths.dead()
    async with hub.transaction() as tx:
        await replay_dead_letter(tx, first, MINA)
    await deaths.die(event, Dead("boom again"))

    died = [moment.says for moment in (await told(hub, event)).entries if moment.kind == "died"]

    assert died[0].startswith("moved to the dead letters: boom;")
    assert died[1].startswith("moved to the dead letters, failure 2: boom again;")


async def test_all_that_share_a_correlation_id_are_one_story(hub: Hub, deaths: Deaths, broadcast: UUID) -> None:
    other = await deaths.publish("order.shipped", correlation_id="order-77")
    await deaths.publish(correlation_id="order-78")

    found = await told(hub, "order-77")

    assert (found.kind, found.subject) == ("correlation", "order-77")
    assert {event.id for event in found.events if not event.parent_id} == {broadcast, other}
    assert len([event for event in found.events if event.parent_id]) == 2


async def test_the_beginning_of_an_id_is_enough_if_nothing_else_begins_so(hub: Hub, deaths: Deaths) -> None:
    for made in ("aaaaaaaa-0000-7000-8000-000000000001", "aaaaaaaa-0000-7000-8000-000000000002", "bbbbbbbb" + "1" * 24):
        await deaths.owner.execute(
            "insert into public.event_queue (id, event_type, source_service, target_service)"
            " values ($1, 'order.paid', 'hub', 'minu_build')",
            UUID(made),
        )

    assert (await told(hub, "bbbbbbbb")).subject == str(UUID("bbbbbbbb" + "1" * 24))
    assert (await told(hub, "AAAAAAAA-0000-7000-8000-000000000001")).kind == "event"
    with pytest.raises(Invalid, match="id: aaaaaaaa is ambiguous: aaaaaaaa-0000-7000-8000-000000000001, "):
        await told(hub, "aaaaaaaa")
    for name in ("bbbbbbb", "bbbbbbbg", "bbbbbbbc", new_id(), "nothing", ""):
        with pytest.raises(NotFound):
            await told(hub, name)


def test_twenty_attempts_say_that_there_were_others() -> None:
    history = [{"at": "2026-01-01T00:00:00+00:00", "attempt": n, "error": "boom"} for n in range(5, 25)]

    first, *others = event_attempt_entries(new_id(), history)

    assert first.says == "attempt 5 by an unknown worker failed: boom (earlier attempts are no longer stored)"
    assert not [each for each in others if "no longer kept" in each.says]


async def test_who_stands_in_a_line_is_said_to(hub: Hub, deaths: Deaths) -> None:
    event = await deaths.publish(ordering_key="o1")
    found = await told(hub, event)
    [row] = found.events

    changed: dict[str, Any] = {"status": "completed"}
    assert event_status_text(row, found.now) == "pending, in the order of its ordering key"
    assert isinstance(row, TracedEvent)
    assert event_status_text(replace(row, **changed), found.now) == "completed"
