"""Publishing inside one's own transaction: with it, or not at all, whichever driver it is."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx2
import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from client.connections import HubAddress
from conftest import connection
from pabal.hub import DatabaseUrls, open_hub
from pabal.hub import Hub as RealHub
from pabal.settings import Settings
from pabal_client import App, AsyncClient
from support.notifications import PAID, register_builtin_templates
from support.oauth_client import register_oauth_service
from support.server import serve_hub

pytestmark = pytest.mark.anyio

SHOP = App("shop")


@dataclass(frozen=True, slots=True)
class Program:
    """A connection of a supported driver, and how to publish and notify on it."""

    publish: Callable[..., Awaitable[UUID]]
    notify: Callable[..., Awaitable[UUID]]
    commit: Callable[[], Awaitable[object]]
    rollback: Callable[[], Awaitable[object]]


@asynccontextmanager
async def on_asyncpg(url: str) -> AsyncGenerator[Program]:
    async with connection(url) as raw:
        await raw.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        within = raw.transaction()
        await within.start()

        async def publish(*args: Any, **kwargs: Any) -> UUID:
            return await SHOP.publish(raw, *args, **kwargs)

        async def notify(*args: Any, **kwargs: Any) -> UUID:
            return await SHOP.notify(raw, *args, **kwargs)

        yield Program(publish, notify, within.commit, within.rollback)


@asynccontextmanager
async def on_psycopg(url: str) -> AsyncGenerator[Program]:
    async with await psycopg.AsyncConnection[Any].connect(url) as raw:
        raw.row_factory = dict_row

        async def publish(*args: Any, **kwargs: Any) -> UUID:
            return await SHOP.publish(raw, *args, **kwargs)

        async def notify(*args: Any, **kwargs: Any) -> UUID:
            return await SHOP.notify(raw, *args, **kwargs)

        yield Program(publish, notify, raw.commit, raw.rollback)


@asynccontextmanager
async def on_sqlalchemy(url: str) -> AsyncGenerator[Program]:
    engine = create_async_engine(make_url(url).set(drivername="postgresql+asyncpg"))
    try:
        async with engine.connect() as raw:

            async def publish(*args: Any, **kwargs: Any) -> UUID:
                return await SHOP.publish(raw, *args, **kwargs)

            async def notify(*args: Any, **kwargs: Any) -> UUID:
                return await SHOP.notify(raw, *args, **kwargs)

            yield Program(publish, notify, raw.commit, raw.rollback)
    finally:
        await engine.dispose()


@asynccontextmanager
async def on_psycopg_sync(url: str) -> AsyncGenerator[Program]:
    with await asyncio.to_thread(psycopg.connect, url) as raw:
        yield sync_program(raw)


@asynccontextmanager
async def on_sqlalchemy_sync(url: str) -> AsyncGenerator[Program]:
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    try:
        with await asyncio.to_thread(engine.connect) as raw:
            yield sync_program(raw)
    finally:
        engine.dispose()


def sync_program(raw: Any) -> Program:
    """A sync connection, whose calls run in threads."""

    async def publish(*args: Any, **kwargs: Any) -> UUID:
        return await asyncio.to_thread(SHOP.publish_sync, raw, *args, **kwargs)

    async def notify(*args: Any, **kwargs: Any) -> UUID:
        return await asyncio.to_thread(SHOP.notify_sync, raw, *args, **kwargs)

    async def commit() -> None:
        await asyncio.to_thread(raw.commit)

    async def rollback() -> None:
        await asyncio.to_thread(raw.rollback)

    return Program(publish, notify, commit, rollback)


Driver = Callable[[str], AbstractAsyncContextManager[Program]]
DRIVERS: dict[str, Driver] = {
    "asyncpg": on_asyncpg,
    "psycopg": on_psycopg,
    "psycopg, waiting": on_psycopg_sync,
    "sqlalchemy on asyncpg": on_sqlalchemy,
    "sqlalchemy on psycopg, waiting": on_sqlalchemy_sync,
}


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Driver:
    return DRIVERS[request.param]


async def test_a_committed_event_is_delivered_with_all_its_fields(
    driver: Driver, database_urls: DatabaseUrls, shop: HubAddress, billing: HubAddress
) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    async with driver(database_urls.main) as program, billing.client() as payer:
        published = await program.publish(
            "order.placed",
            {"이름": "파발's", "at": soon},
            target="billing",
            priority=1,
            max_retries=0,
            expires_at=soon,
            idempotency_key="order-7",
            correlation_id="c-1",
        )
        before = await payer.claim()
        await program.commit()
        [event] = await payer.claim()
        story = await payer.get_event(published)

    assert before == []
    assert event.id == published
    assert event.source_service == "shop"
    assert event.payload["이름"] == "파발's"
    assert datetime.fromisoformat(event.payload["at"]) == soon
    assert (event.max_retries, event.correlation_id) == (0, "c-1")
    assert (story["priority"], story["idempotency_key"]) == (1, "order-7")
    assert datetime.fromisoformat(story["expires_at"]) == soon


async def test_a_rolled_back_event_never_existed(
    driver: Driver, database_urls: DatabaseUrls, shop: HubAddress, billing: HubAddress
) -> None:
    async with driver(database_urls.main) as program:
        published = await program.publish("order.placed", target="billing")
        await program.rollback()

    async with connection(database_urls.main) as database:
        assert await database.fetchval("select count(*) from event_queue where id = $1", published) == 0
    async with billing.client() as payer:
        assert await payer.claim() == []


async def test_a_notification_is_committed_or_rolled_back_with_the_rest(
    driver: Driver, hub: RealHub, database_urls: DatabaseUrls, shop: HubAddress
) -> None:
    await register_builtin_templates(hub)
    person, later = str(uuid4()), datetime.now(UTC) + timedelta(hours=1)
    recipient = ("dashboard_toast", person, "payment.succeeded", PAID)
    async with driver(database_urls.main) as program:
        event = await program.publish("order.paid")
        kept = await program.notify(*recipient, dedupe_key="k", event_id=event, scheduled_at=later, locale="en")
        await program.commit()
    async with driver(database_urls.main) as program:
        repeated = await program.notify(*recipient, dedupe_key="k")
        dropped = await program.notify(*recipient)
        await program.rollback()

    async with connection(database_urls.main) as database:
        [row] = await database.fetch("select * from notification.requests where recipient_id = $1", person)
    assert repeated == row["id"] == kept != dropped
    assert (row["event_id"], row["scheduled_at"], row["locale"]) == (event, later, "en")
    assert (row["template_key"], row["source_service"]) == ("payment.succeeded", "shop")


async def test_listeners_are_notified_at_the_commit(
    database_urls: DatabaseUrls, shop: HubAddress, billing: HubAddress
) -> None:
    async with on_asyncpg(database_urls.main) as program, billing.client() as payer:
        looking = asyncio.create_task(payer.claim(wait=20.0))
        published = await program.publish("order.placed", target="billing")
        await program.commit()

        assert [event.id for event in await looking] == [published]


async def test_an_event_committed_while_no_hub_runs_is_delivered_when_one_does(
    settings: Settings, database_urls: DatabaseUrls
) -> None:
    async with open_hub(settings, database_urls) as first, serve_hub(first) as address:
        secrets = {name: (await enrolled(first, address, name)).secret for name in ("shop", "billing")}

    async with on_asyncpg(database_urls.main) as program:
        published = await program.publish("order.placed", target="billing")
        await program.commit()

    async with (
        open_hub(settings, database_urls) as second,
        serve_hub(second) as address,
        AsyncClient(address, "billing", secrets["billing"]) as payer,
    ):
        assert [event.id for event in await payer.claim(wait=5.0)] == [published]


async def enrolled(hub: RealHub, address: str, name: str) -> HubAddress:
    async with httpx2.AsyncClient(base_url=address) as web:
        there = await register_oauth_service(hub, web, name, "write")
    return HubAddress(address, there.name, there.secret)


async def test_a_key_publishes_once_over_every_interface(database_urls: DatabaseUrls, shop: HubAddress) -> None:
    async with shop.client() as seller, on_asyncpg(database_urls.main) as program:
        first = await seller.publish("order.placed", {"n": 1}, idempotency_key="k")
        second = await program.publish("order.placed", {"n": 1}, idempotency_key="k")

    assert first.id == second


async def test_a_session_of_sqlalchemy_is_refused_with_what_to_pass_instead() -> None:
    async with AsyncSession() as session:
        with pytest.raises(
            TypeError, match=r"^AsyncSession is no connection .* pass session\.connection\(\), with await"
        ):
            await SHOP.publish(session, "order.placed")
    with Session() as session, pytest.raises(TypeError, match=r"^Session is no connection .* session\.connection\(\)"):
        SHOP.notify_sync(session, "user_dm", "1", "t")


async def test_an_unknown_option_is_a_type_error_and_nothing_is_sent() -> None:
    with pytest.raises(TypeError, match="unexpected options: target_service; it has target, "):
        await SHOP.publish(None, "order.placed", target_service="billing")  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="no service"):
        await App().publish(None, "order.placed")
    with pytest.raises(TypeError, match="unexpected options: dedupe; it has guild_id, "):
        await SHOP.notify(None, "user_dm", "1", "t", dedupe="k")  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="at least one event type"):
        SHOP.on()
