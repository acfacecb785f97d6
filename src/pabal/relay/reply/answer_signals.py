"""Signals between a webhook that is held open and the request that brings its answer, in this or another process."""

import asyncio
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum
from uuid import UUID

from pabal.db.doorbell.channels import Channel, Wakeup
from pabal.db.doorbell.doorbell import Doorbell

MAX_EARLY_SIGNALS = 1000
"""Signals that are kept for waiters that come a moment later; the oldest one is forgotten first."""


class AnswerStep(StrEnum):
    """`stored`: the reply is stored for the held webhook. `settled`: the outcome of its response is recorded."""

    STORED = "stored"
    SETTLED = "settled"


class AnswerSignals:
    """Wakes the waiters of one step of one message. A signal is a hint: a waiter reads the table.

    Other processes are only notified of steps that have no waiter in this one.
    """

    def __init__(self, doorbell: Doorbell) -> None:
        self._doorbell = doorbell
        self._waiters: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._early: dict[str, None] = {}
        self._listener = doorbell.listen(Channel.ANSWERS, on_wakeup=self._receive)
        self._listener.__enter__()

    @property
    def is_reliable(self) -> bool:
        """Whether all signals of other processes arrive. NATS loses some before it is known to be away."""
        return self._doorbell.transport == "notify"

    @contextmanager
    def waiting(self, step: AnswerStep, message_id: UUID) -> Generator[asyncio.Event]:
        """An event that is set by the signals of this step."""
        topic, signal = f"{step}:{message_id}", asyncio.Event()
        self._waiters[topic].add(signal)
        if topic in self._early:
            signal.set()
        try:
            yield signal
        finally:
            self._waiters[topic].discard(signal)
            if not self._waiters[topic]:
                del self._waiters[topic]

    def send(self, step: AnswerStep, message_id: UUID) -> None:
        """Wake the waiters of this step, after the commit."""
        topic = f"{step}:{message_id}"
        if topic in self._waiters:
            self._receive(topic)
        else:
            self._doorbell.broadcast([Wakeup(Channel.ANSWERS, topic)])

    def wake_all(self) -> None:
        """Wake every waiter of this process."""
        self._receive("")

    def close(self) -> None:
        self._listener.__exit__()

    def _receive(self, topic: str) -> bool:
        if topic in self._waiters:
            waiters = [*self._waiters[topic]]
        elif topic:
            self._keep_early(topic)
            waiters = []
        else:
            waiters = [signal for signals in self._waiters.values() for signal in signals]
        for signal in waiters:
            signal.set()
        return False

    def _keep_early(self, topic: str) -> None:
        self._early.pop(topic, None)
        self._early[topic] = None
        if len(self._early) > MAX_EARLY_SIGNALS:
            del self._early[next(iter(self._early))]
