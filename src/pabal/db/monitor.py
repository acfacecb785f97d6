"""Notices a database that no longer answers, and dials it again, once for the whole pool.

A lost connection, or a statement without an answer for a while, starts a check: a new connection. If it works, the
connections whose statement the server does not execute are terminated; a slow statement goes on. The idle ones are
replaced if there was such a connection, or if none got an answer. If the check does not work, all connections are
terminated, and callers are refused at once until the server can be reached again. A server that answers others and only
lets the check wait is busy: its connections stay.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from time import monotonic

import asyncpg

from pabal.core.backoff import spread
from pabal.core.errors import DATABASE_UNAVAILABLE, Unavailable
from pabal.core.outage import database_outage_log, load_logger
from pabal.db.connect import (
    CANCEL_WINDOW,
    HOST_TIMEOUT,
    AnswerClock,
    HubConnection,
    find_unanswered,
    is_server_unreachable,
)
from pabal.db.errors import CONNECTION_ERRORS, DatabaseError, summarize_error

WATCH_INTERVAL = 0.5
MAX_SILENCE = 2.0
"""Seconds without an answer, to one statement or to all, after which the server is checked."""
CHECK_INTERVAL = 5.0
"""Seconds between checks while a statement is slow."""
MIN_CHECK_INTERVAL = 0.5
FIRST_REDIAL_DELAY, MAX_REDIAL_DELAY = 0.1, 1.0


class PoolMonitor:
    """Whether the database of one pool can be reached.

    `dial` opens a connection for a check, `replace_idle` makes the pool open new connections. The pool registers the
    connections it opened and counts those in use.
    """

    def __init__(
        self,
        answers: AnswerClock,
        connect_timeout: timedelta,
        dial: Callable[[timedelta], Awaitable[HubConnection]],
        replace_idle: Callable[[], Awaitable[None]],
    ) -> None:
        self._answers = answers
        self._connect_timeout = connect_timeout
        self._dial = dial
        self._replace_idle = replace_idle
        self._connections: set[HubConnection] = set()
        self._busy_since = 0.0
        self._in_use = 0
        self._outage: str | None = None
        self.outage_log = database_outage_log()
        self._last_check = float("-inf")
        self._check_task: asyncio.Task[None] | None = None
        self._watch_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._watch_task = asyncio.create_task(self._watch(), name="database monitor")

    async def stop(self) -> None:
        tasks = [task for task in (self._watch_task, self._check_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def register(self, connection: HubConnection) -> None:
        self._connections = {open_one for open_one in self._connections if not open_one.is_closed()} | {connection}

    def refuse_during_outage(self) -> None:
        """Raise Unavailable at once while the server cannot be reached."""
        if self._outage is not None:
            raise Unavailable(f"{DATABASE_UNAVAILABLE}{self._outage}", nothing_sent=True)

    def begin_use(self) -> None:
        self._in_use += 1
        if self._in_use == 1:
            self._busy_since = monotonic()

    def end_use(self, error: BaseException | None) -> None:
        """Record how a connection's use ended: with an answer of the server, without one, or with its loss."""
        self._in_use -= 1
        if error is None or isinstance(error, DatabaseError):
            self._answers.record_answer()
            self.outage_log.record_success()
            return
        if isinstance(error, Unavailable):
            self.outage_log.record_failure(error)
        if isinstance(error, Unavailable) and error.__cause__ is not None:
            if is_server_unreachable(error.__cause__):
                self.suspect(error.__cause__)
            else:
                self._answers.record_answer()

    def suspect(self, error: BaseException) -> None:
        """Check the server, because a connection was lost or could not be opened.

        A timeout while other statements are answered is only a slow statement.
        """
        is_slow = isinstance(error, TimeoutError) and not self._is_silent()
        if is_server_unreachable(error) and not is_slow and monotonic() - self._last_check >= MIN_CHECK_INTERVAL:
            self._start_check()

    def _is_silent(self) -> bool:
        return monotonic() - self._answers.last_answer >= CANCEL_WINDOW

    def _start_check(self) -> None:
        if self._check_task is None or self._check_task.done():
            self._last_check = monotonic()
            self._check_task = asyncio.create_task(self._check(), name="database check")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL)
            if self._in_use:
                now = monotonic()
                last_answer = max(self._answers.last_answer, self._busy_since)
                silence = now - min([last_answer, *(one.waiting_since or now for one in self._connections)])
                if silence >= MAX_SILENCE and now - self._last_check >= CHECK_INTERVAL:
                    self._start_check()

    async def _check(self) -> None:
        try:
            await self._dial_until_reachable()
        except Exception:  # noqa: BLE001 callers would be refused forever
            load_logger().exception("database check failed")
        finally:
            self._outage = None
            self._last_check = monotonic()

    async def _dial_until_reachable(self) -> None:
        was_silent = self._is_silent()
        delay, timeout = FIRST_REDIAL_DELAY, min(HOST_TIMEOUT, self._connect_timeout)
        while True:
            began = monotonic()
            try:
                connection = await self._dial(timeout)
            except (*CONNECTION_ERRORS, asyncpg.PostgresError) as error:
                if not is_server_unreachable(error):
                    break  # the server refuses us, so the other connections may be fine
                if self._is_silent() or not isinstance(error, TimeoutError):  # else it is only slow to accept us
                    self.outage_log.record_failure(summarize_error(error))
                    self._begin_outage(summarize_error(error))
                await asyncio.sleep(max(0.0, spread(delay) - (monotonic() - began)))
                delay = min(delay * 2, MAX_REDIAL_DELAY)
                if isinstance(
                    error, TimeoutError
                ):  # of all hosts: else a silent one would delay the search for a new primary
                    timeout = min(timeout * 2, self._connect_timeout)
                continue
            try:
                self._terminate({other for other in self._connections if other.host != connection.host})
                if await self._end_unanswered(connection, began, timeout) or was_silent:
                    await self._replace_idle()
            finally:
                connection.terminate()
            break
        if self._outage is not None:
            self.outage_log.end()

    async def _end_unanswered(self, probe: HubConnection, before: float, timeout: timedelta) -> bool:
        """End the connections that wait since `before` for an answer that the server will not send."""
        waiting = {one: one.waiting_since for one in self._connections if (one.waiting_since or before) < before}
        if not waiting:
            return False
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                unanswered = await find_unanswered(probe, [*waiting])
        except (*CONNECTION_ERRORS, asyncpg.PostgresError):
            return False  # the next check asks again
        self._terminate({one for one in unanswered if one.waiting_since == waiting[one]})
        return bool(unanswered)

    def _begin_outage(self, error: str) -> None:
        """Refuse callers, and end those that wait for an answer. Terminating needs no answer of the server."""
        self._outage = error
        self._terminate(self._connections.copy())

    def _terminate(self, connections: set[HubConnection]) -> None:
        for connection in connections:
            connection.terminate()
        self._connections -= connections
