"""A process whose database another version of Pabal has migrated."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import pytest

from pabal.core.errors import SchemaMismatch, Unavailable
from pabal.db.errors import DatabaseError, RetryableError
from pabal.db.queries import parse_queries
from pabal.events.consume.lane import ClaimedEvent
from pabal.events.publish.publish import EventDraft
from pabal.hub import Hub
from pabal.queue.outcome import DONE, Outcome
from pabal.relay.webhook.skill_response import chat_texts
from relay.skills import USE_CALLBACK, send_message, text_of
from support.clusters import Connection
from support.relay_rows import Chat
from support.wait import wait_until
from support.worker import run_worker

pytestmark = pytest.mark.anyio

NEWER = "29990101000000"
BREAKING = """
alter table public.event_queue rename column payload to content;
alter table public.inbound_messages rename column normalized to parsed;
"""
REVERSE = """
alter table public.event_queue rename column content to payload;
alter table public.inbound_messages rename column parsed to normalized;
"""
ADDING = """
alter table public.event_queue add column newer text;
alter table public.inbound_messages add column newer text not null default '';
"""
NOTHING = "select"
DRAFT = EventDraft("minu_find", "order.paid", target="minu_build")
READ_MISSING, READ_ALL = parse_queries("""
-- name: read_missing
select missing from public.event_queue
-- name: read_all
select * from public.services limit 1
""")


@asynccontextmanager
async def newer_schema(owner: Connection, change: str = NOTHING, reverse: str = NOTHING) -> AsyncGenerator[None]:
    """The schema of a newer version, which is reverted at the end."""
    await owner.execute(change)
    await owner.execute("insert into pabal.schema_migrations (version, name, checksum) values ($1, 'newer', '')", NEWER)
    yield
    await owner.execute(reverse)
    await owner.execute("delete from pabal.schema_migrations where version = $1", NEWER)


async def is_ready(web: httpx2.AsyncClient) -> bool:
    return (await web.get("/readyz")).status_code == 200


async def find_mismatch(hub: Hub) -> None:
    """Run a statement that does not fit."""
    with pytest.raises(SchemaMismatch):
        async with hub.autocommit() as tx:
            await tx.value(READ_MISSING)


async def test_a_statement_that_does_not_fit_a_newer_schema_is_refused_as_unavailable(
    hub: Hub, web: httpx2.AsyncClient, owner: Connection
) -> None:
    bot = await Chat(owner).owner(answer_mode="callback")
    await Chat(owner).conversation(bot)
    accepted = await hub.publisher.put(DRAFT)
    assert await send_message(web, "before") == USE_CALLBACK
    async with newer_schema(owner, BREAKING, REVERSE):
        with pytest.raises(SchemaMismatch, match=f"the newest migration of the database is {NEWER}"):
            await hub.publisher.put(DRAFT)
        poll = await web.get("/openclaw/messages", headers=bot.header)
        ready, alive, health = [await web.get(path) for path in ("/readyz", "/healthz", "/health")]

        assert text_of(await send_message(web, "during")) == chat_texts(hub.settings.chat_language).unavailable
        assert (poll.status_code, poll.headers["retry-after"]) == (503, "2")
        assert (ready.status_code, ready.json()["code"]) == (503, "unavailable")
        assert "Restart this process" in ready.json()["detail"]
        assert (alive.status_code, health.status_code) == (200, 503)

    await wait_until(lambda: is_ready(web))
    messages = (await web.get("/openclaw/messages", headers=bot.header)).json()["messages"]
    assert [message["normalized"]["text"] for message in messages] == ["before"]
    assert await owner.fetch("select id from event_queue where event_type = 'order.paid'") == [(accepted.id,)]
    assert (await hub.publisher.put(DRAFT)).id != accepted.id


async def test_a_schema_that_was_only_added_to_stops_nothing(
    hub: Hub, web: httpx2.AsyncClient, owner: Connection
) -> None:
    bot = await Chat(owner).owner(answer_mode="callback")
    await Chat(owner).conversation(bot)
    assert await send_message(web, "before") == USE_CALLBACK
    await hub.publisher.put(DRAFT)
    async with newer_schema(owner, ADDING):
        assert await send_message(web, "after") == USE_CALLBACK
        await hub.publisher.put(DRAFT)
        messages = (await web.get("/openclaw/messages", headers=bot.header)).json()["messages"]

        assert [message["normalized"]["text"] for message in messages] == ["before", "after"]
        assert await is_ready(web)


async def test_a_rejected_statement_on_the_own_schema_is_no_mismatch(hub: Hub, web: httpx2.AsyncClient) -> None:
    with pytest.raises(DatabaseError, match="missing"):
        async with hub.autocommit() as tx:
            await tx.value(READ_MISSING)

    assert await is_ready(web)


async def test_a_rejected_statement_of_a_transaction_is_checked_as_well(hub: Hub, owner: Connection) -> None:
    async with newer_schema(owner):
        with pytest.raises(SchemaMismatch):
            async with hub.transaction() as tx:
                await tx.value(READ_MISSING)

    assert hub.db.connections_in_use() == 0


async def test_a_process_that_does_not_fit_claims_nothing_until_it_fits(hub: Hub, owner: Connection) -> None:
    handled = asyncio.Event()

    async def handle(_event: ClaimedEvent) -> Outcome:
        handled.set()
        return DONE

    async with newer_schema(owner):
        await find_mismatch(hub)
        await hub.publisher.put(DRAFT)
        async with run_worker(hub, handle) as worker:
            with pytest.raises(SchemaMismatch):
                await worker._claim_round(is_poll=True)
            assert not handled.is_set()
            await owner.execute("delete from pabal.schema_migrations where version = $1", NEWER)

            async with asyncio.timeout(15):
                await handled.wait()


async def test_a_schema_without_migrations_does_not_fit(hub: Hub, owner: Connection) -> None:
    await owner.execute("alter table pabal.schema_migrations rename to gone")

    with pytest.raises(Unavailable, match="the newest migration of the database is none"):
        async with hub.autocommit() as tx:
            await tx.value(READ_MISSING)


async def test_a_statement_that_was_prepared_before_a_migration_can_be_retried(hub: Hub, owner: Connection) -> None:
    async with hub.transaction() as tx:
        await tx.run(READ_ALL)
        await tx.column(READ_ALL)
    await owner.execute("alter table public.services add column newer text")

    with pytest.raises(RetryableError):
        async with hub.transaction() as tx:
            await tx.column(READ_ALL)

    async with hub.transaction() as tx:
        await tx.column(READ_ALL)
