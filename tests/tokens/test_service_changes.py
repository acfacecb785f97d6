"""Changes and removals of a service that happen at the same time, and what a removed service leaves behind."""

import asyncio

import pytest

import pabal_client as client
from pabal.core.errors import Conflict, NotFound
from pabal.events.publish.publish import EventDraft, publish_events
from pabal.hub import DatabaseUrls, Hub
from pabal.settings import Settings
from pabal.tokens.issue import authenticate_client, issue_tokens
from pabal.tokens.services import (
    ServicePatch,
    find_service,
    list_live_secrets,
    remove_service,
    rotate_service_secret,
    update_service,
)
from pabal.tokens.sql_roles import add_sql_role, remove_sql_role
from support.clusters import Connection
from support.handler_app import build_handlers
from support.wait import wait_for_lock_of
from tokens.token_operations import BY, SHOP, add_shop, is_accepted, open_two_hubs

pytestmark = pytest.mark.anyio


async def change_shop(hub: Hub, patch: ServicePatch) -> None:
    async with hub.transaction() as tx:
        await update_service(tx, SHOP, patch, BY)


async def remove_shop(hub: Hub) -> None:
    async with hub.transaction() as tx:
        await remove_service(tx, SHOP, BY)


async def test_a_concurrent_change_does_not_give_a_withdrawn_permission_back(
    settings: Settings, database_urls: DatabaseUrls, owner: Connection
) -> None:
    async with open_two_hubs(settings, database_urls) as (first, second):
        await add_shop(first, permissions=["write", "hub:manage"])
        async with first.transaction() as tx:
            await update_service(tx, SHOP, ServicePatch(permissions=["read"]), BY)
            other = asyncio.create_task(change_shop(second, ServicePatch(may_publish=["order.*"])))
            await wait_for_lock_of(owner, other)
        await other

        async with first.autocommit() as tx:
            service = await find_service(tx, SHOP)
        assert (list(service.permissions), list(service.may_publish or ())) == (["read"], ["order.*"])


async def test_a_secret_rotated_during_the_removal_is_refused(
    settings: Settings, database_urls: DatabaseUrls, owner: Connection
) -> None:
    async def rotate() -> str:
        async with second.transaction() as tx:
            return await rotate_service_secret(tx, SHOP, BY)

    async with open_two_hubs(settings, database_urls) as (first, second):
        await add_shop(first)
        async with first.transaction() as tx:
            await remove_service(tx, SHOP, BY)
            rotation = asyncio.create_task(rotate())
            await wait_for_lock_of(owner, rotation)

        with pytest.raises(NotFound, match="No such service"):
            await rotation
        async with first.autocommit() as tx:
            assert await list_live_secrets(tx, SHOP) == []


async def test_a_token_issued_during_the_removal_is_not_one_of_the_next_service(hub: Hub) -> None:
    secret = await add_shop(hub)
    async with hub.transaction() as tx:
        client = await authenticate_client(tx, SHOP, secret, BY)
        pair = await issue_tokens(tx, hub.token_issuer, client, ("write",), BY)
        await remove_shop(hub)  # does not see the tokens, which are not committed

    await add_shop(hub, permissions=["write", "hub:manage"])

    assert not await is_accepted(hub, pair.access_token)


async def test_a_service_with_a_database_role_is_not_removed(hub: Hub) -> None:
    await add_shop(hub)
    async with hub.transaction() as tx:
        await add_sql_role(tx, SHOP, "authenticated", BY)

    with pytest.raises(Conflict, match="has database roles"):
        await remove_shop(hub)

    async with hub.transaction() as tx:
        await remove_sql_role(tx, SHOP, "authenticated", BY)
    await remove_shop(hub)


async def test_no_database_role_is_added_to_a_service_during_its_removal(
    settings: Settings, database_urls: DatabaseUrls, owner: Connection
) -> None:
    async def add_role() -> bool:
        async with second.transaction() as tx:
            return await add_sql_role(tx, SHOP, "authenticated", BY)

    async with open_two_hubs(settings, database_urls) as (first, second):
        await add_shop(first)
        async with first.transaction() as tx:
            await remove_service(tx, SHOP, BY)
            addition = asyncio.create_task(add_role())
            await wait_for_lock_of(owner, addition)

        with pytest.raises(NotFound, match="No such service"):
            await addition


async def test_a_service_that_linked_people_is_not_removed(hub: Hub, owner: Connection) -> None:
    await add_shop(hub)
    await owner.execute(
        "with person as (insert into identity.users default values returning id)"
        " insert into notification.service_links (service_name, discord_id, user_id)"
        " select $1, '80351110224678912', id from person",
        SHOP,
    )

    with pytest.raises(Conflict, match="has links of people"):
        await remove_shop(hub)


async def test_no_event_is_accepted_for_a_removed_service(hub: Hub) -> None:
    await add_shop(hub)
    await remove_shop(hub)

    async with hub.transaction() as tx:
        [refusal] = await publish_events(tx, [EventDraft("minu_find", "order.paid", b"{}", SHOP)])
    assert str(refusal) == "target_service: no such service: shop"


async def test_no_program_subscribes_a_removed_service(hub: Hub) -> None:
    program = client.App(SHOP)
    program.on("order.*")(print)
    await add_shop(hub)
    await remove_shop(hub)

    with pytest.raises(NotFound, match="No such service: shop"):
        async with hub.transaction() as tx:
            await build_handlers(program).subscribe_services(tx)
