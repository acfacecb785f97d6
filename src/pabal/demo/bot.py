"""Somebody's bot, played: it says again what it is told, shows a card when asked, and can be slow."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing
from typing import Any

import httpx2

from pabal.core.log import get_logger
from pabal.demo.plugin import Data, Session, Told, create, is_well
from pabal.relay.skill import VERSION

log = get_logger()

SLOW = 70.0  # longer than Kakao's callback lives
PAUSE = 2.0

Announce = Callable[[str | None, Collection[str]], None]
"""Takes the code that somebody may pair with now, and who has paired."""
Think = Callable[[], Awaitable[object]]

CARD, SLOWLY = ("카드", "card"), ("천천히", "slowly")
"""What the bot understands, in Korean and in English; everything else it echoes."""


class EchoBot:
    """A bot that always has one more session waiting, so that whoever comes next can pair with it too."""

    def __init__(self, hub: str, announce: Announce, think: Think | None = None) -> None:
        self._hub = hub
        self._announce = announce
        self._think = think or slowly
        """What it does first when it is asked to be slow."""
        self._code: str | None = None
        self._paired: set[str] = set()
        self._answering: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Talk until cancelled."""
        async with httpx2.AsyncClient(base_url=self._hub, trust_env=False) as web, asyncio.TaskGroup() as group:
            while True:
                try:
                    session = await create(web) if await is_well(web) else None
                except httpx2.HTTPError as error:
                    log.debug("no session", why=str(error) or type(error).__name__)
                    session = None
                if session is None:
                    await asyncio.sleep(PAUSE)
                    continue
                self._code = session.code
                self._announce(self._code, self._paired)
                taken = asyncio.Event()
                group.create_task(self._converse(session, taken, group))
                await taken.wait()

    async def _converse(self, session: Session, taken: asyncio.Event, group: asyncio.TaskGroup) -> None:
        """Serve one session to its end; `taken` once its code is of no use any more."""
        user = ""
        async with aclosing(session.events()) as events:
            async for told in events:
                match told.name:
                    case "pairing_complete":
                        user = str(told.data["kakaoUserId"])
                        self._used(session, taken, self._paired | {user})
                    case "message":
                        self._take(told, session, group)
                    case "unpaired" | "pairing_expired":
                        break
                    case "connected" if user and await has_ended(session):
                        break  # they left while we were away
                    case _:
                        log.debug("stream told", name=told.name)
        self._used(session, taken, self._paired - {user})

    def _used(self, session: Session, taken: asyncio.Event, paired: set[str]) -> None:
        self._paired = paired
        self._code = None if self._code == session.code else self._code
        self._announce(self._code, self._paired)
        taken.set()

    def _take(self, told: Told, session: Session, group: asyncio.TaskGroup) -> None:
        """Begin an answer, unless this is a message we are answering already."""
        message = told.data
        if message["id"] not in self._answering:
            answering = group.create_task(self._answer(session, message))
            self._answering[message["id"]] = answering
            answering.add_done_callback(lambda _: self._answering.pop(message["id"]))

    async def _answer(self, session: Session, message: Data) -> None:
        text, language = str(message["normalized"]["text"]), language_of(message)
        if is_asked(text, SLOWLY):
            await self._think()
        try:
            answer = await session.reply(message["id"], answer_to(text, language))
        except httpx2.HTTPError as error:
            log.warning("reply lost", message=message["id"], why=str(error) or type(error).__name__)
        else:
            log.debug("reply answered", message=message["id"], status=answer.status_code)


async def has_ended(session: Session) -> bool:
    """Whether whoever had paired is gone; a hub that cannot say so now says so on the stream."""
    try:
        return await session.status() == "disconnected"
    except httpx2.HTTPError:
        return False


async def slowly() -> None:
    await asyncio.sleep(SLOW)


def answer_to(text: str, language: str) -> Data:
    """What the bot says to `text`."""
    korean = language == "ko"
    if is_asked(text, CARD):
        output: Data = {"textCard": card(korean=korean)}
    elif is_asked(text, SLOWLY):
        output = simple("천천히 생각한 답이에요." if korean else "This is the answer I took my time for.")
    else:
        output = simple((f"메아리: {text}" if korean else f"Echo: {text}")[:1000])
    column = 0 if korean else 1
    quick = [{"label": word, "action": "message", "messageText": word} for word in (CARD[column], SLOWLY[column])]
    return {"version": VERSION, "template": {"outputs": [output], "quickReplies": quick}}


def simple(text: str) -> Data:
    return {"simpleText": {"text": text}}


def card(*, korean: bool) -> Data:
    if korean:
        title, description, label = "파발", "소식을 역에서 역으로 넘겨 끝내 전하던 조선의 통신.", "반가워"
    else:
        title, description, label = "Pabal", "Riders who handed a message on until it arrived.", "Well met"
    return {
        "title": title,
        "description": description,
        "buttons": [{"label": label, "action": "message", "messageText": label}],
    }


def is_asked(text: str, words: tuple[str, str]) -> bool:
    return text.strip().lower() in words


def language_of(message: Data) -> str:
    request: Any = message["kakaoPayload"].get("userRequest", {})
    return "ko" if str(request.get("lang", "ko")).startswith("ko") else "en"
