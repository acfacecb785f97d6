"""Kakao, its users and their bots, in one process and played as cheaply as can be: what is measured is the hub.

python -m bench.kakao < a JSON object: the hub's port, whether they talk, for how many seconds, and who takes part

Who talks writes again once the bot's answer has come through the callback; otherwise as soon as the webhook was
answered. The bots are on streams, and answer at once.
"""

import asyncio
import json
import resource
import sys
import time
from collections import deque
from itertools import count
from typing import Any

import uvloop

from bench.wire import HOST, Line, asked, call, listen

SUCCESS = b'{"taskId":"task","status":"SUCCESS","message":"ok","timestamp":1700000000000}'
TAKEN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(SUCCESS), SUCCESS)
RESPONSE = {"version": "2.0", "template": {"outputs": [{"simpleText": {"text": "서울은 맑고 21도입니다. " * 5}}]}}
MARK = "############"
"""Where a callback's number goes: each message has one of its own."""
NUMBER = count(time.time_ns() % 10**9)


class User:
    """Somebody who writes to a bot, one message at a time."""

    def __init__(self, stage: "Stage", place: int, who: dict[str, str]) -> None:
        self._stage = stage
        self.token = who["token"]
        self.key = f"{who['channel']}:{who['user']}".encode()
        body = written(who["channel"], who["user"], f"http://{HOST}:{stage.kakao}/callback/{place}/{MARK}")
        self._before, self._after = asked("POST", "/kakao/webhook", body).split(MARK.encode())
        self._awaits = 0
        self._wrote = 0.0

    async def come(self, port: int) -> None:
        self._line = await call(port, self._answered)

    def write(self) -> None:
        self._awaits = 2 if self._stage.talks else 1
        self._wrote = time.perf_counter()
        self._line.say(b"%b%012d%b" % (self._before, next(NUMBER), self._after))

    def _answered(self, _line: Line, head: bytes, body: bytes) -> None:
        if b'"useCallback":true' in body:
            self.hears("webhook")
        else:
            self._stage.fails(head, body)

    def hears(self, what: str) -> None:
        """Of the webhook's answer, and of the bot's: then it writes again."""
        self.notes(what)
        self._awaits -= 1
        if not self._awaits and not self._stage.over:
            self.write()

    def notes(self, what: str) -> None:
        self._stage.took[what].append(time.perf_counter() - self._wrote)


class Stage:
    """Everybody who takes part, and how long they waited for what."""

    def __init__(self, *, talks: bool) -> None:
        self.talks = talks
        self.over = False
        self.took: dict[str, list[float]] = {"webhook": [], "stream": [], "callback": []}
        self.kakao = 0
        self._users: list[User] = []
        self._by_key: dict[bytes, User] = {}
        self._free: list[Line] = []
        self._waiting: deque[bytes] = deque()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def play(self, port: int, who: list[dict[str, str]], seconds: float) -> dict[str, Any]:
        server = await asyncio.get_running_loop().create_server(lambda: Line(self._posted), HOST, 0)
        self.kakao = server.sockets[0].getsockname()[1]
        self._users = [User(self, place, each) for place, each in enumerate(who)]
        self._by_key = {user.key: user for user in self._users}
        for user in self._users:
            await user.come(port)
        if self.talks:
            self._free = [await call(port, self._replied) for _ in range(2 * len(who))]
            for token in {user.token for user in self._users}:
                await listen(port, token, self._handed)
        used, began = cpu(), time.perf_counter()
        for user in self._users:
            user.write()
        await asyncio.wait([self._failed], timeout=seconds)
        self.over = True
        if self._failed.done():
            self._failed.result()
        spent, used = time.perf_counter() - began, cpu() - used
        seen = {what: figures(took, spent) for what, took in self.took.items() if took}
        await asyncio.wait([self._failed], timeout=0.5)  # what is under way comes to its end
        return {"seconds": spent, "used": used, **seen}

    def fails(self, head: bytes, body: bytes) -> None:
        if not self._failed.done():
            self._failed.set_exception(RuntimeError(f"{head[:16].decode()}: {body.decode()}"))

    def _handed(self, message: bytes, key: bytes) -> None:
        """A bot is handed a message, and answers it."""
        user = self._by_key[key]
        user.notes("stream")
        body = json.dumps({"messageId": message.decode(), "response": RESPONSE}).encode()
        request = asked("POST", "/openclaw/reply", body, user.token)
        if self._free:
            self._free.pop().say(request)
        else:
            self._waiting.append(request)

    def _replied(self, line: Line, head: bytes, body: bytes) -> None:
        if b'"success":true' not in body:
            self.fails(head, body)
        elif self._waiting:
            line.say(self._waiting.popleft())
        else:
            self._free.append(line)

    def _posted(self, line: Line, head: bytes, _body: bytes) -> None:
        """Kakao hears the answer, and shows it."""
        line.say(TAKEN)
        self._users[int(head.split(b"/", 3)[2])].hears("callback")


def written(channel: str, user: str, callback: str) -> bytes:
    """A webhook's body as Kakao makes it."""
    return json.dumps(
        {
            "bot": {"id": channel, "name": "파발"},
            "intent": {"id": "5f1a", "name": "폴백 블록", "extra": {"reason": {"code": 1, "message": "OK"}}},
            "action": {
                "id": "6a2b",
                "name": "skill",
                "params": {},
                "detailParams": {},
                "clientExtra": {},
            },
            "userRequest": {
                "block": {"id": "5f1a", "name": "폴백 블록"},
                "user": {
                    "id": user,
                    "type": "botUserKey",
                    "properties": {"botUserKey": user, "plusfriendUserKey": user, "isFriend": True},
                },
                "utterance": "오늘 서울 날씨 어때? 우산을 가져가야 할까?",
                "params": {"ignoreMe": "true", "surface": "Kakaotalk.plusfriend"},
                "lang": "ko",
                "timezone": "Asia/Seoul",
                "callbackUrl": callback,
            },
            "contexts": [],
        },
        ensure_ascii=False,
    ).encode()


def figures(took: list[float], seconds: float) -> dict[str, float]:
    took.sort()
    return {"rate": len(took) / seconds, "p50": took[len(took) // 2], "p99": took[int(len(took) * 0.99)]}


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def main() -> None:
    told = json.load(sys.stdin)
    print(json.dumps(await Stage(talks=told["talks"]).play(told["port"], told["users"], told["seconds"])))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
