"""A service that publishes, claims and settles events over HTTP."""

from dataclasses import dataclass, field
from typing import Any

import httpx2

from pabal.hub import Hub
from support.oauth_client import bearer, enrol

QUEUE = "/v1/queue"
Handed = dict[str, Any]
"""An event as the claim endpoint returns it."""


@dataclass(frozen=True, slots=True)
class Service:
    """An authenticated client of the event endpoints."""

    name: str
    web: httpx2.AsyncClient = field(repr=False)
    headers: dict[str, str] = field(repr=False)

    async def ask(self, method: str, path: str, *, status: int = 200, **options: Any) -> Any:
        response = await self.web.request(method, f"{QUEUE}/{path}", headers=self.headers, **options)
        assert response.status_code == status, response.text
        return response.json()

    async def publish(self, event_type: str = "order.paid", *, status: int = 202, **options: Any) -> dict[str, Any]:
        return await self.ask("POST", "events", status=status, json={"event_type": event_type, **options})

    async def batch(self, *events: dict[str, Any]) -> list[dict[str, Any]]:
        return (await self.ask("POST", "events/batch", json={"events": events}))["results"]

    async def mistakes(self, **fields: Any) -> list[str]:
        """The fields named in a 400 response."""
        problem = await self.ask("POST", "events", status=400, json=fields)
        return [item["field"] for item in problem["mistakes"]]

    async def claim(self, **options: int) -> list[Handed]:
        return (await self.ask("POST", "claim", json=options))["events"]

    async def ack(self, *events: Handed) -> list[int]:
        return await self.tell("ack", events)

    async def nack(self, *events: Handed, error: str = "boom", **options: Any) -> list[int]:
        return await self.tell("nack", events, error=error, **options)

    async def extend(self, *events: Handed, seconds: int = 30) -> list[int]:
        return await self.tell("extend", events, lease_seconds=seconds)

    async def tell(self, endpoint: str, events: tuple[Handed, ...], **fields: Any) -> list[int]:
        """The status of each receipt."""
        body = {"receipts": [event["receipt"] for event in events], **fields}
        results = (await self.ask("POST", endpoint, json=body))["results"]
        assert [item["receipt"] for item in results] == body["receipts"]
        return [item["status"] for item in results]

    async def show(self, event: str, *, status: int = 200) -> dict[str, Any]:
        return await self.ask("GET", f"events/{event}", status=status)

    async def cancel(self, event: str, *, status: int = 200) -> dict[str, Any]:
        return await self.ask("POST", f"events/{event}/cancel", status=status)


async def come(hub: Hub, web: httpx2.AsyncClient, name: str, *permissions: str) -> Service:
    """Add a service; returns a client with a token for all its permissions."""
    service_client = await enrol(hub, web, name, *(permissions or ("write",)))
    return Service(name, web, bearer((await service_client.tokens())["access_token"]))
