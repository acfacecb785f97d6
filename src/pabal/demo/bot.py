"""The demo bot: it echoes messages, sends a card on request, and can be slow."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

import httpx2
import msgspec

from pabal.core.json_object import JsonObject
from pabal.core.log import get_logger
from pabal.relay.webhook.skill_response import SKILL_VERSION, ChatLanguage

log = get_logger()

FIRST_RECONNECT_DELAY, MAX_RECONNECT_DELAY = 0.5, 10.0
"""Seconds before the first reconnect, and at most."""
STREAM_TIMEOUT = httpx2.Timeout(10.0, read=60.0)
"""The hub sends a ping every 20 seconds."""
ENDED_HTTP_STATUSES = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.GONE})
ENDED_SESSION_STATES = frozenset({"expired", "unknown"})


@dataclass(frozen=True, slots=True)
class DemoStreamEvent:
    """One server-sent event."""

    name: str
    data: JsonObject = field(repr=False)
    event_id: str = ""


class DemoRelaySession:
    """One session token, from its pairing code to its end."""

    def __init__(self, web: httpx2.AsyncClient, response: JsonObject) -> None:
        self._web = web
        self._token: str = response["sessionToken"]
        self.code: str = response["pairingCode"]

    async def status(self) -> str:
        """The state of the session; `unknown` if the hub does not know it."""
        response = await self._web.get(f"/v1/sessions/{self._token}/status")
        return "unknown" if response.status_code == HTTPStatus.NOT_FOUND else json_content(response)["status"]

    async def events(self) -> AsyncGenerator[DemoStreamEvent]:
        """Yield the events of the stream, across reconnects, until the token ends."""
        last_id, failures = "", 0
        while True:
            try:
                async with self._stream(last_id) as response:
                    if response.status_code in ENDED_HTTP_STATUSES:
                        return
                    response.raise_for_status()
                    async for event in read_sse_events(response.aiter_bytes()):
                        last_id, failures = event.event_id or last_id, 0
                        yield event
                        if event.name == "pairing_complete":
                            break  # as the plugins do: reconnect as the account
                    else:
                        failures += 1
                if failures and await self.status() in ENDED_SESSION_STATES:
                    return
            except httpx2.HTTPError as error:
                failures += 1
                log.debug("stream disconnected", error=str(error) or type(error).__name__)
            if failures:
                await asyncio.sleep(min(FIRST_RECONNECT_DELAY * 2 ** (failures - 1), MAX_RECONNECT_DELAY))

    async def reply(self, message_id: str, response: JsonObject) -> httpx2.Response:
        body = {"messageId": message_id, "response": response}
        return await self._web.post("/openclaw/reply", json=body, headers=self._auth_headers())

    def _stream(self, last_id: str) -> Any:
        resume_headers = {"last-event-id": last_id} if last_id else {}
        return self._web.stream(
            "GET", "/v1/events", headers=self._auth_headers() | resume_headers, timeout=STREAM_TIMEOUT
        )

    def _auth_headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token}"}


async def create_demo_session(web: httpx2.AsyncClient) -> DemoRelaySession:
    """Create a session. A user connects to it by sending its pairing code in the chat."""
    return DemoRelaySession(web, json_content(await web.post("/v1/sessions/create", json={})))


async def is_hub_healthy(web: httpx2.AsyncClient) -> bool:
    return (await web.get("/health")).status_code == HTTPStatus.OK


def json_content(response: httpx2.Response) -> JsonObject:
    response.raise_for_status()
    return cast("JsonObject", response.json())


async def read_sse_events(chunks: AsyncIterable[bytes]) -> AsyncIterator[DemoStreamEvent]:
    """Parse server-sent events. Only LF ends a line: JSON may contain other line separators unescaped."""
    buffer = b""
    async for chunk in chunks:
        buffer += chunk
        *blocks, buffer = buffer.split(b"\n\n")
        for block in blocks:
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if not line.startswith(b":"))
            if b"data" in fields:
                name, number = fields.get(b"event", b"message").decode(), fields.get(b"id", b"").decode()
                yield DemoStreamEvent(name, msgspec.json.decode(fields[b"data"]), number)


SLOW_REPLY_SECONDS = 70.0  # longer than Kakao's callback lives
SESSION_RETRY_SECONDS = 2.0

AnnounceCode = Callable[[str | None, Collection[str]], None]
"""Takes the current pairing code and the paired users."""
SlowStep = Callable[[], Awaitable[object]]

CARD_WORDS, SLOW_WORDS = ("카드", "card"), ("천천히", "slowly")
"""The bot's commands, in Korean and English. It echoes everything else."""


class EchoBot:
    """A bot that always keeps one unpaired session open, so that the next user can pair with it."""

    def __init__(self, hub: str, announce: AnnounceCode, slow_step: SlowStep | None = None) -> None:
        self._hub = hub
        self._announce = announce
        self._slow_step = slow_step or wait_slowly
        self._code: str | None = None
        self._paired: set[str] = set()
        self._replies: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Answer messages until cancelled."""
        async with httpx2.AsyncClient(base_url=self._hub, trust_env=False) as web, asyncio.TaskGroup() as group:
            while True:
                try:
                    session = await create_demo_session(web) if await is_hub_healthy(web) else None
                except httpx2.HTTPError as error:
                    log.debug("session not created", error=str(error) or type(error).__name__)
                    session = None
                if session is None:
                    await asyncio.sleep(SESSION_RETRY_SECONDS)
                    continue
                code_used = asyncio.Event()
                group.create_task(self._converse(session, code_used, group))
                await code_used.wait()

    async def _converse(self, session: DemoRelaySession, code_used: asyncio.Event, group: asyncio.TaskGroup) -> None:
        """Serve one session to its end. Sets `code_used` once its pairing code is used or expired."""
        user = ""
        async with aclosing(session.events()) as events:
            async for event in events:
                match event.name:
                    case "pairing_complete":
                        user = str(event.data["kakaoUserId"])
                        self._release_code(session, code_used, self._paired | {user})
                    case "message":
                        self._start_reply(event, session, group)
                    case "unpaired" | "pairing_expired":
                        break
                    case "connected" if not user:
                        self._code = session.code  # from here on, the stream reports who pairs
                        self._announce(self._code, self._paired)
                    case "connected" if await has_session_ended(session):
                        break  # the user unpaired while we were disconnected
                    case _:
                        log.debug("stream event", name=event.name)
        self._release_code(session, code_used, self._paired - {user})

    def _release_code(self, session: DemoRelaySession, code_used: asyncio.Event, paired: set[str]) -> None:
        self._paired = paired
        self._code = None if self._code == session.code else self._code
        self._announce(self._code, self._paired)
        code_used.set()

    def _start_reply(self, event: DemoStreamEvent, session: DemoRelaySession, group: asyncio.TaskGroup) -> None:
        """Start a reply, unless this message is being answered already."""
        message = event.data
        if message["id"] not in self._replies:
            task = group.create_task(self._send_reply(session, message))
            self._replies[message["id"]] = task
            task.add_done_callback(lambda _: self._replies.pop(message["id"]))

    async def _send_reply(self, session: DemoRelaySession, message: JsonObject) -> None:
        text, language = str(message["normalized"]["text"]), demo_language(message)
        if is_bot_command(text, SLOW_WORDS):
            await self._slow_step()
        try:
            response = await session.reply(message["id"], demo_response(text, language))
        except httpx2.HTTPError as error:
            log.warning("reply lost", message=message["id"], error=str(error) or type(error).__name__)
        else:
            log.debug("reply sent", message=message["id"], status=response.status_code)


async def has_session_ended(session: DemoRelaySession) -> bool:
    """Whether the paired user has left. If the hub cannot answer now, the stream reports it later."""
    try:
        return await session.status() == "disconnected"
    except httpx2.HTTPError:
        return False


async def wait_slowly() -> None:
    await asyncio.sleep(SLOW_REPLY_SECONDS)


def demo_response(text: str, language: ChatLanguage) -> JsonObject:
    """The bot's reply to `text`."""
    korean = language == "ko"
    if is_bot_command(text, CARD_WORDS):
        output: JsonObject = {"textCard": demo_text_card(korean=korean)}
    elif is_bot_command(text, SLOW_WORDS):
        output = simple_text_output("천천히 생각한 답이에요." if korean else "This is the answer I took my time for.")
    else:
        output = simple_text_output((f"메아리: {text}" if korean else f"Echo: {text}")[:1000])
    column = 0 if korean else 1
    quick = [
        {"label": word, "action": "message", "messageText": word} for word in (CARD_WORDS[column], SLOW_WORDS[column])
    ]
    return {"version": SKILL_VERSION, "template": {"outputs": [output], "quickReplies": quick}}


def simple_text_output(text: str) -> JsonObject:
    return {"simpleText": {"text": text}}


def demo_text_card(*, korean: bool) -> JsonObject:
    if korean:
        title, description, label = "파발", "소식을 역에서 역으로 넘겨 끝내 전하던 조선의 통신.", "반가워"
    else:
        title, description, label = "Pabal", "Riders who handed a message on until it arrived.", "Well met"
    return {
        "title": title,
        "description": description,
        "buttons": [{"label": label, "action": "message", "messageText": label}],
    }


def is_bot_command(text: str, words: tuple[str, str]) -> bool:
    return text.strip().lower() in words


def demo_language(message: JsonObject) -> ChatLanguage:
    request: Any = message["kakaoPayload"].get("userRequest", {})
    return "ko" if str(request.get("lang", "ko")).startswith("ko") else "en"
