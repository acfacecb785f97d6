"""A service that publishes, claims and settles events over HTTP."""

from dataclasses import dataclass, field
from typing import Any

import httpx2

from pabal.hub import Hub
from support.oauth_client import bearer, register_oauth_service

QUEUE = "/v1/queue"
ClaimedBody = dict[str, Any]
"""An event as the claim endpoint returns it."""


@dataclass(frozen=True, slots=True)
class Service:
    """An authenticated client of the event endpoints."""

    name: str
    web: httpx2.AsyncClient = field(repr=False)
    headers: dict[str, str] = field(repr=False)

    async def call(self, method: str, path: str, *, status: int = 200, **options: Any) -> Any:
        response = await self.web.request(method, f"{QUEUE}/{path}", headers=self.headers, **options)
        assert response.status_code == status, response.text
        return response.json()

    async def publish(self, event_type: str = "order.paid", *, status: int = 202, **options: Any) -> dict[str, Any]:
        return await self.call("POST", "events", status=status, json={"event_type": event_type, **options})

    async def batch(self, *events: dict[str, Any]) -> list[dict[str, Any]]:
        return (await self.call("POST", "events/batch", json={"events": events}))["results"]

    async def invalid_fields(self, **fields: Any) -> list[str]:
        """The fields named in a 400 response."""
        problem = await self.call("POST", "events", status=400, json=fields)
        return [item["field"] for item in problem["mistakes"]]

    async def claim(self, **options: int) -> list[ClaimedBody]:
        return (await self.call("POST", "claim", json=options))["events"]

    async def ack(self, *events: ClaimedBody) -> list[int]:
        return await self.send_receipts("ack", events)

    async def nack(self, *events: ClaimedBody, error: str = "boom", **options: Any) -> list[int]:
        return await self.send_receipts("nack", events, error=error, **options)

    async def extend(self, *events: ClaimedBody, seconds: int = 30) -> list[int]:
        return await self.send_receipts("extend", events, lease_seconds=seconds)

    async def send_receipts(self, endpoint: str, events: tuple[ClaimedBody, ...], **fields: Any) -> list[int]:
        """The status of each receipt."""
        body = {"receipts": [event["receipt"] for event in events], **fields}
        results = (await self.call("POST", endpoint, json=body))["results"]
        assert [item["receipt"] for item in results] == body["receipts"]
        return [item["status"] for item in results]

    async def get_event(self, event: str, *, status: int = 200) -> dict[str, Any]:
        return await self.call("GET", f"events/{event}", status=status)

    async def cancel(self, event: str, *, status: int = 200) -> dict[str, Any]:
        return await self.call("POST", f"events/{event}/cancel", status=status)


async def connect_service(hub: Hub, web: httpx2.AsyncClient, name: str, *permissions: str) -> Service:
    """Add a service; returns a client with a token for all its permissions."""
    service_client = await register_oauth_service(hub, web, name, *(permissions or ("write",)))
    return Service(name, web, bearer((await service_client.tokens())["access_token"]))
