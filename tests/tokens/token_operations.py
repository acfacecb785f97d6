"""Token operations of a service without a web server, and queries of the tables."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

from pabal.core.actor import Actor
from pabal.core.errors import InvalidGrant, InvalidToken
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from pabal.tokens import revoke
from pabal.tokens.issue import OAuthClient, authenticate_client, issue_tokens
from pabal.tokens.issuer import TokenPair
from pabal.tokens.permission import grant_permissions
from pabal.tokens.refresh import refresh_tokens
from pabal.tokens.revoke import revoke_access_token, revoke_family
from pabal.tokens.services import add_service, set_service_active
from pabal.tokens.verify import TokenState, find_token_state
from support.clusters import Connection, open_connection
from support.wait import COUNT_LOCK_WAITS, wait_until

SHOP = "shop"
BY = Actor(SHOP, "192.0.2.7", "shop/1.0", "request-1")


async def add_shop(hub: Hub, name: str = SHOP, permissions: Sequence[str] = ("write",)) -> str:
    """Add a service; returns its secret."""
    async with hub.transaction() as tx:
        return (await add_service(tx, name, permissions, BY))[1]


async def issue_pair(
    hub: Hub, secret: str, name: str = SHOP, *, refreshable: bool = True, issued_by: UUID | None = None
) -> TokenPair:
    """Authenticate with the secret and issue a pair with all allowed permissions."""
    async with hub.autocommit() as tx:
        client = await authenticate_client(tx, name, secret, BY)
        permissions = grant_permissions((), client.allowed)
        return await issue_tokens(
            tx, hub.token_issuer, client, permissions, BY, refreshable=refreshable, issued_by=issued_by
        )


async def add_shop_with_tokens(hub: Hub, name: str = SHOP) -> TokenPair:
    """Add a service and issue its first pair."""
    return await issue_pair(hub, await add_shop(hub, name), name)


async def present_refresh_token(
    hub: Hub, token: str | None, name: str = SHOP, asked: Sequence[str] = ()
) -> TokenPair | InvalidGrant:
    """The result of presenting this refresh token."""
    assert token is not None
    async with hub.transaction() as tx:
        return await refresh_tokens(tx, hub.token_issuer, name, token, requested=asked, actor=BY)


async def refresh_pair(hub: Hub, token: str | None, name: str = SHOP) -> TokenPair:
    pair = await present_refresh_token(hub, token, name)
    assert isinstance(pair, TokenPair), pair
    return pair


async def refusal_of(hub: Hub, token: str | None, name: str = SHOP) -> str:
    """The error for an invalid refresh token."""
    refusal = await present_refresh_token(hub, token, name)
    assert isinstance(refusal, InvalidGrant), refusal
    return str(refusal)


async def authenticate_with(
    hub: Hub, name: str = SHOP, secret: str = "wrong", address: str | None = "203.0.113.1"
) -> OAuthClient:
    """Authenticate with any secret, from any address."""
    async with hub.autocommit() as tx:
        return await authenticate_client(tx, name, secret, replace(BY, client_ip=address))


async def load_token_state(hub: Hub, token: str | None) -> TokenState | None:
    assert token is not None
    async with hub.autocommit() as tx:
        return await find_token_state(tx, token)


async def is_valid_token(hub: Hub, token: str | None) -> bool:
    """Whether the token is valid according to the table."""
    state = await load_token_state(hub, token)
    return state is not None and state.is_valid


async def is_accepted(hub: Hub, token: str) -> bool:
    """Whether a protected endpoint of this hub accepts the token."""
    try:
        await hub.token_verifier.verify(token)
    except InvalidToken:
        return False
    return True


async def revoke_access(hub: Hub, token: str) -> bool:
    state = await load_token_state(hub, token)
    assert state is not None
    async with hub.transaction() as tx:
        return await revoke_access_token(tx, state.id, BY)


async def revoke_whole_family(hub: Hub, family: UUID) -> bool:
    async with hub.transaction() as tx:
        return await revoke_family(tx, family, revoke.REVOKED_ON_REQUEST, BY)


async def set_shop_active(hub: Hub, *, active: bool, name: str = SHOP) -> None:
    async with hub.transaction() as tx:
        await set_service_active(tx, name, BY, active=active)


@asynccontextmanager
async def open_two_hubs(settings: Settings, database_urls: DatabaseUrls) -> AsyncGenerator[tuple[Hub, Hub]]:
    """Two hubs on one database, each with its own connections, like two processes."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(open_hub(settings, database_urls))
        second = await stack.enter_async_context(open_hub(settings, database_urls))
        yield first, second


@asynccontextmanager
async def owner_connection(database_urls: DatabaseUrls) -> AsyncGenerator[Connection]:
    async with open_connection(database_urls.direct or database_urls.main) as connection:
        yield connection


async def fetch_row(database_urls: DatabaseUrls, statement: str, *arguments: object) -> dict[str, Any]:
    async with owner_connection(database_urls) as connection:
        record = await connection.fetchrow(statement, *arguments)
    assert record is not None
    return dict(record)


async def fetch_count(database_urls: DatabaseUrls, statement: str, *arguments: object) -> int:
    async with owner_connection(database_urls) as connection:
        return await connection.fetchval(statement, *arguments)


COUNT_LIVE_ROWS = """
select (select count(*) from public.service_tokens where family_id = $1 and not is_revoked)
     + (select count(*) from public.refresh_tokens where family_id = $1 and revoked_at is null)
     + (select count(*) from public.token_families where id = $1 and revoked_at is null)
"""


async def count_live_rows(database_urls: DatabaseUrls, family: UUID) -> int:
    """The number of rows of a family, including its own, that are not marked as ended."""
    return await fetch_count(database_urls, COUNT_LIVE_ROWS, family)


COUNT_AUDIT_ENTRIES = "select count(*) from pabal.audit_log where action = $1 and subject = $2"
COUNT_EVENTS = "select count(*) from public.event_queue where event_type = $1 and payload ->> 'service' = $2"


async def wait_for_locks(database_urls: DatabaseUrls, callers: int = 1) -> None:
    """Wait until this many sessions wait for a lock."""
    async with owner_connection(database_urls) as connection:

        async def are_waiting() -> bool:
            return await connection.fetchval(COUNT_LOCK_WAITS) == callers

        await wait_until(are_waiting)
