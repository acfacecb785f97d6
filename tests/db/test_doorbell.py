import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from pabal.db import doorbell
from pabal.db.channels import NOTIFY_CHANNEL, Channel, Wakeup
from pabal.db.doorbell import Doorbell, check_listen_notify, encode_wakeups
from pabal.hub import DatabaseUrls, Hub, connect_options, open_hub
from pabal.settings import Settings
from support.clusters import connected
from support.fault_proxy import between
from support.wait import until

pytestmark = pytest.mark.anyio

SOON, NEVER = timedelta(seconds=10), timedelta(milliseconds=50)


@pytest.fixture
async def other(database_urls: DatabaseUrls, settings: Settings) -> AsyncGenerator[Hub]:
    """A second process of the same hub."""
    async with open_hub(settings, database_urls) as opened:
        yield opened


async def test_a_ring_wakes_another_process(hub: Hub, other: Hub) -> None:
    await until(lambda: other.doorbell.listening)
    with other.doorbell.listen(Channel.EVENTS) as events, other.doorbell.listen(Channel.MESSAGES) as messages:
        async with hub.transaction() as tx:
            tx.notify(Channel.EVENTS)

        assert await events.wait(SOON)
        assert not await messages.wait(NEVER)


async def test_a_ring_of_ones_own_is_heard_at_once_and_once(hub: Hub) -> None:
    await until(lambda: hub.doorbell.listening)
    with hub.doorbell.listen(Channel.EVENTS) as heard:
        async with hub.transaction() as tx:
            tx.notify(Channel.EVENTS)

        assert await heard.wait(NEVER)
        assert not await heard.wait(NEVER)


async def test_a_ring_says_for_whom_it_is_in_every_process(hub: Hub, other: Hub) -> None:
    await until(lambda: other.doorbell.listening)
    with other.doorbell.listen(Channel.MESSAGES) as there, hub.doorbell.listen(Channel.MESSAGES) as here:
        async with hub.transaction() as tx:
            tx.notify(Channel.MESSAGES, "one")
            tx.notify(Channel.MESSAGES, "another")

        for ear in (here, there):
            assert await ear.wait_for_topics(SOON)
            assert ear.take_topics() == {"one", "another"}
            assert not await ear.wait_for_topics(NEVER)


def test_topics_that_do_not_fit_into_one_notify_become_a_ring_for_everybody() -> None:
    many = {Wakeup(Channel.MESSAGES, f"{number:036}") for number in range(150)}

    assert len(encode_wakeups(many)) == 150
    assert encode_wakeups({*many, *(Wakeup(Channel.MESSAGES, f"x{number:036}") for number in range(50))}) == [
        "messages"
    ]


async def test_what_is_rung_between_looking_and_waiting_is_not_missed(hub: Hub) -> None:
    await until(lambda: hub.doorbell.listening)
    with hub.doorbell.listen(Channel.EVENTS) as heard:
        hub.doorbell.notify([Channel.EVENTS])
        hub.doorbell.notify([Channel.EVENTS])

        assert await heard.wait(NEVER)
        assert not await heard.wait(NEVER)


async def test_who_waits_holds_no_connection_and_is_forgotten_afterwards(hub: Hub) -> None:
    await until(lambda: hub.doorbell.listening)
    waiting = [asyncio.create_task(hub.doorbell.wait(Channel.EVENTS, SOON)) for _ in range(200)]
    await until(lambda: len(hub.doorbell._listeners[Channel.EVENTS]) == 200)
    assert hub.db.connections_in_use() == 0

    hub.doorbell.notify([Channel.EVENTS])

    assert all(await asyncio.gather(*waiting))
    assert not hub.doorbell._listeners[Channel.EVENTS]


async def test_nonsense_from_outside_is_passed_over(hub: Hub, database_urls: DatabaseUrls) -> None:
    await until(lambda: hub.doorbell.listening)
    with hub.doorbell.listen(Channel.TOKENS) as heard:
        async with connected(database_urls.main) as stranger:
            for payload in ("", " ", "somebody", "somebody nothing we know", "somebody tokens nothing"):
                await stranger.execute("select pg_notify($1, $2)", NOTIFY_CHANNEL, payload)

        assert await heard.wait(SOON)
    assert hub.doorbell.listening


async def test_many_rings_leave_as_few_notes(hub: Hub, database_urls: DatabaseUrls) -> None:
    notes: list[str] = []
    async with connected(database_urls.main) as ear:
        await ear.add_listener(NOTIFY_CHANNEL, lambda _ear, _pid, _channel, payload: notes.append(str(payload)))
        for _ in range(500):
            hub.doorbell.notify([Channel.EVENTS, Channel.MESSAGES])

        await until(lambda: any(note.endswith("events messages") for note in notes))
        await ear.execute("select pg_notify($1, 'the end')", NOTIFY_CHANNEL)
        await until(lambda: "the end" in notes)

    assert len([note for note in notes if "events" in note]) < 5


async def test_who_was_deaf_looks_at_everything_on_return(
    hub: Hub, database_urls: DatabaseUrls, settings: Settings
) -> None:
    async with between(database_urls.direct or database_urls.main) as (faults, url):
        bell = Doorbell(hub.db, connect_options(settings, url, pooler=False))
        await bell.open()
        try:
            await until(lambda: bell.listening)
            with bell.listen(Channel.NOTIFICATIONS) as heard:
                faults.reset()
                await until(lambda: not bell.listening)

                assert await heard.wait(SOON)
                assert bell.listening
        finally:
            await bell.close()
    assert not bell.listening


async def test_a_connection_that_died_without_a_word_is_found_out(
    hub: Hub, database_urls: DatabaseUrls, settings: Settings
) -> None:
    async with between(database_urls.direct or database_urls.main) as (faults, url):
        bell = Doorbell(
            hub.db, connect_options(settings, url, pooler=False), keepalive_interval=timedelta(milliseconds=50)
        )
        await bell.open()
        try:
            await until(lambda: bell.listening)
            faults.swallow()
            await until(lambda: not bell.listening)
            faults.flow()
            await until(lambda: bell.listening)
        finally:
            await bell.close()


async def test_the_self_test_hears_itself(database_urls: DatabaseUrls, settings: Settings) -> None:
    assert await check_listen_notify(connect_options(settings, database_urls.main, pooler=False))


async def test_whatever_goes_wrong_the_bell_goes_on_ringing(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    await until(lambda: other.doorbell.listening)
    broken: list[str] = []

    def breaks(rings: object) -> list[str]:
        broken.append(str(rings))
        raise ZeroDivisionError

    with monkeypatch.context() as fault:
        fault.setattr(doorbell, "encode_wakeups", breaks)
        hub.doorbell.notify([Channel.EVENTS])
        await until(lambda: bool(broken))
    with other.doorbell.listen(Channel.EVENTS) as heard:
        hub.doorbell.notify([Channel.EVENTS])

        assert await heard.wait(SOON)


async def test_whatever_goes_wrong_the_bell_is_heard_again(
    hub: Hub, database_urls: DatabaseUrls, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[str] = []

    def breaks(*reached: object) -> dict[str, object]:
        broken.append(str(reached))
        raise ZeroDivisionError

    bell = Doorbell(hub.db, connect_options(settings, database_urls.direct or database_urls.main, pooler=False))
    with monkeypatch.context() as fault:
        fault.setattr(doorbell, "connect_arguments", breaks)
        await bell.open()
        await until(lambda: len(broken) > 1)
        assert not bell.listening
    try:
        await until(lambda: bell.listening)
    finally:
        await bell.close()
