"""What was said in one person's chat, from its first word on; open pages read along."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from pabal.api.sse import PING, format_sse_event

PING_SECONDS = 15.0
"""Seconds of silence after which an open page is sent a sign of life."""

ChatEntry = dict[str, Any]


class ChatReader:
    """An open page: it gets what was said after `after`, then what is said, until it hangs up."""

    def __init__(self, entries: "list[ChatEntry]", after: int) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        for entry in entries[after:]:
            self.push_entry(entry)

    def push_entry(self, entry: ChatEntry) -> None:
        self._queue.put_nowait(format_sse_event("entry", entry, entry["number"]))

    def push_bot_status(self, status: ChatEntry, number: int) -> None:
        self._queue.put_nowait(format_sse_event("bot", status, number))

    def close(self) -> None:
        self._queue.put_nowait(None)

    async def events(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(PING_SECONDS):
                    event = await self._queue.get()
            except TimeoutError:
                event = PING
            if event is None:
                return
            yield event


@dataclass(slots=True)
class DemoChat:
    """One person's chat with the channel."""

    entries: list[ChatEntry] = field(default_factory=list[ChatEntry])
    readers: set[ChatReader] = field(default_factory=set[ChatReader])

    def add(self, kind: str, **fields: Any) -> ChatEntry:
        entry = {"number": len(self.entries) + 1, "kind": kind, "at": round(time.time() * 1000), **fields}
        self.entries.append(entry)
        for reader in self.readers:
            reader.push_entry(entry)
        return entry

    def push_bot_status(self, status: ChatEntry) -> None:
        for reader in self.readers:
            reader.push_bot_status(status, len(self.entries))
