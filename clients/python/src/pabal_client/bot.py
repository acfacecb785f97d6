"""A chat bot: it receives the messages of an account over a stream and replies to them.

bot = Bot("http://127.0.0.1:8700", token_file="bot.token")

@bot.message
async def answer(message):
    return f"You said: {message.text}"

bot.run()
"""

import asyncio
import logging
import re
import signal
import sys
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from random import random
from typing import TypeVar, cast

import httpx2

from pabal_client.bot_turns import BotTurns, MessageFunction
from pabal_client.errors import AuthenticationError, ClientError, HubUnavailableError, PermissionDeniedError
from pabal_client.relay_requests import (
    EventParser,
    StreamEvent,
    create_session_flow,
    decode_message,
    reply_flow,
    start_turn_flow,
)
from pabal_client.transport import MAX_RETRY_AFTER, Flow, HubResponse, SendRequest, SleepFor, raise_for_response

ResultT = TypeVar("ResultT")
MessageFunctionT = TypeVar("MessageFunctionT", bound=MessageFunction)

log = logging.getLogger(__name__)

STREAM_SILENCE = 60.0
"""Seconds without a byte after which a stream is dead: the hub sends a ping every 20 seconds."""
FIRST_RECONNECT, MAX_RECONNECT = 0.5, 30.0
"""Seconds before a reconnect."""
MAX_KNOWN_MESSAGES = 10_000
ENDED_STATUS = 410
TOKEN_PATTERN = re.compile(r"[!-~]+")
NO_CONNECTION = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
END_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def print_pairing_code(code: str) -> None:
    sys.stdout.write(f"Send this in the chat: /pair {code}\n")
    sys.stdout.flush()


class Bot:
    """A bot of one account. A message starts at most one turn of the handler, also if the bot crashes or reconnects.

    `token` is a relay token or a session token. Without one, the bot creates a session and shows its pairing code
    (`show_code`); with `token_file`, it keeps the session there and uses it at the next start. Messages of one
    conversation are handled one after the other, up to `concurrency` conversations at once. `error_text` is the reply
    if the handler fails; without it, the user gets none.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        token_file: str | Path | None = None,
        show_code: Callable[[str], object] = print_pairing_code,
        concurrency: int = 10,
        timeout: float = 30.0,
        grace: float = 10.0,
        error_text: str | None = None,
    ) -> None:
        self._address = address
        self._token = None if token is None else check_token("token", token)
        self._owns_session = token is None
        self._token_file = Path(token_file) if token_file else None
        self._show_code = show_code
        self._concurrency = concurrency
        self._timeout = timeout
        self._grace = grace
        self._error_text = error_text
        self._function: MessageFunction | None = None
        self._known: OrderedDict[str, None] = OrderedDict()
        self._last_id = ""

    def message(self, function: MessageFunctionT) -> MessageFunctionT:
        """Register the handler, sync or async. It returns the reply: a text, a skill response, or None for no reply."""
        if self._function is not None:
            raise TypeError("a bot has one handler for messages")
        self._function = function
        return function

    def run(self) -> None:
        """Serve until Ctrl-C or SIGTERM."""
        asyncio.run(self._serve_until_signal())

    async def serve(self, stop: asyncio.Event | None = None) -> None:
        """Serve until `stop` is set. Then turns have `grace` seconds to finish; messages without a turn stay queued.

        Raises AuthenticationError if the hub does not know the token, and PermissionDeniedError if the account is
        disabled. Everything else is retried.
        """
        if self._function is None:
            raise TypeError("no handler: register one with @bot.message")
        stop = stop or asyncio.Event()
        self._known.clear()  # of an earlier call: the hub delivers its messages without a turn again
        self._last_id = ""
        async with httpx2.AsyncClient(base_url=self._address, follow_redirects=False) as http:
            calls = BotConnection(http, self._timeout)
            turns = BotTurns(
                self._function,
                self._concurrency,
                self._error_text,
                lambda message_id: calls.run_flow(start_turn_flow(self._current_token, message_id)),
                lambda message_id, reply: calls.run_flow(reply_flow(self._current_token, message_id, reply)),
            )
            reading = asyncio.create_task(self._read(calls, turns))
            stopping = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    reading.result()  # raises: reading ends only by an error
            finally:
                for task in (reading, stopping):
                    task.cancel()
                await asyncio.gather(reading, stopping, return_exceptions=True)
                await turns.close(self._grace)

    @property
    def _current_token(self) -> str:
        assert self._token is not None
        return self._token

    async def _serve_until_signal(self) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in END_SIGNALS:
                with suppress(NotImplementedError):  # Windows: Ctrl-C cancels
                    loop.add_signal_handler(number, stop.set)
        await self.serve(stop)

    async def _read(self, calls: "BotConnection", turns: BotTurns) -> None:
        """Start the turns of the messages, across reconnects and sessions."""
        self._load_token()
        failures = 0
        while True:
            try:
                if self._token is None:
                    session = await calls.run_flow(create_session_flow())
                    self._token, self._last_id = session.session_token, ""
                    self._show_code(session.pairing_code)
                async with aclosing(calls.events(self._token, self._last_id)) as events:
                    async for event in events:
                        failures = 0
                        await self._take(event, turns)
                delay: float | None = None
            except AuthenticationError:
                if not self._owns_session:
                    raise
                log.warning("the session has ended: a user has to pair again")
                self._forget_token()
                delay = None
            except PermissionDeniedError:
                raise
            except ClientError as error:
                delay = getattr(error, "retry_after", None)
                log.warning("stream disconnected: %s", error)
            failures += 1
            await asyncio.sleep(reconnect_delay(failures, delay))

    async def _take(self, event: StreamEvent, turns: BotTurns) -> None:
        match event.name:
            case "message":
                message = decode_message(event.data)
                if message.id not in self._known:  # delivered again after a reconnect
                    self._known[message.id] = None
                    if len(self._known) > MAX_KNOWN_MESSAGES:
                        self._known.popitem(last=False)
                    await turns.add(message)
            case "connected" if event.data.get("status") == "paired":
                self._save_token()
                log.info("connected")
            case "pairing_complete":
                self._save_token()
                log.info("paired with %s", event.data.get("conversationKey"))
            case "pairing_expired" if self._owns_session:
                self._forget_token()
            case "error" | "unpaired":
                log.warning("%s: %s", event.name, event.data.get("message") or event.data.get("reason"))
            case _:
                log.debug("stream event: %s", event.name)
        self._last_id = event.event_id or self._last_id

    # The file with the session token

    def _load_token(self) -> None:
        if self._token is None:
            self._token = self._read_token_file()

    def _read_token_file(self) -> str | None:
        if self._token_file is None:
            return None
        try:
            text = self._token_file.read_text()
        except FileNotFoundError:
            return None
        return check_token("token_file", text) if text.strip() else None

    def _save_token(self) -> None:
        """Keep the token of a paired session. Before it is paired, a new one is as good."""
        if not self._owns_session or self._token_file is None:
            return
        try:
            if self._read_token_file() != self._token:
                self._token_file.touch(mode=0o600)
                self._token_file.chmod(0o600)
                self._token_file.write_text(f"{self._token}\n")
        except OSError as error:
            log.error("token not saved, so that the next start needs a new pairing: %s", error)

    def _forget_token(self) -> None:
        """Go on with a new session. The file stays until that one is paired: a proxy may have refused the token."""
        self._token = None


def check_token(name: str, text: str) -> str:
    """The token without spaces around it. An error of the HTTP library about its header would contain it."""
    token = text.strip()
    if not TOKEN_PATTERN.fullmatch(token):
        raise ValueError(f"{name}: must be printable ASCII without spaces")
    return token


def reconnect_delay(failures: int, retry_after: float | None) -> float:
    """Seconds before a reconnect: exponential backoff, or what the hub asks for, within limits."""
    jitter = 0.4 * random()  # noqa: S311 not a secret
    backoff = min(FIRST_RECONNECT * 2 ** min(failures - 1, 10), MAX_RECONNECT) * (0.8 + jitter)
    return max(backoff, min(retry_after or 0.0, MAX_RETRY_AFTER) * (1.0 + jitter))


def raise_for_stream(response: HubResponse) -> None:
    """Raise why the hub opened no stream. 401 and 410 mean that the token has ended."""
    if response.status == ENDED_STATUS:
        raise AuthenticationError(response.status, "GONE", "the token has ended")
    raise_for_response(response)
    raise HubUnavailableError(f"the hub returned HTTP {response.status} instead of a stream")


class BotConnection:
    """Runs the requests of a bot, and its stream."""

    def __init__(self, http: httpx2.AsyncClient, timeout: float) -> None:
        self._http = http
        self._timeout = timeout

    async def run_flow(self, flow: Flow[ResultT]) -> ResultT:
        try:
            step = next(flow)
            while True:
                match step:
                    case SendRequest():
                        step = flow.send(await self._send(step))
                    case SleepFor():
                        await asyncio.sleep(step.seconds)
                        step = flow.send(HubResponse(0, {}, b""))
                    case _:
                        raise AssertionError  # a bot has no tokens to renew
        except StopIteration as end:
            return cast("ResultT", end.value)

    async def events(self, token: str, last_id: str) -> AsyncGenerator[StreamEvent]:
        """Open a stream and yield its events until it ends. `last_id` tells the hub what this bot has received."""
        headers = {"authorization": f"Bearer {token}"} | ({"last-event-id": last_id} if last_id else {})
        timeout = httpx2.Timeout(self._timeout, read=STREAM_SILENCE)
        parser = EventParser()
        try:
            async with self._http.stream("GET", "/v1/events", headers=headers, timeout=timeout) as response:
                if response.status_code != 200:  # noqa: PLR2004 an HTTP status
                    raise_for_stream(HubResponse(response.status_code, response.headers, await response.aread()))
                async for chunk in response.aiter_bytes():
                    for event in parser.feed(chunk):
                        yield event
        except httpx2.HTTPError as error:
            raise HubUnavailableError(f"{type(error).__name__}: {error}") from None

    async def _send(self, request: SendRequest) -> HubResponse:
        try:
            response = await self._http.request(
                request.method,
                request.path,
                content=request.body,
                headers=dict(request.headers),
                timeout=self._timeout,
            )
        except httpx2.HTTPError as error:
            is_unsent = isinstance(error, NO_CONNECTION)
            return HubResponse(0, {}, f"{type(error).__name__}: {error}".encode(), is_unsent)
        return HubResponse(response.status_code, response.headers, response.content)
