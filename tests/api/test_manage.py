"""Manage services and operators by API, with the permission hub:manage."""

import asyncio
import threading
from typing import Any, get_args

import httpx2
import pytest

from pabal.api.services import PermissionName
from pabal.hub import Hub
from pabal.operators.operators import find_operator_credentials
from pabal.operators.password import PASSWORD_THREADS, verify_password
from pabal.tokens.permission import PERMISSION_NAMES
from support.clusters import Connection
from support.oauth_client import RegisteredService, bearer, register_oauth_service
from support.wait import wait_until

pytestmark = pytest.mark.anyio


class Manager:
    """A service with only the permission to manage."""

    def __init__(self, web: httpx2.AsyncClient, headers: dict[str, str]) -> None:
        self.web, self.headers = web, headers

    async def call(self, method: str, path: str, status: int = 200, **body: Any) -> Any:
        json = body if method in {"POST", "PATCH"} else None
        response = await self.web.request(method, f"/v1/{path}", headers=self.headers, json=json)
        assert response.status_code == status, response.text
        return response.json() if response.content else None


@pytest.fixture
async def manager(hub: Hub, web: httpx2.AsyncClient) -> Manager:
    service = await register_oauth_service(hub, web, "tools", "hub:manage")
    return Manager(web, bearer((await service.tokens())["access_token"]))


async def audit_actions(owner: Connection, subject: str) -> list[str]:
    query = "select action from pabal.audit_log where subject = $1 and actor = 'tools' order by id"
    return [row["action"] for row in await owner.fetch(query, subject)]


def test_the_api_names_every_permission() -> None:
    assert get_args(PermissionName) == PERMISSION_NAMES


async def test_a_service_is_added_changed_and_removed(
    hub: Hub, web: httpx2.AsyncClient, manager: Manager, owner: Connection
) -> None:
    added = await manager.call("POST", "services", 201, name="shop", permissions=["write"], may_publish=["order.*"])
    shop = RegisteredService("shop", added["client_secret"], hub, web)
    assert (await shop.tokens(scope="events:publish"))["scope"] == "events:publish"

    changed = await manager.call("PATCH", "services/shop", description="The web shop", may_publish=None)
    narrowed = await manager.call("PATCH", "services/shop", permissions=["read"])
    disabled = await manager.call("POST", "services/shop/disable")
    refused = await shop.call("token", grant_type="client_credentials")
    enabled = await manager.call("POST", "services/shop/enable")
    rotated = await manager.call("POST", "services/shop/rotate-secret", overlap_seconds=0)
    old = await shop.call("token", grant_type="client_credentials")
    used = await manager.call("DELETE", "services/shop", 409)
    await owner.execute("update public.token_families set revoked_at = now() where service_name = 'shop'")
    shown = await manager.call("GET", "services/shop")
    await manager.call("DELETE", "services/shop", 204)

    assert (changed["description"], changed["may_publish"]) == ("The web shop", None)
    assert changed["permissions"] == ["write"]
    assert (narrowed["permissions"], narrowed["description"]) == (["read"], "The web shop")
    assert (disabled["is_active"], enabled["is_active"]) == (False, True)
    assert (refused.status_code, old.status_code) == (401, 401)
    assert rotated["client_secret"] != added["client_secret"]
    assert "valid tokens" in used["detail"]
    assert len(shown["secrets"]) == 1
    await manager.call("GET", "services/shop", 404)
    assert await audit_actions(owner, "shop") == [
        "service.added",
        "service.secret_rotated",
        "service.rights_changed",
        "service.described",
        "service.rights_changed",
        "service.disabled",
        "service.enabled",
        "service.secret_rotated",
        "service.removed",
    ]


async def test_services_are_listed_by_name_on_pages(manager: Manager) -> None:
    names: list[str] = []
    cursor = ""
    while True:
        page = await manager.call("GET", f"services?limit=2{cursor}")
        names += [item["name"] for item in page["items"]]
        if page["cursor"] is None:
            break
        cursor = f"&cursor={page['cursor']}"

    assert names == ["hub", "minu_build", "minu_find", "minu_frame", "minu_keep", "tools"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("POST", "services", {"name": "Shop", "permissions": ["read"]}, 400, "name"),
        ("POST", "services", {"name": "shop", "permissions": []}, 400, "permissions"),
        ("POST", "services", {"name": "shop", "permissions": ["root"]}, 400, "permissions"),
        ("POST", "services", {"name": "shop", "permissions": ["read"], "description": "a\nb"}, 400, "description"),
        ("POST", "services", {"name": "tools", "permissions": ["read"]}, 409, "already exists"),
        ("PATCH", "services/tools", {"may_publish": ["Order"]}, 400, "may_publish"),
        ("PATCH", "services/hub", {"permissions": ["read"]}, 409, "hub's own service"),
        ("DELETE", "services/hub", {}, 409, "hub's own service"),
        ("POST", "services/hub/disable", {}, 409, "hub's own service"),
        ("PATCH", "services/nobody", {"description": "x"}, 404, "nobody"),
        ("POST", "operators", {"name": "a b"}, 400, "name"),
        ("POST", "operators", {"name": "jun", "password": "short"}, 400, "password"),
        ("POST", "operators", {"name": "jun", "role": "root"}, 400, "role"),
        ("PATCH", "operators/nobody", {"role": "admin"}, 404, "nobody"),
    ],
)
async def test_a_refusal_names_what_is_wrong(
    manager: Manager, method: str, path: str, body: dict[str, Any], status: int, text: str
) -> None:
    assert text in str(await manager.call(method, path, status, **body))


async def test_an_operator_is_added_changed_and_removed(hub: Hub, manager: Manager, owner: Connection) -> None:
    boss = await manager.call("POST", "operators", 201, name="mina", role="admin", password="correct horse")
    jun = await manager.call("POST", "operators", 201, name="jun")
    again = await manager.call("POST", "operators", 409, name="JUN")
    admin = await manager.call("PATCH", "operators/jun", role="admin")
    renewed = await manager.call("POST", "operators/jun/password")
    async with hub.autocommit() as tx:
        credentials = await find_operator_credentials(tx, "jun")
    disabled = await manager.call("POST", "operators/jun/disable")
    last = await manager.call("DELETE", "operators/mina", 409)
    enabled = await manager.call("POST", "operators/jun/enable")
    await manager.call("DELETE", "operators/mina", 204)

    assert (boss["password"], boss["role"]) == (None, "admin")
    assert (jun["role"], len(jun["password"])) == ("viewer", 20)
    assert "already exists" in again["detail"]
    assert admin["role"] == "admin"
    assert credentials
    assert await verify_password(renewed["password"], credentials.password_hash)
    assert disabled["disabled_at"]
    assert "only enabled admin" in last["detail"]
    assert enabled["disabled_at"] is None
    assert [item["name"] for item in (await manager.call("GET", "operators"))["items"]] == ["jun"]
    assert await audit_actions(owner, "jun") == [
        "operator.added",
        "operator.role_changed",
        "operator.password_changed",
        "operator.disabled",
        "operator.enabled",
    ]


@pytest.mark.parametrize("permission", ["hub:admin", "tokens:admin", "write"])
async def test_no_other_permission_manages(hub: Hub, web: httpx2.AsyncClient, permission: str) -> None:
    service = await register_oauth_service(hub, web, "curious", permission)
    headers = bearer((await service.tokens())["access_token"])

    for path in ("services", "operators"):
        assert (await web.get(f"/v1/{path}", headers=headers)).status_code == 403
        assert (await web.post(f"/v1/{path}", headers=headers, json={})).status_code == 403


async def test_a_password_is_hashed_before_the_transaction(manager: Manager, owner: Connection) -> None:
    """Else a connection of the pool is held meanwhile, and requests wait for one."""
    open_transactions = "select count(*) from pg_stat_activity where state = 'idle in transaction'"
    may_end = threading.Event()
    hashing = [PASSWORD_THREADS.submit(may_end.wait) for _ in range(2)]
    try:
        adding = asyncio.create_task(manager.call("POST", "operators", 201, name="jun", password="correct horse"))
        await wait_until(lambda: PASSWORD_THREADS._work_queue.qsize() == 1)
        assert await owner.fetchval(open_transactions) == 0
    finally:
        may_end.set()
    await adding

    assert all(thread.result() for thread in hashing)
