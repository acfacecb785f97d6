"""What was said in one person's chat, from its first word on; open pages read along."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from pabal.api.sse import PING, framed

PULSE = 15.0
"""Seconds of silence after which an open page is sent a sign of life."""

Entry = dict[str, Any]


class Reader:
    """An open page: it gets what was said after `after`, then what is said, until it hangs up."""

    def __init__(self, said: "list[Entry]", after: int) -> None:
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        for entry in said[after:]:
            self.show(entry)

    def show(self, entry: Entry) -> None:
        self._waiting.put_nowait(framed("entry", entry, entry["number"]))

    def tell(self, bot: Entry, number: int) -> None:
        self._waiting.put_nowait(framed("bot", bot, number))

    def hang_up(self) -> None:
        self._waiting.put_nowait(None)

    async def events(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(PULSE):
                    event = await self._waiting.get()
            except TimeoutError:
                event = PING
            if event is None:
                return
            yield event


@dataclass(slots=True)
class Chat:
    """One person's chat with the channel."""

    said: list[Entry] = field(default_factory=list[Entry])
    readers: set[Reader] = field(default_factory=set[Reader])

    def add(self, kind: str, **what: Any) -> Entry:
        entry = {"number": len(self.said) + 1, "kind": kind, "at": round(time.time() * 1000), **what}
        self.said.append(entry)
        for reader in self.readers:
            reader.show(entry)
        return entry

    def tell(self, bot: Entry) -> None:
        for reader in self.readers:
            reader.tell(bot, len(self.said))
