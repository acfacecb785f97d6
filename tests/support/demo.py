"""A play on stage, as its spectators see it: a hub, Kakao beside it, and what the person in the chat was shown."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pytest

from pabal.demo.kakao import FakeKakao
from support.wait import until

USER = "somebody-1"


@dataclass(slots=True)
class Play:
    """Who is on stage. `page` is where the chat page is; `thought` lets a slow bot go on."""

    hub: str
    kakao: FakeKakao
    page: str
    thought: asyncio.Event = field(default_factory=asyncio.Event)
    code: str | None = None
    paired: frozenset[str] = frozenset()

    def announce(self, code: str | None, paired: Collection[str]) -> None:
        self.code, self.paired = code, frozenset(paired)
        self.kakao.announce_code(code, paired)

    async def pair(self, user: str = USER) -> str | None:
        """Have somebody pair with the code that is offered; which that was."""
        await until(lambda: self.code is not None)
        code = self.code
        await self.kakao.send_message(user, f"/pair {code}")
        await until(lambda: user in self.paired)
        return code

    def shown(self, user: str = USER) -> list[list[dict[str, Any]]]:
        """What each of the channel's turns held so far."""
        return [entry["outputs"] for entry in self.kakao.chat(user).entries if entry["kind"] == "said"]

    def heard(self, user: str = USER) -> list[str]:
        """The texts the person was shown so far."""
        return [output["simpleText"]["text"] for turn in self.shown(user) for output in turn if "simpleText" in output]

    async def hears(self, text: str, user: str = USER) -> None:
        try:
            await until(lambda: text in self.heard(user))
        except TimeoutError:
            pytest.fail(f"{text!r} is not in {self.heard(user)}")
