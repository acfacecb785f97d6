"""Publishing and requesting from SQL: a database role acts only as the services it is registered for."""

from collections.abc import AsyncGenerator
from typing import Any

import asyncpg
import httpx2
import msgspec
import pytest

from pabal.core.errors import Conflict, NotFound
from pabal.core.event_types import HUB_EVENT_TYPES
from pabal.db import embedded
from pabal.hub import DatabaseUrls, Hub
from pabal.tokens.services import ServiceRights, set_service_active, set_service_rights
from pabal.tokens.sql_roles import add_sql_role, list_sql_roles, remove_sql_role
from support.clusters import Connection, open_connection
from support.databases import url_with_database
from support.notifications import PAID, register_builtin_templates
from support.oauth_client import TESTER, register_oauth_service

pytestmark = pytest.mark.anyio

PUBLISH = "select pabal.publish($1, $2, target => 'minu_find')"
REQUEST = "select notification.request('user_dm', '100', 'payment.succeeded', $2::text::jsonb, source_service => $1)"
PAID_JSON = msgspec.json.encode(PAID).decode()
ROLES = ("rights_app", "rights_team", "rights_member")


@pytest.fixture
async def app(
    postgres: embedded.ServerAddress, database_urls: DatabaseUrls, owner: Connection, hub: Hub, web: httpx2.AsyncClient
) -> AsyncGenerator[Connection]:
    """A connection of a role that may publish and nothing else, beside the services shop and billing."""
    await register_builtin_templates(hub)
    for name in ("shop", "billing"):
        await register_oauth_service(hub, web, name, "write")
    await owner.execute(
        """
        create role rights_app login password 'horse' in role pabal_publisher;
        create role rights_team nologin;
        create role rights_member nologin in role pabal_publisher, rights_team;
        grant rights_member to rights_app with inherit false;
        """
    )
    _, _, address = postgres.hub_url.partition("@")
    _, _, database = database_urls.main.rpartition("/")
    try:
        async with open_connection(url_with_database(f"postgresql://rights_app:horse@{address}", database)) as conn:
            yield conn
    finally:
        await owner.execute(f"drop role {', '.join(ROLES)}")


async def register(hub: Hub, service: str, role: str) -> None:
    async with hub.transaction() as tx:
        await add_sql_role(tx, service, role, TESTER)


async def publish(conn: Connection, source: str | None, event_type: str = "order.paid") -> Any:
    return await conn.fetchval(PUBLISH, source, event_type)


async def refusal(conn: Connection, source: str | None, event_type: str = "order.paid") -> tuple[str, str | None]:
    """The message and the hint of a refused publish."""
    with pytest.raises(asyncpg.InsufficientPrivilegeError) as caught:
        await publish(conn, source, event_type)
    return str(caught.value.args[0]), caught.value.hint


async def source_of(owner: Connection, event: object) -> str:
    return await owner.fetchval("select source_service from public.event_queue where id = $1", event)


async def test_an_unregistered_role_is_told_what_to_run(app: Connection, owner: Connection) -> None:
    before = await owner.fetchval("select count(*) from public.event_queue")

    assert await refusal(app, "shop") == (
        "role rights_app may not act as the service shop",
        "Run: pabal service sql-role add shop rights_app",
    )
    assert await refusal(app, "hub") == ("role rights_app may not act as the hub", None)
    assert await refusal(app, "nobody") == (
        "role rights_app may not act as the service nobody",
        "Run: pabal service sql-role add nobody rights_app",
    )
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="may not act as the service shop"):
        await app.fetchval(REQUEST, "shop", PAID_JSON)
    assert await owner.fetchval("select count(*) from public.event_queue") == before


async def test_a_registered_role_acts_as_its_service_and_no_other(hub: Hub, app: Connection, owner: Connection) -> None:
    await register(hub, "shop", "rights_app")

    event = await publish(app, "shop")

    assert await source_of(owner, event) == "shop"
    for source in ("billing", "minu_find", "hub"):
        assert (await refusal(app, source))[0].startswith("role rights_app may not act as")


async def test_a_removed_role_is_refused_again(hub: Hub, app: Connection) -> None:
    await register(hub, "shop", "rights_app")
    await publish(app, "shop")

    async with hub.transaction() as tx:
        await remove_sql_role(tx, "shop", "rights_app", TESTER)

    assert (await refusal(app, "shop"))[0] == "role rights_app may not act as the service shop"


async def test_without_a_source_the_only_service_of_the_role_is_meant(
    hub: Hub, app: Connection, owner: Connection
) -> None:
    assert (await refusal(app, None))[1] == "Run: pabal service sql-role add SERVICE rights_app"
    await register(hub, "shop", "rights_app")
    assert await source_of(owner, await publish(app, None)) == "shop"
    await register(hub, "billing", "rights_app")

    assert (await refusal(app, None))[0] == (
        "source_service: is required, because role rights_app acts as several services: billing, shop"
    )
    assert await source_of(owner, await publish(app, "billing")) == "billing"


async def test_the_role_that_was_set_is_the_caller(hub: Hub, app: Connection) -> None:
    """session_user ignores SET ROLE, and current_user is the owner of the function."""
    await register(hub, "shop", "rights_member")
    assert (await refusal(app, "shop"))[0] == "role rights_app may not act as the service shop"

    await app.execute("set role rights_member")
    await publish(app, "shop")
    await app.execute("reset role")
    async with app.transaction():
        await app.execute("set local role rights_member")
        await publish(app, "shop")

    assert (await refusal(app, "shop"))[0] == "role rights_app may not act as the service shop"
    await register(hub, "billing", "rights_app")
    await app.execute("set role rights_member")
    assert (await refusal(app, "billing"))[0] == "role rights_member may not act as the service billing"


async def test_a_role_that_inherits_a_registered_one_acts_for_it(hub: Hub, app: Connection) -> None:
    await register(hub, "shop", "rights_team")

    assert (await refusal(app, "shop"))[
        0
    ] == "role rights_app may not act as the service shop"  # member without inherit
    await app.execute("set role rights_member")
    await publish(app, "shop")


async def test_no_role_publishes_an_event_of_the_hub(hub: Hub, app: Connection, owner: Connection) -> None:
    await register(hub, "shop", "rights_app")

    for event_type in HUB_EVENT_TYPES:
        assert (await refusal(app, "shop", event_type))[0] == f"event_type: only the hub publishes {event_type}"
        with pytest.raises(asyncpg.InsufficientPrivilegeError):  # not even a role that acts as every service
            await publish(owner, "shop", event_type)
        await publish(owner, "hub", event_type)


async def test_the_patterns_of_a_service_hold_in_sql(hub: Hub, app: Connection, owner: Connection) -> None:
    await register(hub, "shop", "rights_app")
    async with hub.transaction() as tx:
        await set_service_rights(tx, "shop", ServiceRights(["write"], may_publish=["order.*"]), TESTER)

    await publish(app, "shop", "order.paid")
    for conn in (app, owner):
        assert (await refusal(conn, "shop", "user.deleted"))[
            0
        ] == "event_type: service shop may not publish user.deleted"


async def test_a_disabled_service_or_one_without_the_permission_is_refused(hub: Hub, app: Connection) -> None:
    await register(hub, "shop", "rights_app")
    async with hub.transaction() as tx:
        await set_service_active(tx, "shop", TESTER, active=False)
    assert await refusal(app, "shop") == ("service shop is disabled", "Run: pabal service enable shop")

    async with hub.transaction() as tx:
        await set_service_active(tx, "shop", TESTER, active=True)
        await set_service_rights(tx, "shop", ServiceRights(["read", "notifications:send"]), TESTER)
    assert (await refusal(app, "shop"))[0] == "service shop lacks the permission events:publish"
    assert await app.fetchval(REQUEST, "shop", PAID_JSON) is not None


async def test_a_notification_is_requested_as_the_service(hub: Hub, app: Connection, owner: Connection) -> None:
    await register(hub, "shop", "rights_app")

    for source in ("shop", None):
        request = await app.fetchval(REQUEST, source, PAID_JSON)
        stored = await owner.fetchval("select source_service from notification.requests where id = $1", request)
        assert stored == "shop"
    for source in ("billing", "hub"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="may not act as"):
            await app.fetchval(REQUEST, source, PAID_JSON)


async def test_a_role_cannot_use_the_dedupe_key_of_another_service_or_of_an_alert(
    hub: Hub, app: Connection, owner: Connection
) -> None:
    await register(hub, "shop", "rights_app")
    request = REQUEST.replace("source_service", "dedupe_key => $3, source_service")

    for key in ("invoice-1", "billing:invoice-1", ":alert:hub.dead_letters:billing"):
        first = await app.fetchval(request, "shop", PAID_JSON, key)
        assert await app.fetchval(request, "shop", PAID_JSON, key) == first
    stored = await owner.fetch("select dedupe_key from notification.requests")

    assert {row["dedupe_key"].partition(":")[0] for row in stored} == {"shop"}
    assert await owner.fetchval(request, "billing", PAID_JSON, "invoice-1") not in {
        row["id"] for row in await owner.fetch("select id from notification.requests where source_service = 'shop'")
    }


async def test_the_hub_and_the_owner_act_as_every_service(
    database_urls: DatabaseUrls, app: Connection, owner: Connection
) -> None:
    async with open_connection(database_urls.main) as hub_login:
        for conn in (hub_login, owner):
            for source in ("hub", "shop", "minu_build"):
                assert await source_of(owner, await publish(conn, source)) == source
    await owner.execute("set role service_role")
    await publish(owner, "shop")
    await owner.execute("set role pabal_publisher")  # a superuser who takes a role has only its rights
    assert (await refusal(owner, "shop"))[0] == "role pabal_publisher may not act as the service shop"
    await owner.execute("reset role")


async def test_a_definer_function_does_not_lend_its_owner(hub: Hub, app: Connection, owner: Connection) -> None:
    """A function of the application that runs as its owner publishes for the role that called it."""
    await owner.execute(
        """
        create function public.place_order() returns uuid language sql security definer
          return pabal.publish('shop', 'order.placed', target => 'minu_find');
        """
    )
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="role rights_app may not act as"):
        await app.fetchval("select public.place_order()")

    await register(hub, "shop", "rights_app")

    assert await app.fetchval("select public.place_order()") is not None


async def test_registering_names_what_is_wrong(hub: Hub, app: Connection) -> None:
    async with hub.transaction() as tx:
        with pytest.raises(Conflict, match="No database role acts as the hub"):
            await add_sql_role(tx, "hub", "rights_app", TESTER)
        with pytest.raises(NotFound, match="No such service: nobody"):
            await add_sql_role(tx, "nobody", "rights_app", TESTER)
        with pytest.raises(NotFound, match="No such database role: nobody"):
            await add_sql_role(tx, "shop", "nobody", TESTER)
        with pytest.raises(NotFound, match="rights_app does not act as shop"):
            await remove_sql_role(tx, "shop", "rights_app", TESTER)
        assert await add_sql_role(tx, "shop", "rights_app", TESTER) is True
        assert await add_sql_role(tx, "shop", "rights_app", TESTER) is False
        assert [(row.service, row.role, row.role_exists) for row in await list_sql_roles(tx)] == [
            ("shop", "rights_app", True)
        ]


async def test_no_role_registers_itself(app: Connection, owner: Connection) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await app.execute("insert into pabal.service_sql_roles values ('shop', 'rights_app')")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await app.execute("select pabal.resolve_sql_source('hub', 'events:publish')")
    with pytest.raises(asyncpg.CheckViolationError):
        await owner.execute("insert into pabal.service_sql_roles values ('hub', 'rights_app')")
