"""Changes of a service that happen at the same time."""

import asyncio

import pytest

from pabal.hub import DatabaseUrls, Hub
from pabal.settings import Settings
from pabal.tokens.services import ServicePatch, find_service, update_service
from support.clusters import Connection
from support.wait import wait_for_lock_of
from tokens.token_operations import BY, SHOP, add_shop, open_two_hubs

pytestmark = pytest.mark.anyio


async def change_shop(hub: Hub, patch: ServicePatch) -> None:
    async with hub.transaction() as tx:
        await update_service(tx, SHOP, patch, BY)


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
