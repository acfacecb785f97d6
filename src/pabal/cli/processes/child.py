"""A child of the supervisor: reports that it is ready, and its metrics; ends when the supervisor does."""

import asyncio
import signal
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count

from pabal.cli.processes.channel import (
    ChildReady,
    DrainRequest,
    MetricsReport,
    MetricsReportRequest,
    MetricsTotal,
    MetricsTotalRequest,
    ProcessChannel,
    SupervisorMessage,
    open_channel,
)
from pabal.core.log import get_logger
from pabal.core.metric_snapshot import MetricSnapshot
from pabal.core.metrics import Metrics

log = get_logger()

TOTAL_TIMEOUT = 5.0
"""Seconds to wait for the supervisor's sum. Longer than it waits for the other children."""


class SupervisorLink:
    """The child's side of the channel. `on_drain` and `on_supervisor_end` stop this process, softly or soon.

    Until they are set, the process only waits for its database. Without a supervisor it then ends at once: it would
    keep the port from the next one.
    """

    def __init__(self, channel: ProcessChannel[SupervisorMessage]) -> None:
        self.on_drain: Callable[[], None] = lambda: None
        self.on_supervisor_end: Callable[[], None] = lambda: signal.raise_signal(signal.SIGTERM)
        self.is_drain_requested = False
        self.is_supervisor_gone = False
        self._channel = channel
        self._metrics: Metrics | None = None
        self._numbers = count(1)
        self._totals: dict[int, asyncio.Future[MetricSnapshot]] = {}
        self._reports: set[asyncio.Task[None]] = set()

    def report_ready(self, metrics: Metrics) -> None:
        """Tell the supervisor that requests are accepted, and let `/metrics` show all processes."""
        self._metrics = metrics
        metrics.sum_over_processes = self.sum_metrics
        self._channel.send(ChildReady())

    async def sum_metrics(self, own: MetricSnapshot) -> MetricSnapshot:
        """The metrics of all processes; those of this one alone if the supervisor does not answer."""
        number = next(self._numbers)
        self._totals[number] = total = asyncio.get_running_loop().create_future()
        self._channel.send(MetricsTotalRequest(number, own))
        try:
            async with asyncio.timeout(TOTAL_TIMEOUT):
                return await total
        except TimeoutError:
            log.warning("metrics of the other processes missing")
            return own
        finally:
            del self._totals[number]

    async def receive_loop(self) -> None:
        while (message := await self._channel.receive()) is not None:
            match message:
                case MetricsReportRequest(number):
                    self._start_report(number)
                case MetricsTotal(number, snapshot):
                    if (total := self._totals.get(number)) and not total.done():
                        total.set_result(snapshot)
                case DrainRequest():
                    self.is_drain_requested = True
                    self.on_drain()
        self.is_supervisor_gone = True
        self.on_supervisor_end()

    def _start_report(self, number: int) -> None:
        task = asyncio.create_task(self._report(number))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _report(self, number: int) -> None:
        snapshot = await self._metrics.snapshot_in_thread() if self._metrics else {}
        self._channel.send(MetricsReport(number, snapshot))

    async def report_final_metrics(self) -> None:
        """Leave the counters of this process with the supervisor, so that the sum never decreases."""
        if self._metrics is not None:
            await self._report(0)
            self._metrics = None  # a later report would count twice


@asynccontextmanager
async def supervisor_link(end: socket.socket | None) -> AsyncGenerator[SupervisorLink | None]:
    """Talk to the supervisor for the duration of the block; None in a process without one."""
    if end is None:
        yield None
        return
    channel: ProcessChannel[SupervisorMessage] = await open_channel(SupervisorMessage, end)
    link = SupervisorLink(channel)
    receiver = asyncio.create_task(link.receive_loop(), name="supervisor link")
    try:
        yield link
    finally:
        receiver.cancel()
        with suppress(asyncio.CancelledError):
            await receiver
        await channel.close()
