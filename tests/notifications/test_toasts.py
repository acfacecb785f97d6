"""Toasts: each arrives once, is seen, read and put away by its person, and is numbered as it becomes visible."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from pabal.core.errors import NotFound
from pabal.core.ids import new_id
from pabal.db.queries import parse_queries
from pabal.hub import DatabaseUrls, Hub
from pabal.notifications.lane import LANE, ClaimedNotification
from pabal.notifications.templates.render import RenderedText
from pabal.notifications.toasts.inbox import (
    NewToast,
    ToastAction,
    add_toast,
    add_toasts,
    list_toasts,
    mark_all_toasts_read,
)
from pabal.queue.lane import Settlement
from pabal.queue.outcome import DONE
from support.clusters import connected
from support.inbox import JUN, MINA, MINUTE, Inbox
from support.wait import until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
DELIVERY = Path(__file__).with_name("delivery.py")
HELLO = RenderedText("Hello", "there")
PULSE = timedelta(seconds=20)
[REST] = parse_queries("-- name: rest\nselect pg_sleep(:seconds)")


# Arriving


async def test_a_toast_arrives_with_what_its_template_says_it_is(inbox: Inbox) -> None:
    await inbox.db.execute("insert into notification.people (discord_id, locale) values ($1, 'en')", MINA)
    plain, told = await inbox.arrive(category="antinuke"), await inbox.arrive(JUN, title=None, locale="en-US")

    [toast] = await inbox.listed()
    assert (toast.id, toast.category, toast.criticality, toast.locale) == (plain, "antinuke", "emergency", "en")
    assert (toast.title, toast.body, toast.state) == ("Paid", "Thank you.", "unseen")
    [other] = await inbox.listed(JUN)
    assert (other.id, other.title, other.locale) == (told, None, "en-US")


async def test_it_arrives_once_however_often_it_is_sent(inbox: Inbox, hub: Hub) -> None:
    held = await inbox.request()
    came: list[bool] = []
    for words in ("first", "second"):
        async with hub.transaction() as tx:
            came.append(await add_toast(tx, held, RenderedText(None, words)))

    assert came == [True, False]
    assert [toast.body for toast in await inbox.listed()] == ["first"]


async def test_only_a_request_for_the_dashboard_becomes_a_toast(inbox: Inbox, hub: Hub) -> None:
    held = await inbox.request()
    await inbox.db.execute("update notification.requests set recipient_type = 'user_dm'")

    async with hub.transaction() as tx:
        assert not await add_toast(tx, held, HELLO)

    assert await inbox.listed() == []


async def test_of_two_workers_that_deliver_the_same_request_one_toast_is_seen(inbox: Inbox, hub: Hub) -> None:
    """The first lost its lease and came back: what it does ends nothing twice."""
    first = await inbox.request()
    await inbox.db.execute("update notification.requests set leased_until = pabal.now()")
    async with hub.autocommit() as tx:
        [second] = await LANE.claim(tx, 1, MINUTE, "other")

    assert sorted(await asyncio.gather(delivered(hub, first), delivered(hub, second))) == [False, True]

    assert [toast.id for toast in await inbox.listed()] == [first.id]
    assert await inbox.db.fetchval("select state from notification.requests") == "sent"


async def delivered(hub: Hub, held: ClaimedNotification) -> bool:
    """Settle and arrive in one transaction, as dispatching does; False for whoever lost the lease."""
    async with hub.transaction() as tx:
        if not await LANE.settle(tx, [Settlement(held, DONE)]):
            return False
        return await add_toast(tx, held, HELLO)


async def test_killed_between_arriving_and_the_commit_it_arrives_by_another_once(
    inbox: Inbox, hub: Hub, database_urls: DatabaseUrls, tmp_path: Path
) -> None:
    await inbox.db.execute(
        "insert into notification.requests (id, recipient_type, recipient_id, template_key, payload, state) "
        "values (pabal.uuid7(), 'dashboard_toast', $1, 'test.payment', '{}', 'pending')",
        MINA,
    )
    victim = await asyncio.create_subprocess_exec(
        sys.executable,
        DELIVERY,
        database_urls.main,
        str(database_urls.direct),
        tmp_path,
        stdout=asyncio.subprocess.PIPE,
    )
    assert victim.stdout
    try:
        assert await victim.stdout.readline() == b"arrived\n"
    finally:
        victim.kill()
        await victim.communicate()
    await until(lambda: nobody_holds(inbox))
    assert await inbox.listed() == []

    await inbox.db.execute("update notification.requests set leased_until = pabal.now()")
    async with hub.autocommit() as tx:
        [again] = await LANE.claim(tx, 1, MINUTE, "survivor")
    assert await delivered(hub, again)

    assert again.attempt == 2
    assert [toast.id for toast in await inbox.listed()] == [again.id]


async def nobody_holds(inbox: Inbox) -> bool:
    """Whether the server has noticed that the killed one is gone."""
    here = "(select oid from pg_database where datname = current_database())"
    query = f"select count(*) from pg_locks where locktype = 'advisory' and database = {here}"
    return await inbox.db.fetchval(query) == 0


async def test_two_batches_that_fill_the_same_inboxes_do_not_wait_in_a_circle(inbox: Inbox, hub: Hub) -> None:
    people_ = [str(number) for number in range(40)]
    for _ in range(5):
        held = [await inbox.request(person) for person in people_ * 2]
        one, two = held[: len(people_)], [*reversed(held[len(people_) :])]
        async with asyncio.timeout(5), asyncio.TaskGroup() as both:
            for batch in (one, two):
                both.create_task(filled(hub, batch))

    assert {len(await inbox.listed(person)) for person in people_} == {10}


async def filled(hub: Hub, batch: list[ClaimedNotification]) -> None:
    async with hub.transaction() as tx:
        assert len(await add_toasts(tx, [NewToast(each, HELLO) for each in batch])) == len(batch)


# What a person does


async def test_unseen_seen_read_put_away(inbox: Inbox) -> None:
    toast, other = await inbox.arrive(), await inbox.arrive()
    assert await inbox.unread() == 2

    states = [(await inbox.mark(toast, what)).state for what in (ToastAction.SEEN, ToastAction.READ)]
    assert (states, await inbox.unread()) == (["seen", "read"], 1)
    assert (await inbox.mark(toast, ToastAction.SEEN)).state == "read"

    assert (await inbox.mark(other, ToastAction.ARCHIVE)).state == "archived"
    assert ([each.id for each in await inbox.listed()], await inbox.unread()) == ([toast], 0)
    assert [each.id for each in await inbox.listed(archived=True)] == [other]


async def test_what_is_read_without_being_seen_was_seen(inbox: Inbox) -> None:
    read = await inbox.mark(await inbox.arrive(), ToastAction.READ)

    assert read.seen_at == read.read_at


async def test_doing_it_again_changes_nothing(inbox: Inbox, travel: Travel) -> None:
    toast = await inbox.arrive()
    before = await inbox.mark(toast, ToastAction.READ)
    await travel(MINUTE)

    again = await inbox.mark(toast, ToastAction.READ)

    assert (again.read_at, again.seq) == (before.read_at, before.seq)


async def test_everything_is_read_at_once(inbox: Inbox, hub: Hub) -> None:
    for person in (MINA, MINA, JUN):
        await inbox.arrive(person)
    async with hub.transaction() as tx:
        assert await mark_all_toasts_read(tx, MINA) == 2

    assert {toast.state for toast in await inbox.listed()} == {"read"}
    assert (await inbox.unread(), await inbox.unread(JUN)) == (0, 1)


async def test_nobody_touches_anothers_toast(inbox: Inbox) -> None:
    toast = await inbox.arrive(MINA)
    before = await inbox.listed(MINA)

    for what in ToastAction:
        for id_ in (toast, new_id()):
            with pytest.raises(NotFound, match="No such toast"):
                await inbox.mark(id_, what, JUN)

    assert [(each.state, each.seq) for each in await inbox.listed(MINA)] == [("unseen", before[0].seq)]
    assert await inbox.listed(JUN) == []


async def test_the_newest_arrival_is_on_top_however_long_ago_it_was_asked_for(inbox: Inbox, hub: Hub) -> None:
    planned = await inbox.request()
    second = await inbox.arrive()
    async with hub.transaction() as tx:
        await add_toast(tx, planned, HELLO)

    assert [each.id for each in await inbox.listed()] == [planned.id, second]


async def test_pages_follow_each_other_without_a_gap(inbox: Inbox, hub: Hub) -> None:
    ids = [await inbox.arrive() for _ in range(7)]
    found: list[UUID] = []
    before = None
    async with hub.autocommit() as tx:
        while page := await list_toasts(tx, MINA, before=before, limit=3):
            found += [each.id for each in page]
            before = page[-1].created_at, page[-1].id

    assert found == ids[::-1]


# Numbers


async def test_a_second_change_of_an_inbox_waits_for_the_first_and_gets_a_higher_number(inbox: Inbox, hub: Hub) -> None:
    first, second, elsewhere = await inbox.request(), await inbox.request(), await inbox.request(JUN)
    async with hub.transaction() as slow:
        await add_toast(slow, first, HELLO)
        behind = asyncio.create_task(arrived(hub, second))
        await until(lambda: somebody_waits(inbox))
        await arrived(hub, elsewhere)  # another person's inbox is nobody's concern
        assert not behind.done()
        assert await inbox.changes() == []
    await behind

    assert [change.id for change in await inbox.changes()] == [first.id, second.id]


async def arrived(hub: Hub, held: ClaimedNotification) -> None:
    async with hub.transaction() as tx:
        await add_toast(tx, held, HELLO)


async def somebody_waits(inbox: Inbox) -> bool:
    return await inbox.db.fetchval("select count(*) from pg_locks where locktype = 'advisory' and not granted") == 1


async def test_plain_sql_is_numbered_in_the_same_way(inbox: Inbox, database_urls: DatabaseUrls) -> None:
    toast, other = await inbox.arrive(), await inbox.arrive()
    assert database_urls.direct
    async with connected(database_urls.direct) as somebody:
        change = somebody.transaction()
        await change.start()
        await somebody.execute("update notification.toasts set seen_at = pabal.now() where id = $1", toast)
        behind = asyncio.create_task(inbox.mark(other, ToastAction.READ))
        await until(lambda: somebody_waits(inbox))
        await change.commit()
        await behind

    assert [each.id for each in await inbox.changes()] == [toast, other]
