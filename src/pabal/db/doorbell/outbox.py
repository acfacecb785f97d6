"""Wakeups on their way to other processes: many of them leave in one payload."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain

from pabal.core.log import get_logger
from pabal.db.doorbell.channels import Channel, Wakeup

log = get_logger()

MAX_PAYLOAD_BYTES = 7900
"""PostgreSQL allows 7999; the sender's id takes the rest."""


class WakeupOutbox:
    """Collects wakeups and sends them together: the first at once, then at most one payload per interval of seconds."""

    def __init__(self, send: Callable[[set[Wakeup]], Awaitable[None]], interval: float = 0.0) -> None:
        self._send = send
        self._interval = interval
        self._pending: set[Wakeup] = set()
        self._has_pending = asyncio.Event()

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def add(self, wakeups: Iterable[Wakeup]) -> None:
        self._pending.update(wakeups)
        if self._pending:
            self._has_pending.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        next_at = 0.0
        while True:
            await self._has_pending.wait()
            if (delay := next_at - loop.time()) > 0:
                await asyncio.sleep(delay)
            next_at = loop.time() + self._interval
            try:
                await self.flush()
            except Exception:  # if this task ended, other processes would no longer be woken
                log.exception("notify lost")

    async def flush(self) -> None:
        """Send what is pending now."""
        self._has_pending.clear()
        pending, self._pending = self._pending, set()
        if not pending:
            return
        try:
            await self._send(pending)
        except asyncio.CancelledError:
            self._pending |= pending  # sent when the doorbell closes
            raise


def encode_wakeups(wakeups: Iterable[Wakeup]) -> list[str]:
    """Encode wakeups for one payload. If they do not fit, the longest channels lose their topics: all wake."""
    texts_of: defaultdict[Channel, set[str]] = defaultdict(set)
    for wakeup in wakeups:
        texts_of[wakeup.channel].add(str(wakeup))
    while payload_size(texts := sorted(chain.from_iterable(texts_of.values()))) > MAX_PAYLOAD_BYTES:
        longest = max(texts_of, key=lambda channel: payload_size(texts_of[channel]))
        texts_of[longest] = {str(longest)}
    return texts


def payload_size(texts: Iterable[str]) -> int:
    """The bytes of these texts in one payload. A topic that was forwarded may be as long as its payload."""
    return len(" ".join(texts).encode())
