"""Deadlines for many tasks with the same time limit. They expire in the order they were set and share one timer."""

import asyncio
from typing import Any

AnyTask = asyncio.Task[Any]


class Deadline:
    """Cancels tasks that exceed the limit. A cancelled task calls `clear` to learn whether this was the reason."""

    __slots__ = ("_due", "_expired", "_limit", "_timer")

    def __init__(self, seconds: float) -> None:
        self._limit = seconds
        self._due: dict[AnyTask, float] = {}
        self._expired: set[AnyTask] = set()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, task: AnyTask) -> None:
        loop = task.get_loop()
        self._due[task] = loop.time() + self._limit
        if self._timer is None:
            self._timer = loop.call_later(self._limit, self._expire_due, loop)

    def clear(self, task: AnyTask) -> bool:
        """Remove the task's deadline. Returns True if it had expired and is the only reason for the cancellation.

        The cancellation is then undone with `uncancel`.
        """
        self._due.pop(task, None)
        if not self._expired or task not in self._expired:
            return False
        self._expired.remove(task)
        return task.uncancel() == 0  # otherwise it was also cancelled for another reason

    def _expire_due(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for task, due in [*self._due.items()]:
            if due > now:
                self._timer = loop.call_at(due, self._expire_due, loop)
                return
            del self._due[task]
            self._expired.add(task)
            task.cancel()
