"""Every end of a token has an audit entry: by the hub, by plain SQL, and by expiry."""

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from pabal.core.actor import Actor
from pabal.hub import DatabaseUrls, Hub
from pabal.tokens import revoke
from pabal.tokens.revoke import expire_tokens, purge_token_families, revoke_access_token, revoke_families, revoke_family
from support.clusters import Connection, open_connection
from tokens.token_operations import SHOP, add_shop, add_shop_with_tokens, issue_pair, present_refresh_token

pytestmark = pytest.mark.anyio
Travel = Callable[[timedelta], Awaitable[None]]
MINA = Actor("operator:mina", "192.0.2.9", request_id="request-9")
ON_REQUEST = revoke.REVOKED_ON_REQUEST
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


async def entries(owner: Connection, after: int = 0) -> list[tuple[str, str, str | None]]:
    """Actor, action and subject of the entries after an id."""
    rows = await owner.fetch("select actor, action, subject from pabal.audit_log where id > $1 order by id", after)
    return [(row["actor"], row["action"], row["subject"]) for row in rows]


async def last_entry(owner: Connection) -> int:
    return await owner.fetchval("select coalesce(max(id), 0) from pabal.audit_log")


async def details(owner: Connection) -> dict[str, Any]:
    return json.loads(await owner.fetchval("select details from pabal.audit_log order by id desc limit 1"))


@pytest.mark.parametrize(
    ("statement", "key"),
    [
        ("update public.token_families set revoked_at = pabal.now()", "family"),
        ("update public.service_tokens set is_revoked = true, revoked_at = pabal.now()", "token"),
        ("update public.refresh_tokens set revoked_at = pabal.now()", "refresh_token"),
        ("delete from public.token_families", "family"),
        ("delete from public.refresh_tokens", "refresh_token"),
    ],
)
async def test_a_revocation_by_plain_sql_has_one_entry(hub: Hub, owner: Connection, statement: str, key: str) -> None:
    await add_shop_with_tokens(hub)
    before = await last_entry(owner)

    await owner.execute(statement)

    assert await entries(owner, before) == [("sql:pabal", "token.revoked", SHOP)]
    found = await details(owner)
    assert key in found
    assert (found["via"], found.get("deleted", False)) == ("sql", statement.startswith("delete"))
    await owner.execute(statement)
    assert len(await entries(owner, before)) == 1


async def test_a_deleted_access_token_takes_its_refresh_token_along(hub: Hub, owner: Connection) -> None:
    await add_shop_with_tokens(hub)
    before = await last_entry(owner)

    await owner.execute("delete from public.service_tokens")

    assert await entries(owner, before) == [("sql:pabal", "token.revoked", SHOP)] * 2


async def test_an_expired_access_token_deleted_with_a_valid_refresh_token(
    hub: Hub, owner: Connection, travel: Travel
) -> None:
    """The cascade ends a refresh token that was still valid."""
    await add_shop_with_tokens(hub)
    await travel(2 * HOUR)
    before = await last_entry(owner)

    await owner.execute("delete from public.service_tokens")

    assert await entries(owner, before) == [("sql:pabal", "token.revoked", SHOP)]
    assert "refresh_token" in await details(owner)


async def test_a_bulk_revocation_has_one_entry_for_each_token(hub: Hub, owner: Connection) -> None:
    secret = await add_shop(hub)
    for _ in range(20):
        await issue_pair(hub, secret)
    before = await last_entry(owner)

    await owner.execute("update public.service_tokens set is_revoked = true, revoked_at = pabal.now()")

    assert await entries(owner, before) == [("sql:pabal", "token.revoked", SHOP)] * 20


async def test_the_login_that_revoked_is_named(hub: Hub, owner: Connection, database_urls: DatabaseUrls) -> None:
    await add_shop_with_tokens(hub)
    before = await last_entry(owner)
    async with open_connection(database_urls.main) as conn:
        await conn.execute("delete from public.token_families")

    assert await entries(owner, before) == [("sql:pabal_hub", "token.revoked", SHOP)]


@pytest.mark.parametrize(
    "statement",
    [
        "update public.token_families set revoked_at = null",
        "update public.token_families set expires_at = expires_at + interval '1 day'",
        """update public.token_families set permissions = '["read"]'""",
        "update public.service_tokens set expires_at = expires_at - interval '1 minute'",
        "update public.service_tokens set is_revoked = false, revoked_at = null",
        "update public.refresh_tokens set token_hash = token_hash || 'x'",
        "update public.refresh_tokens set revoked_at = null",
    ],
)
async def test_a_change_of_what_a_token_allows_has_an_entry(hub: Hub, owner: Connection, statement: str) -> None:
    await add_shop_with_tokens(hub)
    if "revoked_at = null" in statement:
        async with hub.transaction() as tx:
            await revoke_family(tx, await owner.fetchval("select id from public.token_families"), ON_REQUEST, MINA)
    before = await last_entry(owner)

    await owner.execute(statement)

    assert await entries(owner, before) == [("sql:pabal", "token.changed", SHOP)]


@pytest.mark.parametrize("table", ["public.token_families", "public.service_tokens", "public.refresh_tokens"])
async def test_a_change_of_other_columns_has_none(hub: Hub, owner: Connection, table: str) -> None:
    await add_shop_with_tokens(hub)
    before = await last_entry(owner)

    await owner.execute(f"update {table} set created_at = created_at")

    assert await entries(owner, before) == []


async def test_the_hub_writes_one_entry_for_each_revocation(hub: Hub, owner: Connection) -> None:
    secret = await add_shop(hub)
    pairs = [await issue_pair(hub, secret) for _ in range(5)]
    token = await owner.fetchval("select id from public.service_tokens where family_id = $1", pairs[0].family_id)
    before = await last_entry(owner)
    async with hub.transaction() as tx:
        assert await revoke_access_token(tx, token, MINA)
        assert not await revoke_access_token(tx, token, MINA)
        assert await revoke_family(tx, pairs[1].family_id, ON_REQUEST, MINA)
        assert not await revoke_family(tx, pairs[1].family_id, ON_REQUEST, MINA)
        assert await revoke_family(tx, pairs[2].family_id, revoke.REFRESH_TOKEN_REUSED, MINA)
        assert await revoke_families(tx, [pair.family_id for pair in pairs[2:]], MINA) == 2

    assert await entries(owner, before) == [
        ("operator:mina", "token.revoked", SHOP),
        ("operator:mina", "token.revoked", SHOP),
        ("operator:mina", "token.reused", SHOP),
        ("operator:mina", "token.revoked", SHOP),
        ("operator:mina", "token.revoked", SHOP),
    ]
    rows = await owner.fetch(
        "select host(client_ip) as ip, request_id, details ? 'via' as via from pabal.audit_log where id > $1", before
    )
    assert {tuple(row) for row in rows} == {("192.0.2.9", "request-9", False)}


async def test_the_actor_of_one_transaction_is_not_that_of_the_next(
    hub: Hub, owner: Connection, database_urls: DatabaseUrls
) -> None:
    """A pooled connection keeps nothing of the hub's transaction."""
    await add_shop_with_tokens(hub)
    before = await last_entry(owner)
    async with open_connection(database_urls.main) as conn:
        async with conn.transaction():
            await conn.execute("""select set_config('pabal.audit_context', '{"actor": "operator:mina"}', true)""")
        await conn.execute("delete from public.token_families")

    assert await entries(owner, before) == [("sql:pabal_hub", "token.revoked", SHOP)]


async def test_a_rotation_is_no_revocation(hub: Hub, owner: Connection) -> None:
    pair = await add_shop_with_tokens(hub)
    before = await last_entry(owner)

    await present_refresh_token(hub, pair.refresh_token)

    assert [action for _, action, _ in await entries(owner, before)] == ["token.refreshed"]


async def test_a_revocation_disguised_as_a_rotation_has_an_entry(hub: Hub, owner: Connection) -> None:
    pair = await add_shop_with_tokens(hub)
    await present_refresh_token(hub, pair.refresh_token)
    before = await last_entry(owner)

    await owner.execute(
        "update public.refresh_tokens r set revoked_at = pabal.now(), replaced_by = o.id"
        " from public.refresh_tokens o where r.replaced_by is null and o.id <> r.id"
    )

    assert await entries(owner, before) == [("sql:pabal", "token.revoked", SHOP)]


async def test_a_sweep_has_one_entry_with_its_counts(hub: Hub, owner: Connection, travel: Travel) -> None:
    secret = await add_shop(hub)
    for _ in range(3):
        await issue_pair(hub, secret)
    before = await last_entry(owner)
    await travel(8 * DAY)
    async with hub.transaction() as tx:
        assert [await expire_tokens(tx, 100) for _ in range(2)] == [3, 0]

    assert await entries(owner, before) == [("hub", "token.expired", None)]
    assert await details(owner) == {"access_tokens": 3, "refresh_tokens": 3}


async def test_a_sweep_by_plain_sql_names_the_login(hub: Hub, owner: Connection, travel: Travel) -> None:
    await add_shop_with_tokens(hub)
    await travel(HOUR)
    before = await last_entry(owner)

    await owner.execute("select public.cleanup_expired_tokens()")

    assert await entries(owner, before) == [("sql:pabal", "token.expired", None)]


async def test_a_valid_token_marked_as_expired_has_an_entry(hub: Hub, owner: Connection) -> None:
    await add_shop_with_tokens(hub)
    before = await last_entry(owner)

    await owner.execute(
        "update public.service_tokens"
        " set is_revoked = true, revoked_at = pabal.now(), revoked_reason = 'Token expired',"
        " created_at = created_at - interval '2 days', expires_at = pabal.now() - interval '1 day'"
    )

    assert await entries(owner, before) == [("sql:pabal", "token.revoked", SHOP)]


async def test_purging_ended_families_has_no_entry(hub: Hub, owner: Connection, travel: Travel) -> None:
    await add_shop_with_tokens(hub)
    await travel(90 * DAY)
    before = await last_entry(owner)
    async with hub.transaction() as tx:
        assert await purge_token_families(tx, DAY, 100) == 1

    assert await entries(owner, before) == []


async def test_a_truncation_has_an_entry_with_the_number_of_rows(hub: Hub, owner: Connection) -> None:
    await add_shop_with_tokens(hub)
    before = await last_entry(owner)

    await owner.execute("truncate public.refresh_tokens")
    await owner.execute("truncate public.refresh_tokens")

    assert await entries(owner, before) == [("sql:pabal", "token.revoked", None)]
    found = await details(owner)
    assert (found["truncated"], found["count"]) == ("refresh_tokens", 1)
