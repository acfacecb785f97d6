"""A service at the event doors, as it publishes, fetches and settles over HTTP."""

from dataclasses import dataclass, field
from typing import Any

import httpx2

from pabal.hub import Hub
from support.oauth_client import bearer, enrol

QUEUE = "/v1/queue"
Handed = dict[str, Any]
"""An event as the claim door gives it."""


@dataclass(frozen=True, slots=True)
class Service:
    """Who comes, and what it shows."""

    name: str
    web: httpx2.AsyncClient = field(repr=False)
    headers: dict[str, str] = field(repr=False)

    async def ask(self, method: str, path: str, *, status: int = 200, **how: Any) -> Any:
        answer = await self.web.request(method, f"{QUEUE}/{path}", headers=self.headers, **how)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def publish(self, event_type: str = "order.paid", *, status: int = 202, **how: Any) -> dict[str, Any]:
        return await self.ask("POST", "events", status=status, json={"event_type": event_type, **how})

    async def batch(self, *events: dict[str, Any]) -> list[dict[str, Any]]:
        return (await self.ask("POST", "events/batch", json={"events": events}))["results"]

    async def mistakes(self, **brought: Any) -> list[str]:
        """The fields that were refused."""
        refused = await self.ask("POST", "events", status=400, json=brought)
        return [each["field"] for each in refused["mistakes"]]

    async def claim(self, **how: int) -> list[Handed]:
        return (await self.ask("POST", "claim", json=how))["events"]

    async def ack(self, *events: Handed) -> list[int]:
        return await self.tell("ack", events)

    async def nack(self, *events: Handed, error: str = "boom", **how: Any) -> list[int]:
        return await self.tell("nack", events, error=error, **how)

    async def extend(self, *events: Handed, seconds: int = 30) -> list[int]:
        return await self.tell("extend", events, lease_seconds=seconds)

    async def tell(self, door: str, events: tuple[Handed, ...], **said: Any) -> list[int]:
        """What each receipt was answered with."""
        brought = {"receipts": [event["receipt"] for event in events], **said}
        results = (await self.ask("POST", door, json=brought))["results"]
        assert [each["receipt"] for each in results] == brought["receipts"]
        return [each["status"] for each in results]

    async def show(self, event: str, *, status: int = 200) -> dict[str, Any]:
        return await self.ask("GET", f"events/{event}", status=status)

    async def cancel(self, event: str, *, status: int = 200) -> dict[str, Any]:
        return await self.ask("POST", f"events/{event}/cancel", status=status)


async def come(hub: Hub, web: httpx2.AsyncClient, name: str, *permissions: str) -> Service:
    """A new service with a token for everything it may do."""
    enrolled = await enrol(hub, web, name, *(permissions or ("write",)))
    return Service(name, web, bearer((await enrolled.tokens())["access_token"]))
