"""A registered service and its calls to the OAuth endpoints."""

import base64
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx2

from pabal.core.actor import Actor
from pabal.hub import Hub
from pabal.tokens.services import add_service, list_services, rotate_service_secret, set_service_active

TESTER = Actor("tester")
INSPECTOR = "inspector"


@dataclass(frozen=True, slots=True)
class RegisteredService:
    """A service with its secret and an HTTP client."""

    name: str
    secret: str = field(repr=False)
    hub: Hub = field(repr=False)
    web: httpx2.AsyncClient = field(repr=False)

    @property
    def basic(self) -> dict[str, str]:
        return basic(f"{self.name}:{self.secret}".encode())

    async def call(self, endpoint: str, **form: str) -> httpx2.Response:
        """Call an OAuth endpoint with the secret in the header."""
        return await self.web.post(f"/oauth/{endpoint}", data=form, headers=self.basic)

    async def tokens(self, **form: str) -> dict[str, Any]:
        """Request tokens with the client credentials."""
        return json_of(await self.call("token", grant_type="client_credentials", **form))

    async def refresh(self, refresh_token: str, **form: str) -> dict[str, Any]:
        return json_of(await self.call("token", grant_type="refresh_token", refresh_token=refresh_token, **form))

    async def introspect(self, token: str) -> dict[str, Any]:
        """Introspect a token as a service that may: this one need not."""
        inspector = await inspecting_service(self.hub, self.web)
        return json_of(await inspector.call("introspect", token=token))

    async def is_active(self, token: str) -> bool:
        return (await self.introspect(token))["active"]

    async def set_active(self, *, active: bool) -> None:
        async with self.hub.transaction() as tx:
            await set_service_active(tx, self.name, TESTER, active=active)


async def register_oauth_service(hub: Hub, web: httpx2.AsyncClient, name: str, *permissions: str) -> RegisteredService:
    async with hub.transaction() as tx:
        _, secret = await add_service(tx, name, permissions, TESTER)
    return RegisteredService(name, secret, hub, web)


async def inspecting_service(hub: Hub, web: httpx2.AsyncClient) -> RegisteredService:
    """A service with the permission tokens:introspect, added at the first call."""
    async with hub.transaction() as tx:
        if INSPECTOR not in {service.name for service in await list_services(tx)}:
            _, secret = await add_service(tx, INSPECTOR, ["tokens:introspect"], TESTER)
        else:
            secret = await rotate_service_secret(tx, INSPECTOR, TESTER, overlap=timedelta())
    return RegisteredService(INSPECTOR, secret, hub, web)


def json_of(response: httpx2.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return response.json()


def basic(credentials: bytes) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(credentials).decode()}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}
