"""Somebody who is talking already when you come: through a bot of their own, so that nobody's code is taken."""

import asyncio
from collections.abc import Collection
from itertools import cycle

from pabal.demo.bot import EchoBot
from pabal.demo.kakao import FakeKakao

VISITOR_USER = "sample-visitor"
LINE_INTERVAL = 12.0
"""Seconds from one line to the next."""
PAIR_RETRY_SECONDS = 1.0
VISITOR_LINES = (
    ("안녕하세요", "ko"),
    ("오늘 배송 되나요?", "ko"),
    ("카드", "ko"),
    ("Do you ship to Busan?", "en"),
    ("천천히", "ko"),
)


class DemoVisitor:
    """A user of the channel, and the bot they talk with."""

    def __init__(self, hub: str, kakao: FakeKakao) -> None:
        self._kakao = kakao
        self._bot = EchoBot(hub, self._on_code)
        self._code: str | None = None
        self._is_paired = False

    async def run(self) -> None:
        """Pair, then talk until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._bot.run())
            await self._kakao.send_message(VISITOR_USER, "/unpair")  # from whoever it was in a play before
            while not self._is_paired:
                if self._code is not None:
                    await self._kakao.send_message(VISITOR_USER, f"/pair {self._code}")
                await asyncio.sleep(PAIR_RETRY_SECONDS)
            for line, language in cycle(VISITOR_LINES):
                await self._kakao.send_message(VISITOR_USER, line, language)
                await asyncio.sleep(LINE_INTERVAL)

    def _on_code(self, code: str | None, paired: Collection[str]) -> None:
        self._code, self._is_paired = code, VISITOR_USER in paired
