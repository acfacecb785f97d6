"""A bot whose answers come while its webhooks are held open."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx2

from pabal.hub import Hub
from pabal.relay.reply.reply import BotReply, encode_skill_response
from pabal.relay.reply.send import ReplyResult
from relay.bot import StreamClient, connect_stream
from relay.skills import skill_payload
from support.relay_rows import Chat, Owner, digest, skill_response
from support.server import serve_hub
from support.wait import wait_until
from support.webhook import WEBHOOK_HEADERS


@dataclass(slots=True)
class HeldChat:
    """One user, a bot on a stream, and the hub between them."""

    hub: Hub
    chat: Chat
    owner: Owner
    web: httpx2.AsyncClient
    stream: StreamClient
    address: str

    def start(self, text: str, user: str = "user", **request: Any) -> "asyncio.Task[dict[str, Any]]":
        """A webhook without a callback, unless the request names one."""
        return self.start_payload(skill_payload(text, user, **{"callbackUrl": None} | request))

    def start_payload(self, payload: dict[str, Any]) -> "asyncio.Task[dict[str, Any]]":
        return asyncio.create_task(self._post(payload))

    async def _post(self, payload: dict[str, Any]) -> dict[str, Any]:
        response = await self.web.post("/kakao/webhook", json=payload, headers=WEBHOOK_HEADERS)
        assert response.status_code == 200, response.text
        return response.json()

    async def next_message(self) -> UUID:
        return UUID((await self.stream.next_message())["id"])

    async def reply(self, message: UUID, *texts: str, hub: Hub | None = None) -> ReplyResult:
        """Send a reply, by default through the hub that holds the webhook."""
        response = skill_response(*texts)
        return await (hub or self.hub).relay.replies.send(
            BotReply(digest(self.owner.token), message, None, response, encode_skill_response(response))
        )

    async def wait_until_held(self, count: int = 1) -> None:
        await wait_until(lambda: self.hub.relay.held_webhooks.count == count)

    async def wait_for_outcome(self, message: UUID, *outcomes: str) -> dict[str, Any]:
        """The row of the reply as soon as it has one of these outcomes."""

        async def has_outcome() -> bool:
            row = await self.chat.reply(message)
            return row is not None and row["outcome"] in outcomes

        await wait_until(has_outcome)
        row = await self.chat.reply(message)
        assert row
        return row

    def send_raw_webhook(self, writer: asyncio.StreamWriter, payload: dict[str, Any]) -> None:
        """A webhook as bytes on a connection."""
        body = json.dumps(payload).encode()
        headers = WEBHOOK_HEADERS | {"host": "hub", "content-length": str(len(body))}
        lines = ["POST /kakao/webhook HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        writer.write("\r\n".join(lines).encode() + body)


@asynccontextmanager
async def held_chat(hub: Hub, chat: Chat, **columns: object) -> AsyncGenerator[HeldChat]:
    """A hub behind its web server with a user and a bot that is connected."""
    owner = await chat.owner(**columns)
    await chat.conversation(owner)
    async with (
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address, timeout=60) as web,
        connect_stream(address, owner.token) as stream,
    ):
        await stream.next("connected")
        yield HeldChat(hub, chat, owner, web, stream, address)
