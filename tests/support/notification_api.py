"""A service at the doors of notifications, with its token."""

from typing import Any

import httpx2

from pabal.hub import Hub
from support.notifications import PAID
from support.oauth_client import bearer, enrol

DOOR = "/v1/notifications"
ONE: dict[str, Any] = {
    "recipient_type": "user_dm",
    "recipient_id": "100",
    "template_key": "payment.succeeded",
    "payload": PAID,
}


class Service:
    """A service at the doors, with its token."""

    def __init__(self, web: httpx2.AsyncClient, token: str) -> None:
        self._web = web
        self.header = bearer(token)

    async def ask(self, method: str, path: str = DOOR, status: int = 200, **how: Any) -> Any:
        answer = await self._web.request(method, path, headers=self.header, **how)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    async def send(self, status: int = 202, **said: Any) -> Any:
        return await self.ask("POST", status=status, json=ONE | said)

    async def mistakes(self, path: str = DOOR, method: str = "POST", **said: Any) -> list[tuple[str, str]]:
        refused = await self.ask(method, path, 400, json=said)
        return [(each["field"], each["why"]) for each in refused["mistakes"]]


async def come(hub: Hub, web: httpx2.AsyncClient, name: str, *permissions: str) -> Service:
    enrolled = await enrol(hub, web, name, *permissions)
    return Service(web, (await enrolled.tokens())["access_token"])
