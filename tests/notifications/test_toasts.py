"""Toasts are inserted once, marked by their person, and numbered in commit order."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from pabal.core.errors import NotFound
from pabal.core.ids import new_id
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
from support.clusters import open_connection
from support.inbox import JUN, MINA, MINUTE, Inbox
from support.wait import wait_until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
TOAST_PROCESS = Path(__file__).with_name("toast_process.py")
HELLO = RenderedText("Hello", "there")


# Insertion


async def test_a_toast_has_the_category_and_criticality_of_its_template(inbox: Inbox) -> None:
    await inbox.db.execute("insert into notification.people (discord_id, locale) values ($1, 'en')", MINA)
    mina_toast, jun_toast = (
        await inbox.insert_toast(category="antinuke"),
        await inbox.insert_toast(JUN, title=None, locale="en-US"),
    )

    [toast] = await inbox.list_toasts()
    assert (toast.id, toast.category, toast.criticality, toast.locale) == (mina_toast, "antinuke", "emergency", "en")
    assert (toast.title, toast.body, toast.state) == ("Paid", "Thank you.", "unseen")
    [other] = await inbox.list_toasts(JUN)
    assert (other.id, other.title, other.locale) == (jun_toast, None, "en-US")


async def test_a_toast_is_inserted_once(inbox: Inbox, hub: Hub) -> None:
    claimed = await inbox.request()
    inserted: list[bool] = []
    for body in ("first", "second"):
        async with hub.transaction() as tx:
            inserted.append(await add_toast(tx, claimed, RenderedText(None, body)))

    assert inserted == [True, False]
    assert [toast.body for toast in await inbox.list_toasts()] == ["first"]


async def test_only_a_dashboard_notification_becomes_a_toast(inbox: Inbox, hub: Hub) -> None:
    claimed = await inbox.request()
    await inbox.db.execute("update notification.requests set recipient_type = 'user_dm'")

    async with hub.transaction() as tx:
        assert not await add_toast(tx, claimed, HELLO)

    assert await inbox.list_toasts() == []


async def test_two_workers_that_deliver_one_notification_insert_one_toast(inbox: Inbox, hub: Hub) -> None:
    """The first worker settles after it lost its lease: nothing is settled twice."""
    first = await inbox.request()
    await inbox.db.execute("update notification.requests set leased_until = pabal.now()")
    async with hub.autocommit() as tx:
        [second] = await LANE.claim(tx, 1, MINUTE, "other")

    assert sorted(await asyncio.gather(deliver(hub, first), deliver(hub, second))) == [False, True]

    assert [toast.id for toast in await inbox.list_toasts()] == [first.id]
    assert await inbox.db.fetchval("select state from notification.requests") == "sent"


async def deliver(hub: Hub, claimed: ClaimedNotification) -> bool:
    """Settle and insert the toast in one transaction, as the dispatcher does. Return False if the lease was lost."""
    async with hub.transaction() as tx:
        if not await LANE.settle(tx, [Settlement(claimed, DONE)]):
            return False
        return await add_toast(tx, claimed, HELLO)


async def test_a_worker_killed_before_the_commit_leaves_the_toast_to_another(
    inbox: Inbox, hub: Hub, database_urls: DatabaseUrls, tmp_path: Path
) -> None:
    await inbox.db.execute(
        "insert into notification.requests (id, recipient_type, recipient_id, template_key, payload, state) "
        "values (pabal.uuid7(), 'dashboard_toast', $1, 'test.payment', '{}', 'pending')",
        MINA,
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        TOAST_PROCESS,
        database_urls.main,
        str(database_urls.direct),
        tmp_path,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    try:
        assert await process.stdout.readline() == b"arrived\n"
    finally:
        process.kill()
        await process.communicate()
    await wait_until(lambda: is_released(inbox))
    assert await inbox.list_toasts() == []

    await inbox.db.execute("update notification.requests set leased_until = pabal.now()")
    async with hub.autocommit() as tx:
        [reclaimed] = await LANE.claim(tx, 1, MINUTE, "survivor")
    assert await deliver(hub, reclaimed)

    assert reclaimed.attempt == 2
    assert [toast.id for toast in await inbox.list_toasts()] == [reclaimed.id]


SLOTS = 1024
"""Rows of each kind in pabal.row_locks."""


async def is_released(inbox: Inbox) -> bool:
    """Whether the server has released the locks of the killed process."""
    query = "select from pabal.row_locks where kind = 'toasts' for update skip locked"
    return len(await inbox.db.fetch(query)) == SLOTS


async def test_two_batches_for_the_same_inboxes_do_not_deadlock(inbox: Inbox, hub: Hub) -> None:
    people = [str(number) for number in range(40)]
    for _ in range(5):
        claimed = [await inbox.request(person) for person in people * 2]
        ascending, descending = claimed[: len(people)], [*reversed(claimed[len(people) :])]
        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
            for batch in (ascending, descending):
                tasks.create_task(insert_batch(hub, batch))

    assert {len(await inbox.list_toasts(person)) for person in people} == {10}


async def insert_batch(hub: Hub, batch: list[ClaimedNotification]) -> None:
    async with hub.transaction() as tx:
        assert len(await add_toasts(tx, [NewToast(request, HELLO) for request in batch])) == len(batch)


# Actions


async def test_a_toast_is_unseen_seen_read_and_archived(inbox: Inbox) -> None:
    toast, other = await inbox.insert_toast(), await inbox.insert_toast()
    assert await inbox.unread() == 2

    states = [(await inbox.mark(toast, action)).state for action in (ToastAction.SEEN, ToastAction.READ)]
    assert (states, await inbox.unread()) == (["seen", "read"], 1)
    assert (await inbox.mark(toast, ToastAction.SEEN)).state == "read"

    assert (await inbox.mark(other, ToastAction.ARCHIVE)).state == "archived"
    assert ([row.id for row in await inbox.list_toasts()], await inbox.unread()) == ([toast], 0)
    assert [row.id for row in await inbox.list_toasts(archived=True)] == [other]


async def test_reading_a_toast_marks_it_as_seen(inbox: Inbox) -> None:
    read = await inbox.mark(await inbox.insert_toast(), ToastAction.READ)

    assert read.seen_at == read.read_at


async def test_repeating_an_action_changes_nothing(inbox: Inbox, travel: Travel) -> None:
    toast = await inbox.insert_toast()
    before = await inbox.mark(toast, ToastAction.READ)
    await travel(MINUTE)

    repeated = await inbox.mark(toast, ToastAction.READ)

    assert (repeated.read_at, repeated.seq) == (before.read_at, before.seq)


async def test_all_toasts_are_marked_as_read(inbox: Inbox, hub: Hub) -> None:
    for person in (MINA, MINA, JUN):
        await inbox.insert_toast(person)
    async with hub.transaction() as tx:
        assert await mark_all_toasts_read(tx, MINA) == 2

    assert {toast.state for toast in await inbox.list_toasts()} == {"read"}
    assert (await inbox.unread(), await inbox.unread(JUN)) == (0, 1)


async def test_a_person_cannot_mark_the_toast_of_another(inbox: Inbox) -> None:
    toast = await inbox.insert_toast(MINA)
    before = await inbox.list_toasts(MINA)

    for action in ToastAction:
        for toast_id in (toast, new_id()):
            with pytest.raises(NotFound, match="No such toast"):
                await inbox.mark(toast_id, action, JUN)

    assert [(row.state, row.seq) for row in await inbox.list_toasts(MINA)] == [("unseen", before[0].seq)]
    assert await inbox.list_toasts(JUN) == []


async def test_toasts_are_listed_by_arrival_not_by_request_time(inbox: Inbox, hub: Hub) -> None:
    requested_first = await inbox.request()
    inserted_first = await inbox.insert_toast()
    async with hub.transaction() as tx:
        await add_toast(tx, requested_first, HELLO)

    assert [row.id for row in await inbox.list_toasts()] == [requested_first.id, inserted_first]


async def test_pages_have_no_gaps(inbox: Inbox, hub: Hub) -> None:
    ids = [await inbox.insert_toast() for _ in range(7)]
    listed: list[UUID] = []
    before = None
    async with hub.autocommit() as tx:
        while page := await list_toasts(tx, MINA, before=before, limit=3):
            listed += [toast.id for toast in page]
            before = page[-1].created_at, page[-1].id

    assert listed == ids[::-1]


# Sequence numbers


async def test_concurrent_changes_of_an_inbox_are_numbered_in_commit_order(inbox: Inbox, hub: Hub) -> None:
    first, second, other_inbox = await inbox.request(), await inbox.request(), await inbox.request(JUN)
    async with hub.transaction() as first_tx:
        await add_toast(first_tx, first, HELLO)
        waiting = asyncio.create_task(insert_toast(hub, second))
        await wait_until(lambda: is_blocked(inbox))
        await insert_toast(hub, other_inbox)  # another inbox is not blocked
        assert not waiting.done()
        assert await inbox.changes() == []
    await waiting

    assert [change.id for change in await inbox.changes()] == [first.id, second.id]


async def insert_toast(hub: Hub, claimed: ClaimedNotification) -> None:
    async with hub.transaction() as tx:
        await add_toast(tx, claimed, HELLO)


async def is_blocked(inbox: Inbox) -> bool:
    return (
        await inbox.db.fetchval("select count(*) from pg_locks where locktype = 'transactionid' and not granted") == 1
    )


async def test_changes_by_plain_sql_are_numbered_as_well(inbox: Inbox, database_urls: DatabaseUrls) -> None:
    toast, other = await inbox.insert_toast(), await inbox.insert_toast()
    assert database_urls.direct
    async with open_connection(database_urls.direct) as writer:
        transaction = writer.transaction()
        await transaction.start()
        await writer.execute("update notification.toasts set seen_at = pabal.now() where id = $1", toast)
        waiting = asyncio.create_task(inbox.mark(other, ToastAction.READ))
        await wait_until(lambda: is_blocked(inbox))
        await transaction.commit()
        await waiting

    assert [change.id for change in await inbox.changes()] == [toast, other]
