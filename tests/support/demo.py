"""A demo without its process: a hub, the fake Kakao beside it, and what a chat user sees."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pytest

from pabal.demo.kakao import FakeKakao
from support.wait import wait_until

USER = "demo-user-1"


@dataclass(slots=True)
class RunningDemo:
    """The parts of a running demo. `page` is the URL of the chat page; setting `thought` lets a slow bot answer."""

    hub: str
    kakao: FakeKakao
    page: str
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    code: str | None = None
    paired: frozenset[str] = frozenset()

    def announce(self, code: str | None, paired: Collection[str]) -> None:
        self.code, self.paired = code, frozenset(paired)
        self.kakao.announce_code(code, paired)

    async def pair(self, user: str = USER) -> str | None:
        """Pair a user with the current code, and return the code."""
        await wait_until(lambda: self.code is not None)
        code = self.code
        await self.kakao.send_message(user, f"/pair {code}")
        await wait_until(lambda: user in self.paired)
        return code

    def outputs(self, user: str = USER) -> list[list[dict[str, Any]]]:
        """The outputs of each message from the channel so far."""
        return [entry["outputs"] for entry in self.kakao.chat(user).entries if entry["kind"] == "said"]

    def texts(self, user: str = USER) -> list[str]:
        """The texts the user has seen so far."""
        return [
            output["simpleText"]["text"]
            for message in self.outputs(user)
            for output in message
            if "simpleText" in output
        ]

    async def wait_for_text(self, text: str, user: str = USER) -> None:
        try:
            await wait_until(lambda: text in self.texts(user))
        except TimeoutError:
            pytest.fail(f"{text!r} is not in {self.texts(user)}")
