"""Kakao, played: posts what a person writes to the hub's webhook, and takes the hub's callbacks."""

import asyncio
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

import httpx2
import msgspec

from pabal.core.ids import new_id
from pabal.demo.chat import Chat, Entry, Reader

BOT = "pabal-demo"
WEBHOOK = "/kakao-talkchannel/webhook"
PATIENCE = 5.0
"""Seconds Kakao waits for a skill's answer."""
CALLBACK_LIFE = 60.0
BLOCK = {"id": "fallback", "name": "Fallback block"}


@dataclass(slots=True)
class Callback:
    """A callback URL that was given out: good once, and for a minute."""

    chat: Chat
    number: int
    until: float
    timer: asyncio.TimerHandle
    is_spent: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What Kakao says to whoever posted to a callback URL. A refusal, too, may come with status 200."""

    status: HTTPStatus
    said: dict[str, Any]


class Kakao:
    """The platform. `hub` is where its one skill lives, `here` is where it can be called back."""

    def __init__(self, hub: str, here: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._web = httpx2.AsyncClient(base_url=hub, timeout=PATIENCE, trust_env=False)
        self._here = here
        self._clock = clock
        self._chats: dict[str, Chat] = {}
        self._callbacks: dict[str, Callback] = {}
        self._code: str | None = None
        self._paired: frozenset[str] = frozenset()

    def chat(self, user: str) -> Chat:
        return self._chats.setdefault(user, Chat())

    async def say(self, user: str, text: str, language: str = "ko") -> None:
        """Somebody writes. What comes of it is in their chat."""
        chat = self.chat(user)
        mine = chat.add("mine", text=text)
        token = self._give_callback(chat, mine["number"])
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await self._web.post(WEBHOOK, json=payload(user, text, language, f"{self._here}/{token}"))
        except (httpx2.HTTPError, TimeoutError):
            self._take_back(token)
            chat.add("failed", why="silent")
            return
        skill = object_in(answer.content)
        if answer.status_code != HTTPStatus.OK or skill is None:
            self._take_back(token)
            chat.add("failed", why="refused", status=answer.status_code)
        elif skill.get("useCallback") is True:
            self._await(token, skill)
        else:
            self._take_back(token)
            chat.add("said", **shown(skill))

    def take(self, token: str, body: bytes) -> Verdict:
        """Somebody posts to a callback URL. The first good answer within a minute is shown; the rest is refused."""
        callback = self._callbacks.get(token)
        skill = object_in(body)
        if callback is None:
            return verdict(HTTPStatus.NOT_FOUND, "FAIL", "unknown callback")
        if self._clock() >= callback.until:
            return verdict(HTTPStatus.OK, "FAIL", "the callback has expired")
        if callback.is_spent:
            return verdict(HTTPStatus.OK, "FAIL", "the callback was used before")
        callback.is_spent = True
        callback.timer.cancel()
        if skill is None or "version" not in skill or "template" not in skill:
            callback.chat.add("lapsed", answers=callback.number)
            return verdict(HTTPStatus.BAD_REQUEST, "ERROR", "not a skill response")
        callback.chat.add("said", answers=callback.number, **shown(skill))
        return verdict(HTTPStatus.OK, "SUCCESS", "")

    def announce(self, code: str | None, paired: Collection[str]) -> None:
        """Let every page know the bot's pairing code, and who need not use it any more."""
        self._code, self._paired = code, frozenset(paired)
        for user, chat in self._chats.items():
            chat.tell(self._bot_for(user))

    def open(self, user: str, after: int) -> Reader:
        """A page begins to read somebody's chat."""
        chat = self.chat(user)
        reader = Reader(chat.said, after)
        reader.tell(self._bot_for(user), len(chat.said))
        chat.readers.add(reader)
        return reader

    def close(self, user: str, reader: Reader) -> None:
        self.chat(user).readers.discard(reader)

    async def leave(self) -> None:
        """Hang up on every page; nobody calls back any more."""
        for callback in self._callbacks.values():
            callback.timer.cancel()
        for chat in self._chats.values():
            for reader in chat.readers:
                reader.hang_up()
        await self._web.aclose()

    def _bot_for(self, user: str) -> Entry:
        return {"code": self._code, "paired": user in self._paired}

    def _give_callback(self, chat: Chat, number: int) -> str:
        token = secrets.token_urlsafe(24)
        timer = asyncio.get_running_loop().call_later(CALLBACK_LIFE, self._lapse, token)
        self._callbacks[token] = Callback(chat, number, self._clock() + CALLBACK_LIFE, timer)
        return token

    def _await(self, token: str, skill: Entry) -> None:
        callback = self._callbacks[token]
        if not callback.is_spent:  # a quick bot may have been faster than the webhook's own answer
            data = skill.get("data")
            text = cast("Entry", data).get("text") if isinstance(data, dict) else None
            callback.chat.add("awaited", text=text, answers=callback.number)

    def _lapse(self, token: str) -> None:
        callback = self._callbacks[token]
        callback.chat.add("lapsed", answers=callback.number)

    def _take_back(self, token: str) -> None:
        self._callbacks.pop(token).timer.cancel()


def payload(user: str, text: str, language: str, callback_url: str) -> dict[str, Any]:
    """A skill payload as Kakao writes it, for a block with the right to call back."""
    return {
        "intent": BLOCK,
        "userRequest": {
            "timezone": "Asia/Seoul",
            "params": {"ignoreMe": "true", "surface": "Kakaotalk.plusfriend"},
            "block": BLOCK,
            "utterance": text,
            "lang": language,
            "user": {
                "id": f"bot-{user}",
                "type": "botUserKey",
                "properties": {"botUserKey": f"bot-{user}", "plusfriendUserKey": user},
            },
            "callbackUrl": callback_url,
        },
        "bot": {"id": BOT, "name": "Pabal demo"},
        "action": {"name": "pabal", "id": "pabal", "clientExtra": {}, "params": {}, "detailParams": {}},
    }


def shown(skill: Entry) -> dict[str, Any]:
    """What a page needs of a skill response."""
    template = skill.get("template")
    parts = cast("Entry", template) if isinstance(template, dict) else {}
    return {"outputs": parts.get("outputs") or [], "quickReplies": parts.get("quickReplies") or []}


def object_in(body: bytes) -> Entry | None:
    try:
        read: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return cast("Entry", read) if isinstance(read, dict) else None


def verdict(status: HTTPStatus, word: str, message: str) -> Verdict:
    said = {"taskId": str(new_id()), "status": word, "message": message, "timestamp": round(time.time() * 1000)}
    return Verdict(status, said)
