import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from clusters import connected
from faultproxy import between
from pabal.db import doorbell
from pabal.db.bells import CHANNEL, Bell, Ring
from pabal.db.doorbell import Doorbell, self_test, written
from pabal.settings import Settings
from pabal.wiring import Hub, Roads, open_hub, reach
from patience import until

pytestmark = pytest.mark.anyio

SOON, NEVER = timedelta(seconds=10), timedelta(milliseconds=50)


@pytest.fixture
async def other(roads: Roads, settings: Settings) -> AsyncGenerator[Hub]:
    """A second process of the same hub."""
    async with open_hub(settings, roads) as opened:
        yield opened


async def test_a_ring_wakes_another_process(hub: Hub, other: Hub) -> None:
    await until(lambda: other.doorbell.listening)
    with other.doorbell.hear(Bell.EVENTS) as events, other.doorbell.hear(Bell.MESSAGES) as messages:
        async with hub.transaction() as tx:
            tx.ring(Bell.EVENTS)

        assert await events.within(SOON)
        assert not await messages.within(NEVER)


async def test_a_ring_of_ones_own_is_heard_at_once_and_once(hub: Hub) -> None:
    await until(lambda: hub.doorbell.listening)
    with hub.doorbell.hear(Bell.EVENTS) as heard:
        async with hub.transaction() as tx:
            tx.ring(Bell.EVENTS)

        assert await heard.within(NEVER)
        assert not await heard.within(NEVER)


async def test_a_ring_says_for_whom_it_is_in_every_process(hub: Hub, other: Hub) -> None:
    await until(lambda: other.doorbell.listening)
    with other.doorbell.hear(Bell.MESSAGES) as there, hub.doorbell.hear(Bell.MESSAGES) as here:
        async with hub.transaction() as tx:
            tx.ring(Bell.MESSAGES, "one")
            tx.ring(Bell.MESSAGES, "another")

        for ear in (here, there):
            assert await ear.rings(SOON)
            assert ear.topics() == {"one", "another"}
            assert not await ear.rings(NEVER)


def test_topics_that_do_not_fit_into_one_notify_become_a_ring_for_everybody() -> None:
    many = {Ring(Bell.MESSAGES, f"{number:036}") for number in range(150)}

    assert len(written(many)) == 150
    assert written({*many, *(Ring(Bell.MESSAGES, f"x{number:036}") for number in range(50))}) == ["messages"]


async def test_what_is_rung_between_looking_and_waiting_is_not_missed(hub: Hub) -> None:
    await until(lambda: hub.doorbell.listening)
    with hub.doorbell.hear(Bell.EVENTS) as heard:
        hub.doorbell.ring([Bell.EVENTS])
        hub.doorbell.ring([Bell.EVENTS])

        assert await heard.within(NEVER)
        assert not await heard.within(NEVER)


async def test_who_waits_holds_no_connection_and_is_forgotten_afterwards(hub: Hub) -> None:
    await until(lambda: hub.doorbell.listening)
    waiting = [asyncio.create_task(hub.doorbell.wait(Bell.EVENTS, SOON)) for _ in range(200)]
    await until(lambda: len(hub.doorbell._waiting[Bell.EVENTS]) == 200)
    assert hub.db.busy() == 0

    hub.doorbell.ring([Bell.EVENTS])

    assert all(await asyncio.gather(*waiting))
    assert not hub.doorbell._waiting[Bell.EVENTS]


async def test_nonsense_from_outside_is_passed_over(hub: Hub, roads: Roads) -> None:
    await until(lambda: hub.doorbell.listening)
    with hub.doorbell.hear(Bell.TOKENS) as heard:
        async with connected(roads.work) as stranger:
            for payload in ("", " ", "somebody", "somebody nothing we know", "somebody tokens nothing"):
                await stranger.execute("select pg_notify($1, $2)", CHANNEL, payload)

        assert await heard.within(SOON)
    assert hub.doorbell.listening


async def test_many_rings_leave_as_few_notes(hub: Hub, roads: Roads) -> None:
    notes: list[str] = []
    async with connected(roads.work) as ear:
        await ear.add_listener(CHANNEL, lambda _ear, _pid, _channel, payload: notes.append(str(payload)))
        for _ in range(500):
            hub.doorbell.ring([Bell.EVENTS, Bell.MESSAGES])

        await until(lambda: any(note.endswith("events messages") for note in notes))
        await ear.execute("select pg_notify($1, 'the end')", CHANNEL)
        await until(lambda: "the end" in notes)

    assert len([note for note in notes if "events" in note]) < 5


async def test_who_was_deaf_looks_at_everything_on_return(hub: Hub, roads: Roads, settings: Settings) -> None:
    async with between(roads.direct or roads.work) as (faults, url):
        bell = Doorbell(hub.db, reach(settings, url, pooler=False))
        await bell.open()
        try:
            await until(lambda: bell.listening)
            with bell.hear(Bell.NOTIFICATIONS) as heard:
                faults.reset()
                await until(lambda: not bell.listening)

                assert await heard.within(SOON)
                assert bell.listening
        finally:
            await bell.close()
    assert not bell.listening


async def test_a_connection_that_died_without_a_word_is_found_out(hub: Hub, roads: Roads, settings: Settings) -> None:
    async with between(roads.direct or roads.work) as (faults, url):
        bell = Doorbell(hub.db, reach(settings, url, pooler=False), pulse=timedelta(milliseconds=50))
        await bell.open()
        try:
            await until(lambda: bell.listening)
            faults.swallow()
            await until(lambda: not bell.listening)
            faults.flow()
            await until(lambda: bell.listening)
        finally:
            await bell.close()


async def test_the_self_test_hears_itself(roads: Roads, settings: Settings) -> None:
    assert await self_test(reach(settings, roads.work, pooler=False))


async def test_whatever_goes_wrong_the_bell_goes_on_ringing(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    await until(lambda: other.doorbell.listening)
    broken: list[str] = []

    def breaks(rings: object) -> list[str]:
        broken.append(str(rings))
        raise ZeroDivisionError

    with monkeypatch.context() as fault:
        fault.setattr(doorbell, "written", breaks)
        hub.doorbell.ring([Bell.EVENTS])
        await until(lambda: bool(broken))
    with other.doorbell.hear(Bell.EVENTS) as heard:
        hub.doorbell.ring([Bell.EVENTS])

        assert await heard.within(SOON)


async def test_whatever_goes_wrong_the_bell_is_heard_again(
    hub: Hub, roads: Roads, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[str] = []

    def breaks(*reached: object) -> dict[str, object]:
        broken.append(str(reached))
        raise ZeroDivisionError

    bell = Doorbell(hub.db, reach(settings, roads.direct or roads.work, pooler=False))
    with monkeypatch.context() as fault:
        fault.setattr(doorbell, "arguments", breaks)
        await bell.open()
        await until(lambda: len(broken) > 1)
        assert not bell.listening
    try:
        await until(lambda: bell.listening)
    finally:
        await bell.close()
