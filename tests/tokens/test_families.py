"""Lists of a service's token families: only live ones, without reading ended ones."""

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from pabal.audit import log
from pabal.core.errors import NotFound
from pabal.hub import DatabaseUrls, Hub
from pabal.tokens import explain, services
from pabal.tokens.explain import list_live_families, revoke_service_family
from pabal.tokens.revoke import list_live_family_ids, revoke_families
from support.clusters import open_connection
from tokens.token_operations import BY, add_shop, add_shop_with_tokens, issue_pair, refresh_pair, revoke_whole_family

pytestmark = pytest.mark.anyio

NO_FILTER = dict[str, object](actor=None, action=None, since=None)
Travel = Callable[[timedelta], Awaitable[None]]


async def test_only_live_families_are_listed_with_their_last_refresh(hub: Hub, travel: Travel) -> None:
    secret = await add_shop(hub)
    kept, ended = await issue_pair(hub, secret), await issue_pair(hub, secret)
    short = await issue_pair(hub, secret, refreshable=False)
    await revoke_whole_family(hub, ended.family_id)
    await travel(timedelta(minutes=30))
    refreshed_pair = await refresh_pair(hub, kept.refresh_token)

    async with hub.autocommit() as tx:
        first, second = await list_live_families(tx, "shop")
        [page_one] = await list_live_families(tx, "shop", limit=1)
        [page_two] = await list_live_families(tx, "shop", after=(page_one.expires_at, page_one.id))
    assert (first.id, second.id) == (kept.family_id, short.family_id) == (page_one.id, page_two.id)
    assert first.id == refreshed_pair.family_id
    assert first.refreshed_at is not None
    assert timedelta(minutes=30) <= first.refreshed_at - first.created_at < timedelta(minutes=31)
    assert (first.refresh_count, second.refresh_count, second.refreshed_at) == (1, 0, None)
    assert (first.by, first.client_ip) == ("shop", "192.0.2.7")

    await travel(timedelta(minutes=30))
    async with hub.autocommit() as tx:
        assert [family.id for family in await list_live_families(tx, "shop")] == [kept.family_id]


async def test_a_family_can_be_revoked_by_its_own_service_only_and_once(hub: Hub) -> None:
    pair = await add_shop_with_tokens(hub)
    await add_shop(hub, "mail")

    async with hub.transaction() as tx:
        with pytest.raises(NotFound):
            await revoke_service_family(tx, "mail", pair.family_id, BY)
        await revoke_service_family(tx, "shop", pair.family_id, BY)
        with pytest.raises(NotFound):
            await revoke_service_family(tx, "shop", pair.family_id, BY)


async def test_exactly_the_given_families_are_revoked(hub: Hub) -> None:
    secret = await add_shop(hub)
    await issue_pair(hub, secret)
    async with hub.transaction() as tx:
        listed = await list_live_family_ids(tx, "shop")
    newer = await issue_pair(hub, secret)

    async with hub.transaction() as tx:
        assert await revoke_families(tx, listed, BY) == 1
        assert await list_live_family_ids(tx, "shop") == [newer.family_id]


async def test_counting_and_listing_do_not_read_ended_families(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add_shop(hub)
    assert database_urls.direct
    async with open_connection(database_urls.direct) as conn:
        await conn.execute("set session_replication_role = replica")
        await conn.execute(
            "insert into public.token_families (service_name, created_at, expires_at)"
            " select 'shop', now() - interval '20 days', now() - interval '10 days' + make_interval(secs => n)"
            " from generate_series(1, 50000) n"
        )
        await conn.execute(
            "insert into pabal.audit_log (actor, action, subject)"
            " select 'mail', 'token.issued', 'mail' from generate_series(1, 50000)"
        )
        await conn.execute("analyze public.token_families, pabal.audit_log")
        for query, arguments in (
            (services.Q.list_service_summaries, dict[str, object](after="", max_families=1000, limit=50)),
            (
                log.Q.scan_subject_entries,
                dict[str, object](subject="shop", before=1 << 62, lowest_id=0, limit=50) | NO_FILTER,
            ),
            (explain.Q.list_live_families, dict[str, object](service="shop", after=None, after_id=None, limit=20)),
        ):
            plan = await conn.fetchval(f"explain (analyze, buffers, format json) {query.sql}", *query.bind(arguments))
            assert buffers(plan) < 200


def buffers(plan: str) -> int:
    top = json.loads(plan)[0]["Plan"]
    return top["Shared Hit Blocks"] + top["Shared Read Blocks"]
