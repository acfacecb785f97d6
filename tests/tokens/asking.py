"""What services ask of a hub, without a web server in between; and what the tables then say."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

from clusters import Connection, connected
from pabal.core.actor import Actor
from pabal.core.errors import BadGrant, BadToken
from pabal.settings import Settings
from pabal.tokens import permission, revoke, services
from pabal.tokens.clients import Client, authenticate
from pabal.tokens.issue import issue
from pabal.tokens.mint import Pair
from pabal.tokens.refresh import refresh
from pabal.tokens.standing import Standing, standing
from pabal.wiring import Hub, Roads, open_hub
from patience import WAITING, until

SHOP = "shop"
BY = Actor(SHOP, "192.0.2.7", "shop/1.0", "request-1")


async def added(hub: Hub, name: str = SHOP, permissions: Sequence[str] = ("write",)) -> str:
    """Add a service; its secret."""
    async with hub.transaction() as tx:
        return (await services.add(tx, name, permissions, BY))[1]


async def signed_in(
    hub: Hub, secret: str, name: str = SHOP, *, refreshable: bool = True, issued_by: UUID | None = None
) -> Pair:
    """Show the secret and get a pair with everything that is allowed."""
    async with hub.autocommit() as tx:
        client = await authenticate(tx, name, secret, BY)
        permissions = permission.granted((), client.allowed)
        return await issue(tx, hub.mint, client, permissions, BY, refreshable=refreshable, issued_by=issued_by)


async def joined(hub: Hub, name: str = SHOP) -> Pair:
    """A new service, and its first pair."""
    return await signed_in(hub, await added(hub, name), name)


async def answered(hub: Hub, token: str | None, name: str = SHOP, asked: Sequence[str] = ()) -> Pair | BadGrant:
    """What a service hears that brings this refresh token."""
    assert token is not None
    async with hub.transaction() as tx:
        return await refresh(tx, hub.mint, name, token, asked=asked, by=BY)


async def refreshed(hub: Hub, token: str | None, name: str = SHOP) -> Pair:
    pair = await answered(hub, token, name)
    assert isinstance(pair, Pair), pair
    return pair


async def refused(hub: Hub, token: str | None, name: str = SHOP) -> str:
    """Why a refresh token is good for nothing."""
    refusal = await answered(hub, token, name)
    assert isinstance(refusal, BadGrant), refusal
    return str(refusal)


async def guess(hub: Hub, name: str = SHOP, secret: str = "wrong", address: str | None = "203.0.113.1") -> Client:
    """Show a secret that may be one, from somewhere."""
    async with hub.autocommit() as tx:
        return await authenticate(tx, name, secret, replace(BY, client_ip=address))


async def look_up(hub: Hub, token: str | None) -> Standing | None:
    assert token is not None
    async with hub.autocommit() as tx:
        return await standing(tx, token)


async def is_good(hub: Hub, token: str | None) -> bool:
    """As the table says."""
    found = await look_up(hub, token)
    return found is not None and found.good


async def comes_in(hub: Hub, token: str) -> bool:
    """As a protected door of this hub says."""
    try:
        await hub.tokens.verify(token)
    except BadToken:
        return False
    return True


async def end_access(hub: Hub, token: str) -> bool:
    found = await look_up(hub, token)
    assert found is not None
    async with hub.transaction() as tx:
        return await revoke.access(tx, found.id, BY)


async def end_family(hub: Hub, family: UUID) -> bool:
    async with hub.transaction() as tx:
        return await revoke.family(tx, family, revoke.ASKED, BY)


async def switch(hub: Hub, *, active: bool, name: str = SHOP) -> None:
    async with hub.transaction() as tx:
        await services.set_active(tx, name, BY, active=active)


@asynccontextmanager
async def two_hubs(settings: Settings, roads: Roads) -> AsyncGenerator[tuple[Hub, Hub]]:
    """Two hubs on one database, each with its own connections, as two processes would be."""
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(open_hub(settings, roads))
        there = await stack.enter_async_context(open_hub(settings, roads))
        yield here, there


@asynccontextmanager
async def owner(roads: Roads) -> AsyncGenerator[Connection]:
    async with connected(roads.direct or roads.work) as connection:
        yield connection


async def row(roads: Roads, statement: str, *given: object) -> dict[str, Any]:
    async with owner(roads) as connection:
        found = await connection.fetchrow(statement, *given)
    assert found is not None
    return dict(found)


async def count(roads: Roads, statement: str, *given: object) -> int:
    async with owner(roads) as connection:
        return await connection.fetchval(statement, *given)


LIVE = """
select (select count(*) from public.service_tokens where family_id = $1 and not is_revoked)
     + (select count(*) from public.refresh_tokens where family_id = $1 and revoked_at is null)
     + (select count(*) from public.token_families where id = $1 and revoked_at is null)
"""


async def alive(roads: Roads, family: UUID) -> int:
    """Rows of a family, itself included, that nobody has marked as ended."""
    return await count(roads, LIVE, family)


DEEDS = "select count(*) from pabal.audit_log where action = $1 and subject = $2"
EVENTS = "select count(*) from public.event_queue where event_type = $1 and payload ->> 'service' = $2"


async def wait_for_a_lock(roads: Roads, callers: int = 1) -> None:
    """Return when so many wait for a lock that somebody else holds."""
    async with owner(roads) as connection:

        async def they_wait() -> bool:
            return await connection.fetchval(WAITING) == callers

        await until(they_wait)
