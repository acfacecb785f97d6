"""A client of the notifications API, authenticated as a service."""

from typing import Any

import httpx2

from pabal.hub import Hub
from support.notifications import PAID
from support.oauth_client import bearer, register_oauth_service

PATH = "/v1/notifications"
REQUEST: dict[str, Any] = {
    "recipient_type": "user_dm",
    "recipient_id": "100",
    "template_key": "payment.succeeded",
    "payload": PAID,
}


class ApiService:
    """An HTTP client with the token of a service."""

    def __init__(self, web: httpx2.AsyncClient, token: str) -> None:
        self._web = web
        self.header = bearer(token)

    async def call(self, method: str, path: str = PATH, status: int = 200, **overrides: Any) -> Any:
        answer = await self._web.request(method, path, headers=self.header, **overrides)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    async def send(self, status: int = 202, **values: Any) -> Any:
        return await self.call("POST", status=status, json=REQUEST | values)

    async def field_errors(self, path: str = PATH, method: str = "POST", **values: Any) -> list[tuple[str, str]]:
        refused = await self.call(method, path, 400, json=values)
        return [(item["field"], item["why"]) for item in refused["mistakes"]]


async def register_service(hub: Hub, web: httpx2.AsyncClient, name: str, *permissions: str) -> ApiService:
    enrolled = await register_oauth_service(hub, web, name, *permissions)
    return ApiService(web, (await enrolled.tokens())["access_token"])
