"""A fake Kakao: a real server on loopback that receives callbacks."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from support.receiver import Receiver, Responder, respond_with, run_receiver

SUCCESS = {"taskId": "task-1", "status": "SUCCESS", "message": "ok", "timestamp": 1700000000000}


def kakao_response(status: str, message: str = "", code: int = 200) -> Responder:
    """Kakao's JSON response. A 200 can be a FAIL."""
    return respond_with(code, json.dumps(SUCCESS | {"status": status, "message": message}).encode())


class FakeKakao:
    """The callback server and the requests it received."""

    def __init__(self, there: Receiver) -> None:
        self.receiver = there
        self.responder = kakao_response("SUCCESS", "ok")

    @property
    def responder(self) -> Responder:
        return self.receiver.responder

    @responder.setter
    def responder(self, responder: Responder) -> None:
        self.receiver.responder = responder

    def url(self, name: str) -> str:
        """The callback URL of one message."""
        return f"{self.receiver.url.removesuffix('/hook')}/callback/{name}?secret=capability"

    def responses(self, name: str) -> list[dict[str, Any]]:
        """All skill responses posted to this callback."""
        return [
            json.loads(request.body)
            for request in self.receiver.requests
            if request.target.startswith(f"/callback/{name}?")
        ]

    def texts(self, name: str) -> list[list[str]]:
        """The texts of those responses."""
        return [
            [output["simpleText"]["text"] for output in response["template"]["outputs"]]
            for response in self.responses(name)
        ]

    @property
    def posts(self) -> int:
        return len(self.receiver.requests)


@asynccontextmanager
async def run_fake_kakao(host: str = "127.0.0.1") -> AsyncGenerator[FakeKakao]:
    async with run_receiver(host=host) as there:
        yield FakeKakao(there)
