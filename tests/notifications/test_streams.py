"""Toast streams: every change once, in order, to its person, also after a reconnect."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from pabal.core.errors import RateLimited
from pabal.db.queries import parse_queries
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.notifications.lane import ClaimedNotification
from pabal.notifications.people import tokens
from pabal.notifications.people.tokens import Person, revoke_person_token
from pabal.notifications.templates.render import RenderedText
from pabal.notifications.toasts.inbox import ToastAction, ToastChange, add_toast, notify_toast_streams, toast_topic
from pabal.notifications.toasts.stream_slots import MAX_STREAMS_PER_PERSON, SLOT_LIFETIME, purge_toast_streams
from pabal.notifications.toasts.streams import MAX_PENDING_CHANGES, ToastStream
from support.inbox import JUN, MINA, Inbox
from support.wait import wait_until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
TOAST_PROCESS = Path(__file__).with_name("toast_process.py")
HELLO = RenderedText("Hello", "there")
HEARTBEAT = timedelta(seconds=20)
[SLEEP] = parse_queries("-- name: sleep\nselect pg_sleep(:seconds)")


async def collect_changes(stream: ToastStream, count: int) -> list[ToastChange]:
    """The next changes of a stream."""
    rows: list[ToastChange] = []
    async with asyncio.timeout(10):
        changes = stream.changes(HEARTBEAT)
        async for change in changes:
            assert change is not None
            rows.append(change)
            if len(rows) == count:
                await changes.aclose()
                break
    return rows


async def test_a_stream_sends_changes_after_its_number_and_then_new_ones(inbox: Inbox, hub: Hub) -> None:
    person = await inbox.person()
    old, missed = await inbox.insert_toast(), await inbox.insert_toast()
    [first, _] = await inbox.changes()
    stream, now = await hub.toast_streams.open(person, first.seq)
    assert now.unread == 2
    new = await inbox.insert_toast()
    await inbox.mark(old, ToastAction.READ)

    changes = await collect_changes(stream, 3)
    hub.toast_streams.close(stream)

    assert [(change.id, change.state) for change in changes] == [(missed, "unseen"), (new, "unseen"), (old, "read")]
    assert changes[-1].unread == 2


async def test_a_stream_without_a_number_starts_now_and_with_an_unknown_number_at_the_beginning(
    inbox: Inbox, hub: Hub
) -> None:
    person, old = await inbox.person(), await inbox.insert_toast()
    from_now, _ = await hub.toast_streams.open(person, None)
    from_unknown, _ = await hub.toast_streams.open(person, 10**9)
    new = await inbox.insert_toast()

    assert [change.id for change in await collect_changes(from_now, 1)] == [new]
    assert [change.id for change in await collect_changes(from_unknown, 2)] == [old, new]
    for stream in (from_now, from_unknown):
        hub.toast_streams.close(stream)


async def test_a_change_in_one_process_reaches_streams_of_another(
    inbox: Inbox, hub: Hub, database_urls: DatabaseUrls
) -> None:
    async with open_hub(hub.settings, database_urls) as other_hub:
        await wait_until(lambda: other_hub.doorbell.listening)
        stream, _ = await other_hub.toast_streams.open(await inbox.person(), None)
        toast = await inbox.insert_toast()
        [change] = await collect_changes(stream, 1)
        other_hub.toast_streams.close(stream)

    assert change.id == toast


async def test_a_stream_has_no_changes_of_other_people(inbox: Inbox, hub: Hub) -> None:
    mina_stream, _ = await hub.toast_streams.open(await inbox.person(MINA), None)
    jun_stream, _ = await hub.toast_streams.open(await inbox.person(JUN), None)
    mina_toast = await inbox.insert_toast(MINA)
    jun_toast = await inbox.insert_toast(JUN)

    assert [change.id for change in await collect_changes(mina_stream, 1)] == [mina_toast]
    assert [change.id for change in await collect_changes(jun_stream, 1)] == [jun_toast]
    for stream in (mina_stream, jun_stream):
        hub.toast_streams.close(stream)


async def test_a_slow_client_has_a_bounded_buffer_and_gets_everything_in_the_end(inbox: Inbox, hub: Hub) -> None:
    person = await inbox.person()
    slow_stream, _ = await hub.toast_streams.open(person, None)
    fast_stream, _ = await hub.toast_streams.open(person, None)
    count = 2 * MAX_PENDING_CHANGES + 50
    await inbox.db.execute(
        "with inserted as (insert into notification.requests "
        "(id, recipient_type, recipient_id, template_key, payload, state, sent_at) "
        "select pabal.uuid7(), 'dashboard_toast', $1, 'test.payment', '{}', 'sent', pabal.now() "
        "from generate_series(1, $2::integer) returning id) "
        "insert into notification.toasts (id, recipient_id, category, criticality, locale, body) "
        "select id, $1, 'payment', 'normal', 'ko', 'x' from inserted",
        MINA,
        count,
    )

    assert len(await collect_changes(fast_stream, count)) == count
    assert len(slow_stream._pending) == MAX_PENDING_CHANGES
    changes = await collect_changes(slow_stream, count)

    assert [change.seq for change in changes] == sorted({change.seq for change in changes})
    for stream in (slow_stream, fast_stream):
        hub.toast_streams.close(stream)


async def test_a_stream_ends_with_its_token(inbox: Inbox, hub: Hub, travel: Travel) -> None:
    revoked, valid = await inbox.person(), await inbox.person()
    revoked_stream, _ = await hub.toast_streams.open(revoked, None)
    valid_stream, _ = await hub.toast_streams.open(valid, None)
    async with hub.transaction() as tx:
        await revoke_person_token(tx, revoked)
        notify_toast_streams(tx, MINA)

    async with asyncio.timeout(10):
        assert [change async for change in revoked_stream.changes(HEARTBEAT)] == []
    assert not valid_stream.is_closed
    await travel(tokens.PERSON_COOKIE_LIFETIME)
    async with asyncio.timeout(10):
        assert [change async for change in valid_stream.changes(HEARTBEAT)] == []
    assert len(hub.toast_streams) == 0


async def test_the_number_of_streams_per_person_is_limited(inbox: Inbox, hub: Hub) -> None:
    person = await inbox.person()
    streams = [(await hub.toast_streams.open(person, None))[0] for _ in range(MAX_STREAMS_PER_PERSON)]

    with pytest.raises(RateLimited):
        await hub.toast_streams.open(person, None)

    other, _ = await hub.toast_streams.open(await inbox.person(JUN), None)
    for stream in (*streams, other):
        hub.toast_streams.close(stream)
    assert len(hub.toast_streams) == 0


async def test_the_number_of_streams_per_person_is_limited_in_all_processes_together(
    inbox: Inbox, hub: Hub, database_urls: DatabaseUrls
) -> None:
    person = await inbox.person()
    async with open_hub(hub.settings, database_urls) as other_hub:
        processes = (hub.toast_streams, other_hub.toast_streams)
        results = await asyncio.gather(
            *(process.open(person, None) for process in processes for _ in range(MAX_STREAMS_PER_PERSON)),
            return_exceptions=True,
        )
        opened = [result[0] for result in results if isinstance(result, tuple)]
        assert len(opened) == MAX_STREAMS_PER_PERSON
        assert all(isinstance(result, (tuple, RateLimited)) for result in results)

        for stream in opened[:2]:  # of the first process
            hub.toast_streams.close(stream)
        again = [await open_when_free(other_hub, person) for _ in range(2)]
        with pytest.raises(RateLimited):
            await hub.toast_streams.open(person, None)
    assert len({stream.slot.number for stream in (*opened, *again)}) == MAX_STREAMS_PER_PERSON
    await open_when_free(hub, person)  # the other process released its slots when it stopped


async def open_when_free(hub: Hub, person: Person) -> ToastStream:
    """Open a stream as soon as the process that closed one has released its slot."""
    async with asyncio.timeout(10):
        while True:
            try:
                return (await hub.toast_streams.open(person, None))[0]
            except RateLimited:
                await asyncio.sleep(0)


async def test_streams_of_a_lost_process_count_until_their_slots_expire(
    inbox: Inbox, hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    person = await inbox.person()
    await inbox.db.execute(
        "insert into notification.toast_streams (recipient, slot, id, alive_until) "
        "select $1, n, pabal.uuid7(), pabal.now() + $2 from generate_series(2, $3::integer) n",
        toast_topic(person.id),
        SLOT_LIFETIME,
        MAX_STREAMS_PER_PERSON,
    )
    stream, _ = await hub.toast_streams.open(person, None)
    with pytest.raises(RateLimited):
        await hub.toast_streams.open(person, None)
    await travel(SLOT_LIFETIME / 2)
    await hub.toast_streams.slots.extend()
    await travel(SLOT_LIFETIME / 2)

    others = [(await hub.toast_streams.open(person, None))[0] for _ in range(MAX_STREAMS_PER_PERSON - 1)]
    with pytest.raises(RateLimited):
        await hub.toast_streams.open(person, None)
    assert stream.slot.number not in {other.slot.number for other in others}


async def test_slots_of_lost_processes_are_purged_and_those_of_open_streams_come_back(
    inbox: Inbox, hub: Hub, travel: Travel
) -> None:
    stream, _ = await hub.toast_streams.open(await inbox.person(), None)
    await travel(SLOT_LIFETIME + timedelta(minutes=1, seconds=1))
    async with hub.transaction() as tx:
        assert await purge_toast_streams(tx, 10) == 1
        assert await purge_toast_streams(tx, 10) == 0
    await hub.toast_streams.slots.extend()
    assert not await has_no_slots(inbox)

    hub.toast_streams.close(stream)
    await wait_until(lambda: has_no_slots(inbox))


async def test_to_extend_slots_changes_no_index(inbox: Inbox, hub: Hub) -> None:
    for number in range(30):
        await hub.toast_streams.open(await inbox.person(str(number)), None)

    async with inbox.db.transaction():
        await inbox.db.execute("update notification.toast_streams set alive_until = alive_until + interval '10 s'")
        writes = await inbox.db.fetchrow(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_xact_user_tables where relname = 'toast_streams'"
        )

    assert tuple(writes or ()) == (30, 30)


async def has_no_slots(inbox: Inbox) -> bool:
    return await inbox.db.fetchval("select count(*) = 0 from notification.toast_streams")


async def test_the_slot_of_a_client_that_left_before_the_first_byte_is_released(inbox: Inbox, hub: Hub) -> None:
    stream, _ = await hub.toast_streams.open(await inbox.person(), None)
    stream.close()
    stream.request_refresh()

    await wait_until(lambda: has_no_slots(inbox))
    assert len(hub.toast_streams) == 0


async def test_idle_streams_hold_no_connection_and_share_one_query(inbox: Inbox, hub: Hub) -> None:
    streams = [(await hub.toast_streams.open(await inbox.person(str(number)), None))[0] for number in range(30)]

    await wait_until(lambda: hub.db.connections_in_use() == 0)
    toast = await inbox.insert_toast("7")
    assert [change.id for change in await collect_changes(streams[7], 1)] == [toast]
    for stream in streams:
        hub.toast_streams.close(stream)


async def test_reconnecting_streams_get_every_change_once_under_many_writers(inbox: Inbox, hub: Hub) -> None:
    """Writers take a sequence number early and commit late, so a reader must not rely on the number alone."""
    rng = random.Random(7)  # a fixed seed
    people, per_person, writers = (MINA, JUN), 40, 8
    requests = [await inbox.request(person) for person in people for _ in range(per_person)]
    rng.shuffle(requests)

    async def write(share: list[ClaimedNotification]) -> None:
        for request in share:
            async with hub.transaction() as tx:
                await add_toast(tx, request, HELLO)
                await tx.value(SLEEP, seconds=rng.choice((0, 0, 0.002, 0.02)))

    async def follow(person: str) -> list[ToastChange]:
        reader, last, rows = await inbox.person(person), 0, list[ToastChange]()
        while len(rows) < per_person:
            stream, _ = await hub.toast_streams.open(reader, last)
            with suppress(TimeoutError):
                async with asyncio.timeout(rng.uniform(0.01, 0.2)):
                    async for change in stream.changes(HEARTBEAT):
                        assert change is not None
                        rows.append(change)
                        last = change.seq
            hub.toast_streams.close(stream)
        return rows

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for number in range(writers):
            tasks.create_task(write(requests[number::writers]))
        followers = {(person, n): tasks.create_task(follow(person)) for person in people for n in range(3)}

    for (person, _), follower in followers.items():
        expected = Counter(request.id for request in requests if request.recipient_id == person)
        assert Counter(change.id for change in follower.result()) == expected
