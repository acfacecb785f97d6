"""The supervisor: holds the listening socket, starts children on it, and replaces those that end.

Children inherit the socket, so connections that wait in its queue survive the end of any child. SIGHUP replaces the
children one by one: each new one accepts requests before the old one stops.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from time import monotonic

from pabal.cli.processes.channel import (
    ChildMessage,
    ChildReady,
    DrainRequest,
    MetricsReport,
    MetricsReportRequest,
    MetricsTotal,
    MetricsTotalRequest,
    ProcessChannel,
    open_channel,
)
from pabal.cli.processes.listener import INHERITED_VARIABLE, format_inherited
from pabal.core.log import get_logger
from pabal.core.metric_snapshot import MetricFamily, MetricSnapshot, counters_of, sum_snapshots
from pabal.db.waiting import wait_with_timeout
from pabal.settings import Settings
from pabal.web.server.server import DRAIN_LIMIT

log = get_logger()

STABLE_AFTER = 10.0
"""Seconds after which the end of a child is no failed start, and it is replaced at once."""
FIRST_RESTART_DELAY, MAX_RESTART_DELAY = 0.5, 30.0
READY_TIMEOUT = 60.0
"""Seconds that a new child has to accept requests before a rolling restart is given up."""
REPORT_TIMEOUT = 2.0
"""Seconds that a child has to report its metrics; after that, its last report counts."""
KILL_AFTER = timedelta(seconds=15)
"""How much longer than its own limits a child may take to end."""


@dataclass(slots=True, eq=False)
class ChildProcess:
    """A child and what it reported."""

    process: asyncio.subprocess.Process
    channel: ProcessChannel[ChildMessage]
    started_at: float
    snapshot: MetricSnapshot = field(default_factory=dict[str, MetricFamily])
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    is_replaced: bool = False
    """Whether it is not to be started again when it ends."""
    has_reported_final: bool = False
    reports: "dict[int, asyncio.Future[None]]" = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.process.pid

    def send_signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


class Supervisor:
    """Runs `settings.processes` children of this command until SIGINT or SIGTERM."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self._count = settings.processes or 1
        self._stop_limit = settings.stop_within + settings.lame_duck + KILL_AFTER
        self._listener = listener
        self._children: set[ChildProcess] = set()
        self._watchers: set[asyncio.Task[None]] = set()
        self._numbers = count(1)
        self._ended_metrics: MetricSnapshot = {}
        self._failed_starts = 0
        self._starting = 0
        """How many children are being created that are not there yet."""
        self._stopping = asyncio.Event()
        self._restart_requested = asyncio.Event()
        self._has_terminal = has_terminal()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for stop_signal in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(stop_signal, self._stop, stop_signal)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        for _ in range(self._count):
            await self._start_child()  # an error here is one of the setup
        restarter = asyncio.create_task(self._restart_loop(), name="rolling restarts")
        await self._stopping.wait()
        restarter.cancel()
        try:
            async with asyncio.timeout(self._stop_limit.total_seconds()):
                while self._watchers:
                    await asyncio.wait([*self._watchers])
        except TimeoutError:
            for child in self._children:
                log.error("process killed", pid=child.pid)
                child.send_signal(signal.SIGKILL)
            await asyncio.gather(*self._watchers)

    def _stop(self, number: signal.Signals) -> None:
        self._stopping.set()
        for child in self._children:
            child.send_signal(number)

    def _on_hangup(self) -> None:
        """A rolling restart; but the end of the terminal that the hub runs in ends the hub."""
        if self._has_terminal and not has_terminal():
            self._stop(signal.SIGTERM)
        else:
            self._restart_requested.set()

    # Children

    @property
    def _lacks_children(self) -> bool:
        """Whether there are fewer children than there should be, without those that another one replaces."""
        return sum(not child.is_replaced for child in self._children) + self._starting < self._count

    async def _start_child(self, *, is_replaced: bool = False) -> ChildProcess:
        """Start a child. Raises OSError if the system cannot create the process."""
        self._starting += not is_replaced
        try:
            process, channel = await self._create_process()
        finally:
            self._starting -= not is_replaced
        child = ChildProcess(process, channel, monotonic(), is_replaced=is_replaced)
        self._children.add(child)
        watcher = asyncio.create_task(self._watch(child), name=f"child {process.pid}")
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        if self._stopping.is_set():
            child.send_signal(signal.SIGTERM)
        return child

    async def _create_process(self) -> tuple[asyncio.subprocess.Process, ProcessChannel[ChildMessage]]:
        ours, theirs = socket.socketpair()
        sockets = (self._listener.fileno(), theirs.fileno())
        is_first = not any(child.ready.is_set() and not child.is_replaced for child in self._children)
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *child_command(sys.argv[1:]),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=sockets,
                    env=os.environ | {INHERITED_VARIABLE: format_inherited(sockets, is_first=is_first)},
                    start_new_session=True,  # Ctrl-C reaches the supervisor, which passes it on
                )
        except OSError:
            ours.close()
            raise
        return process, await open_channel(ChildMessage, ours)

    async def _watch(self, child: ChildProcess) -> None:
        """Answer a child until it ends, keep its counters, and start another one in its place."""
        while (message := await child.channel.receive()) is not None:
            self._handle(child, message)
        code = await child.process.wait()
        await child.channel.close()
        self._children.discard(child)
        self._ended_metrics = sum_snapshots(self._ended_metrics, [counters_of(child.snapshot)])
        child.ended.set()
        if child.is_replaced or self._stopping.is_set():
            return
        delay = self._restart_delay(child)
        log.error("process died", pid=child.pid, code=code, restart_in=delay)
        while not await wait_with_timeout(self._stopping, timedelta(seconds=delay)) and self._lacks_children:
            try:
                await self._start_child()
            except OSError as error:  # no memory or files left, or an upgrade is replacing the installed files
                delay = self._next_delay()
                log.error("process not started", error=str(error), restart_in=delay)
            else:
                return

    def _restart_delay(self, child: ChildProcess) -> float:
        """Nothing for a child that has worked; else a delay that doubles with each failed start."""
        if child.ready.is_set() and monotonic() - child.started_at >= STABLE_AFTER:
            self._failed_starts = 0
            return 0.0
        return self._next_delay()

    def _next_delay(self) -> float:
        self._failed_starts += 1
        return min(FIRST_RESTART_DELAY * 2 ** min(self._failed_starts - 1, 16), MAX_RESTART_DELAY)

    def _handle(self, child: ChildProcess, message: ChildMessage) -> None:
        match message:
            case ChildReady():
                child.ready.set()
                log.info("process ready", pid=child.pid)
            case MetricsReport(number, snapshot):
                if not child.has_reported_final:
                    child.snapshot = snapshot
                    child.has_reported_final = number == 0
                if report := child.reports.pop(number, None):
                    report.set_result(None)
            case MetricsTotalRequest(number, snapshot):
                child.snapshot = snapshot
                task = asyncio.create_task(self._send_total(child, number, snapshot))
                self._watchers.add(task)
                task.add_done_callback(self._watchers.discard)

    # Metrics

    async def _send_total(self, child: ChildProcess, number: int, own: MetricSnapshot) -> None:
        others = [other for other in self._children if other is not child]
        if reports := [self._request_report(other) for other in others if can_report(other)]:
            await asyncio.wait(reports, timeout=REPORT_TIMEOUT)
        # Read after the wait: a child that ended meanwhile counts among the ended ones.
        running = [other.snapshot for other in self._children if other is not child]
        child.channel.send(MetricsTotal(number, sum_snapshots(own, [*running, self._ended_metrics])))

    def _request_report(self, child: ChildProcess) -> "asyncio.Future[None]":
        number = next(self._numbers)
        child.reports[number] = report = asyncio.get_running_loop().create_future()
        child.channel.send(MetricsReportRequest(number))
        return report

    # Rolling restart

    async def _restart_loop(self) -> None:
        while True:
            await self._restart_requested.wait()
            self._restart_requested.clear()
            await self._restart_children()

    async def _restart_children(self) -> None:
        log.info("rolling restart began", processes=len(self._children))
        for old in [child for child in self._children if not child.is_replaced]:
            if old.ended.is_set():
                continue  # it died meanwhile, and another one is started in its place anyway
            new = await self._start_successor()
            if new is None:
                return
            if old.ended.is_set() and not self._lacks_children:  # another one was started in its place
                new.channel.send(DrainRequest())
                continue
            new.is_replaced, old.is_replaced = False, True
            old.channel.send(DrainRequest())
            try:
                async with asyncio.timeout((DRAIN_LIMIT + self._stop_limit).total_seconds()):
                    await old.ended.wait()
            except TimeoutError:
                log.error("process killed", pid=old.pid)
                old.send_signal(signal.SIGKILL)
        log.info("rolling restart done", processes=sum(not child.is_replaced for child in self._children))

    async def _start_successor(self) -> ChildProcess | None:
        """Start a child that accepts requests; None if it does not start. Until it replaces one, it is not counted."""
        try:
            new = await self._start_child(is_replaced=True)
        except OSError as error:
            log.error("rolling restart given up: the new process does not start", error=str(error))
            return None
        if await child_becomes_ready(new):
            return new
        log.error("rolling restart given up: the new process does not start", pid=new.pid)
        new.send_signal(signal.SIGTERM)
        return None


def can_report(child: ChildProcess) -> bool:
    return child.ready.is_set() and not child.has_reported_final


async def child_becomes_ready(child: ChildProcess) -> bool:
    """Whether a new child accepts requests; False if it ended before, or takes too long."""
    waits = [asyncio.create_task(event.wait()) for event in (child.ready, child.ended)]
    try:
        await asyncio.wait(waits, timeout=READY_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return child.ready.is_set() and not child.ended.is_set()


def child_command(args: Sequence[str]) -> list[str]:
    """This command again, from the installed files, which an upgrade may have replaced."""
    return [sys.executable, "-P", "-m", "pabal", *args]


def has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
