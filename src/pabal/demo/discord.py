"""A fake Discord API: it opens DM channels, accepts messages, rejects one user's, and fails now and then."""

from collections import deque
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pabal.demo.seed_data import HARU

DEMO_DISCORD_TOKEN = "demo"  # noqa: S105 not a real token
DM_PREFIX = "9"
"""First digit of a DM channel id; the rest is the user's id without its first digit."""
CLOSED_DM_USERS = frozenset({HARU.discord_id})
MAX_NONCES = 1000

DiscordEndpoint = Callable[[Request], Awaitable[Response]]


class FakeDiscord:
    """The part of Discord's API that sends messages."""

    def __init__(self) -> None:
        self._calls = count(1)
        self._messages = count(840_000_000_000_000_000)
        self._nonces: dict[str, str] = {}
        self._nonce_order: deque[str] = deque()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/users/@me/channels", self.open_dm, methods=["POST"]),
            Route("/channels/{channel}/messages", self.post_message, methods=["POST"]),
        ]

    async def open_dm(self, request: Request) -> Response:
        return JSONResponse({"id": DM_PREFIX + str((await request.json())["recipient_id"])[1:], "type": 1})

    async def post_message(self, request: Request) -> Response:
        """Accept a message. Every eleventh call is rate limited, every seventh fails."""
        number, channel = next(self._calls), request.path_params["channel"]
        if number % 11 == 0:
            return discord_error(429, 0, "You are being rate limited.", retry_after=1.5)
        if number % 7 == 0:
            return discord_error(503, 0, "upstream connect error")
        if any(channel == DM_PREFIX + user[1:] for user in CLOSED_DM_USERS):
            return discord_error(403, 50007, "Cannot send messages to this user")
        return JSONResponse({"id": self._message_id((await request.json()).get("nonce", "")), "channel_id": channel})

    def _message_id(self, nonce: str) -> str:
        """Return the id of the message. The same nonce returns the same message."""
        if nonce not in self._nonces:
            self._nonces[nonce] = str(next(self._messages))
            self._nonce_order.append(nonce)
        if len(self._nonce_order) > MAX_NONCES:
            del self._nonces[self._nonce_order.popleft()]
        return self._nonces[nonce]


def discord_error(status: int, code: int, message: str, **extra: Any) -> Response:
    return JSONResponse({"code": code, "message": message, **extra}, status)
