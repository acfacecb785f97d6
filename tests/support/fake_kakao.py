"""A fake Kakao: a real server on loopback that receives callbacks."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from support.receiver import Mood, Receiver, answers, receiver

SUCCESS = {"taskId": "task-1", "status": "SUCCESS", "message": "ok", "timestamp": 1700000000000}


def kakao_says(status: str, message: str = "", code: int = 200) -> Mood:
    """Kakao's JSON response. A 200 can be a FAIL."""
    return answers(code, json.dumps(SUCCESS | {"status": status, "message": message}).encode())


class Kakao:
    """The callback server and the requests it received."""

    def __init__(self, there: Receiver) -> None:
        self.there = there
        self.mood = kakao_says("SUCCESS", "ok")

    @property
    def mood(self) -> Mood:
        return self.there.mood

    @mood.setter
    def mood(self, mood: Mood) -> None:
        self.there.mood = mood

    def url(self, name: str) -> str:
        """The callback URL of one message."""
        return f"http://127.0.0.1:{self.there.port}/callback/{name}?secret=capability"

    def answered(self, name: str) -> list[dict[str, Any]]:
        """All skill responses posted to this callback."""
        return [
            json.loads(request.body)
            for request in self.there.requests
            if request.target.startswith(f"/callback/{name}?")
        ]

    def texts(self, name: str) -> list[list[str]]:
        """The texts of those responses."""
        return [
            [output["simpleText"]["text"] for output in response["template"]["outputs"]]
            for response in self.answered(name)
        ]

    @property
    def posts(self) -> int:
        return len(self.there.requests)


@asynccontextmanager
async def kakao() -> AsyncGenerator[Kakao]:
    async with receiver() as there:
        yield Kakao(there)
