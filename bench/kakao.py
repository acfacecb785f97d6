"""Simulates Kakao, its users and their bots in one process, as cheaply as possible: the hub is what is measured.

python -m bench.kakao < JSON object: port of the hub, bot_port if bots connect to another process of it, talks (whole
round trips or webhooks only), seconds, users

In a round trip, a user sends the next message after the bot's reply came through the callback; otherwise after the
webhook's response. Bots are connected by streams and reply at once.
"""

import asyncio
import json
import resource
import sys
import time
from collections import deque
from itertools import count as counter
from typing import Any

import uvloop

from bench.wire import HOST, HttpConnection, connect, encode_request, encode_webhook, open_stream

SUCCESS = b'{"taskId":"task","status":"SUCCESS","message":"ok","timestamp":1700000000000}'
ACCEPTED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(SUCCESS),
    SUCCESS,
)
RESPONSE = {"version": "2.0", "template": {"outputs": [{"simpleText": {"text": "서울은 맑고 21도입니다. " * 5}}]}}
NUMBER_PLACEHOLDER = "############"
"""Replaced by a number in each callback URL, so that every message has its own callback."""
NUMBER = counter(time.time_ns() % 10**9)


class User:
    """A user who sends one message at a time to a bot."""

    def __init__(self, simulation: "Simulation", index: int, user: dict[str, str]) -> None:
        self._simulation = simulation
        self.token = user["token"]
        self.key = f"{user['channel']}:{user['user']}".encode()
        body = webhook_body(
            user["channel"],
            user["user"],
            f"http://{HOST}:{simulation.kakao_port}/callback/{index}/{NUMBER_PLACEHOLDER}",
        )
        self._request_head, self._request_tail = encode_webhook(body).split(NUMBER_PLACEHOLDER.encode())
        self._pending = 0
        self._sent_at = 0.0

    async def connect(self, port: int) -> None:
        self._connection = await connect(port, self._on_response)

    def send(self) -> None:
        self._pending = 2 if self._simulation.talks else 1
        self._sent_at = time.perf_counter()
        self._connection.send(b"%b%012d%b" % (self._request_head, next(NUMBER), self._request_tail))

    def _on_response(self, _connection: HttpConnection, head: bytes, body: bytes) -> None:
        if b'"useCallback":true' in body:
            self.complete("webhook")
        else:
            self._simulation.fail(head, body)

    def complete(self, step: str) -> None:
        """Record a step. After the last one of this message, send the next message."""
        self.record(step)
        self._pending -= 1
        if not self._pending and not self._simulation.is_over:
            self.send()

    def record(self, step: str) -> None:
        self._simulation.durations[step].append(time.perf_counter() - self._sent_at)


class Simulation:
    """All users and bots, and the durations of each step."""

    def __init__(self, *, talks: bool) -> None:
        self.talks = talks
        self.is_over = False
        self.durations: dict[str, list[float]] = {"webhook": [], "stream": [], "callback": []}
        self.kakao_port = 0
        self._users: list[User] = []
        self._by_key: dict[bytes, User] = {}
        self._free: list[HttpConnection] = []
        self._queued: deque[bytes] = deque()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, port: int, bot_port: int, users: list[dict[str, str]], seconds: float) -> dict[str, Any]:
        server = await asyncio.get_running_loop().create_server(lambda: HttpConnection(self._on_callback), HOST, 0)
        self.kakao_port = server.sockets[0].getsockname()[1]
        self._users = [User(self, index, user) for index, user in enumerate(users)]
        self._by_key = {user.key: user for user in self._users}
        for user in self._users:
            await user.connect(port)
        if self.talks:
            self._free = [await connect(bot_port, self._on_reply_response) for _ in range(2 * len(users))]
            for token in {user.token for user in self._users}:
                await open_stream(bot_port, token, self._on_message)
        cpu_before, started = cpu_seconds(), time.perf_counter()
        for user in self._users:
            user.send()
        await asyncio.wait([self._failed], timeout=seconds)
        self.is_over = True
        if self._failed.done():
            self._failed.result()
        elapsed, cpu_used = time.perf_counter() - started, cpu_seconds() - cpu_before
        steps = {step: summarize(durations, elapsed) for step, durations in self.durations.items() if durations}
        await asyncio.wait([self._failed], timeout=0.5)  # let requests in flight end
        return {"seconds": elapsed, "used": cpu_used, **steps}

    def fail(self, head: bytes, body: bytes) -> None:
        if not self._failed.done():
            self._failed.set_exception(RuntimeError(f"{head[:16].decode()}: {body.decode()}"))

    def _on_message(self, message: bytes, key: bytes) -> None:
        """A bot gets a message and replies."""
        user = self._by_key[key]
        user.record("stream")
        body = json.dumps({"messageId": message.decode(), "response": RESPONSE}).encode()
        request = encode_request("POST", "/openclaw/reply", body, user.token)
        if self._free:
            self._free.pop().send(request)
        else:
            self._queued.append(request)

    def _on_reply_response(self, connection: HttpConnection, head: bytes, body: bytes) -> None:
        if b'"success":true' not in body:
            self.fail(head, body)
        elif self._queued:
            connection.send(self._queued.popleft())
        else:
            self._free.append(connection)

    def _on_callback(self, connection: HttpConnection, head: bytes, _body: bytes) -> None:
        """Kakao gets the reply."""
        connection.send(ACCEPTED)
        self._users[int(head.split(b"/", 3)[2])].complete("callback")


def webhook_body(channel: str, user: str, callback: str) -> bytes:
    """The body of a webhook, as Kakao sends it."""
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


def summarize(durations: list[float], seconds: float) -> dict[str, float]:
    durations.sort()
    count = len(durations)
    return {"rate": count / seconds, "p50": durations[count // 2], "p99": durations[int(count * 0.99)]}


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def main() -> None:
    options = json.load(sys.stdin)
    simulation = Simulation(talks=options["talks"])
    port = options["port"]
    report = await simulation.run(port, options.get("bot_port", port), options["users"], options["seconds"])
    print(json.dumps(report))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
