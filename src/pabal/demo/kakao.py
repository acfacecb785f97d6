"""A fake Kakao: it posts chat messages to the hub's webhook and accepts the hub's callbacks."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

import httpx2
import msgspec

from pabal.core.ids import new_id
from pabal.web.sse import PING, format_sse_event
from pabal.web.webhook_path import WEBHOOK_PATH

PING_SECONDS = 15.0
"""Seconds without an event after which an open page gets a ping."""

ChatEntry = dict[str, Any]


class ChatReader:
    """An open page: it gets the entries after number `after`, then new ones, until it disconnects."""

    def __init__(self, entries: "list[ChatEntry]", after: int) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        for entry in entries[after:]:
            self.push_entry(entry)

    def push_entry(self, entry: ChatEntry) -> None:
        self._queue.put_nowait(format_sse_event("entry", entry, entry["number"]))

    def push_bot_status(self, status: ChatEntry, number: int) -> None:
        self._queue.put_nowait(format_sse_event("bot", status, number))

    def close(self) -> None:
        self._queue.put_nowait(None)

    async def events(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(PING_SECONDS):
                    event = await self._queue.get()
            except TimeoutError:
                event = PING
            if event is None:
                return
            yield event


@dataclass(slots=True)
class DemoChat:
    """One user's chat with the channel."""

    entries: list[ChatEntry] = field(default_factory=list[ChatEntry])
    readers: set[ChatReader] = field(default_factory=set[ChatReader])

    def add(self, kind: str, **fields: Any) -> ChatEntry:
        entry = {"number": len(self.entries) + 1, "kind": kind, "at": round(time.time() * 1000), **fields}
        self.entries.append(entry)
        for reader in self.readers:
            reader.push_entry(entry)
        return entry

    def push_bot_status(self, status: ChatEntry) -> None:
        for reader in self.readers:
            reader.push_bot_status(status, len(self.entries))


BOT_ID = "pabal-demo"
SKILL_TIMEOUT = 5.0
"""Seconds Kakao waits for the skill's response."""
CALLBACK_LIFETIME_SECONDS = 60.0
SKILL_BLOCK = {"id": "fallback", "name": "Fallback block"}


@dataclass(slots=True)
class FakeCallback:
    """A callback URL: valid once, for a minute."""

    chat: DemoChat
    number: int
    expires_at: float
    timer: asyncio.TimerHandle
    is_used: bool = False


@dataclass(frozen=True, slots=True)
class FakeCallbackResponse:
    """Kakao's response to a callback. A rejection can also have status 200."""

    status: HTTPStatus
    body: dict[str, Any]


class FakeKakao:
    """The platform. `hub` is the URL of its skill server, `callback_base` the base of its callback URLs.

    `skill_headers` are the headers of the skill settings, with the webhook secret.
    """

    def __init__(
        self, hub: str, callback_base: str, skill_headers: dict[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._web = httpx2.AsyncClient(base_url=hub, headers=skill_headers, timeout=SKILL_TIMEOUT, trust_env=False)
        self._callback_base = callback_base
        self._clock = clock
        self._chats: dict[str, DemoChat] = {}
        self._callbacks: dict[str, FakeCallback] = {}
        self._code: str | None = None
        self._paired: frozenset[str] = frozenset()

    def chat(self, user: str) -> DemoChat:
        return self._chats.setdefault(user, DemoChat())

    async def send_message(self, user: str, text: str, language: str = "ko") -> None:
        """Send a user's message to the hub and add the result to their chat."""
        chat = self.chat(user)
        mine = chat.add("mine", text=text)
        token = self._issue_callback(chat, mine["number"])
        try:
            async with asyncio.timeout(SKILL_TIMEOUT):
                response = await self._web.post(
                    WEBHOOK_PATH, json=skill_payload(user, text, language, f"{self._callback_base}/{token}")
                )
        except (httpx2.HTTPError, TimeoutError):
            self._withdraw_callback(token)
            chat.add("failed", why="silent")
            return
        skill = decode_object(response.content)
        if response.status_code != HTTPStatus.OK or skill is None:
            self._withdraw_callback(token)
            chat.add("failed", why="refused", status=response.status_code)
        elif skill.get("useCallback") is True:
            self._show_waiting(token, skill)
        else:
            self._withdraw_callback(token)
            chat.add("said", **page_outputs(skill))

    def receive_callback(self, token: str, body: bytes) -> FakeCallbackResponse:
        """Accept the first valid response within a minute; reject everything else."""
        callback = self._callbacks.get(token)
        skill = decode_object(body)
        if callback is None:
            return fake_callback_response(HTTPStatus.NOT_FOUND, "FAIL", "unknown callback")
        if self._clock() >= callback.expires_at:
            return fake_callback_response(HTTPStatus.OK, "FAIL", "the callback has expired")
        if callback.is_used:
            return fake_callback_response(HTTPStatus.OK, "FAIL", "the callback was used before")
        callback.is_used = True
        callback.timer.cancel()
        if skill is None or "version" not in skill or "template" not in skill:
            callback.chat.add("lapsed", answers=callback.number)
            return fake_callback_response(HTTPStatus.BAD_REQUEST, "ERROR", "not a skill response")
        callback.chat.add("said", answers=callback.number, **page_outputs(skill))
        return fake_callback_response(HTTPStatus.OK, "SUCCESS", "")

    def announce_code(self, code: str | None, paired: Collection[str]) -> None:
        """Push the bot's pairing code to every page, and whether its user is paired."""
        self._code, self._paired = code, frozenset(paired)
        for user, chat in self._chats.items():
            chat.push_bot_status(self._bot_status(user))

    def open_reader(self, user: str, after: int) -> ChatReader:
        """Start a page's stream of a user's chat."""
        chat = self.chat(user)
        reader = ChatReader(chat.entries, after)
        reader.push_bot_status(self._bot_status(user), len(chat.entries))
        chat.readers.add(reader)
        return reader

    def close_reader(self, user: str, reader: ChatReader) -> None:
        self.chat(user).readers.discard(reader)

    async def shut_down(self) -> None:
        """Close every stream and cancel the callback timers."""
        for callback in self._callbacks.values():
            callback.timer.cancel()
        for chat in self._chats.values():
            for reader in chat.readers:
                reader.close()
        await self._web.aclose()

    def _bot_status(self, user: str) -> ChatEntry:
        return {"code": self._code, "paired": user in self._paired}

    def _issue_callback(self, chat: DemoChat, number: int) -> str:
        token = secrets.token_urlsafe(24)
        timer = asyncio.get_running_loop().call_later(CALLBACK_LIFETIME_SECONDS, self._expire_callback, token)
        self._callbacks[token] = FakeCallback(chat, number, self._clock() + CALLBACK_LIFETIME_SECONDS, timer)
        return token

    def _show_waiting(self, token: str, skill: ChatEntry) -> None:
        callback = self._callbacks[token]
        if not callback.is_used:  # a fast bot can call back before the webhook responds
            data = skill.get("data")
            text = cast("ChatEntry", data).get("text") if isinstance(data, dict) else None
            callback.chat.add("awaited", text=text, answers=callback.number)

    def _expire_callback(self, token: str) -> None:
        callback = self._callbacks[token]
        callback.chat.add("lapsed", answers=callback.number)

    def _withdraw_callback(self, token: str) -> None:
        self._callbacks.pop(token).timer.cancel()


def skill_payload(user: str, text: str, language: str, callback_url: str) -> dict[str, Any]:
    """A skill payload as Kakao sends it, for a block that allows callbacks."""
    return {
        "intent": SKILL_BLOCK,
        "userRequest": {
            "timezone": "Asia/Seoul",
            "params": {"ignoreMe": "true", "surface": "Kakaotalk.plusfriend"},
            "block": SKILL_BLOCK,
            "utterance": text,
            "lang": language,
            "user": {
                "id": f"bot-{user}",
                "type": "botUserKey",
                "properties": {"botUserKey": f"bot-{user}", "plusfriendUserKey": user},
            },
            "callbackUrl": callback_url,
        },
        "bot": {"id": BOT_ID, "name": "Pabal demo"},
        "action": {"name": "pabal", "id": "pabal", "clientExtra": {}, "params": {}, "detailParams": {}},
    }


def page_outputs(skill: ChatEntry) -> dict[str, Any]:
    """The parts of a skill response that the page shows."""
    template = skill.get("template")
    parts = cast("ChatEntry", template) if isinstance(template, dict) else {}
    return {"outputs": parts.get("outputs") or [], "quickReplies": parts.get("quickReplies") or []}


def decode_object(body: bytes) -> ChatEntry | None:
    try:
        value: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return cast("ChatEntry", value) if isinstance(value, dict) else None


def fake_callback_response(status: HTTPStatus, result: str, message: str) -> FakeCallbackResponse:
    body = {"taskId": str(new_id()), "status": result, "message": message, "timestamp": round(time.time() * 1000)}
    return FakeCallbackResponse(status, body)
