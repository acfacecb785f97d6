"""Deadlines: how long work may take, for many at once. Those with one limit come due in turn and share a timer."""

import asyncio
from typing import Any

Task = asyncio.Task[Any]


class Deadline:
    """One limit. Who works longer is cancelled, and finds out by `clear` that it was for that."""

    __slots__ = ("_due", "_limit", "_rang", "_timer")

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._due: dict[Task, float] = {}
        self._rang: set[Task] = set()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, task: Task) -> None:
        loop = task.get_loop()
        self._due[task] = loop.time() + self._limit
        if self._timer is None:
            self._timer = loop.call_later(self._limit, self._ring, loop)

    def clear(self, task: Task) -> bool:
        """Take it back; whether it rang before. Then the cancelling was ours, and it is taken back as well."""
        self._due.pop(task, None)
        if task not in self._rang:
            return False
        self._rang.remove(task)
        return task.uncancel() == 0  # somebody else wants it gone, too

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for task, due in [*self._due.items()]:
            if due > now:
                self._timer = loop.call_at(due, self._ring, loop)
                return
            del self._due[task]
            self._rang.add(task)
            task.cancel()
