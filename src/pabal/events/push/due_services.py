"""The services that may have events to push, kept in the memory of one worker.

A wakeup names the service of a new event. Events that become due later, and those whose wakeup was lost, are found by a
scan over the services with due events, one page at a time. So a round costs the same for ten services and for ten
thousand: no round reads all of them, and publishers do not write a list of services.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from time import monotonic

from pabal.db.doorbell.channels import POLLED
from pabal.db.doorbell.doorbell import POLL_INTERVAL
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)

SERVICES_PER_ROUND = 64
SCAN_PAGE = 256
"""How many services one statement of a scan reads."""
PAUSE_PER_PAGE = 0.05
"""Seconds to the next scan, for each page of the last one; at least the poll interval if it had more than one page."""
POLLED_SCAN_INTERVAL = 0.05
"""Seconds between two scans while the process polls under load."""
MAX_REMEMBERED = 100_000


@dataclass(frozen=True, slots=True)
class ScannedService:
    """A service with queued events, and whether some of them are due for a push."""

    name: str
    is_due: bool


class DueServices:
    """Services in the order of their turns. One that used its share goes to the end, one without due events leaves."""

    def __init__(self) -> None:
        self._waiting: dict[str, None] = {}
        self._taken: dict[str, None] = {}
        self._at_capacity: dict[str, None] = {}
        self._without_push: set[str] = set()
        self._scan_after: str | None = ""
        """The last service of the scan in progress; None between two scans."""
        self._scan_pages = 0
        self._next_scan = 0.0
        self._scanned_at = 0.0

    def on_wakeup(self, topic: str) -> bool:
        """Note the service of a wakeup; return whether it may have events to push. The empty topic stands for all.

        So does polling under load, which does not end what is remembered, and scans less often than others claim.
        """
        if topic == POLLED:
            return monotonic() - self._scanned_at >= POLLED_SCAN_INTERVAL
        if not topic:
            self._without_push.clear()
            if self._scan_pages <= 1:  # otherwise the next scan finds the events
                self._next_scan = 0.0
            return True
        if topic in self._without_push:
            return False
        self._waiting.setdefault(topic)
        return True

    def has_more(self) -> bool:
        """Whether services are waiting for their turn, or a scan is in progress."""
        return bool(self._waiting) or self._scan_after is not None

    async def take(self, tx: Tx, free: int) -> list[str]:
        """Take the services whose turn it is: all if they are few, else as many as there are free slots.

        Call `drop`, `postpone` or `finish_turn` for each of them. One that got no such call, because its claim failed,
        has its turn again.
        """
        self._waiting = self._taken | self._waiting
        if self._scan_after is None and self._is_scan_due():
            self._scan_after, self._scan_pages = "", 0
        while self._scan_after is not None and len(self._waiting) < SERVICES_PER_ROUND:
            await self._scan_page(tx, self._scan_after)
        are_few = len(self._waiting) <= SERVICES_PER_ROUND
        services = [*islice(self._waiting, SERVICES_PER_ROUND if are_few else min(free, SERVICES_PER_ROUND))]
        for service in services:
            del self._waiting[service]
        self._taken = dict.fromkeys(services)
        return services

    def drop(self, services: Iterable[str]) -> None:
        """Forget services without due events."""
        for service in services:
            self._taken.pop(service, None)

    def drop_without_push(self, services: Iterable[str]) -> None:
        """Forget services without a push subscription, and ignore their wakeups until subscriptions change."""
        for service in services:
            self._taken.pop(service, None)
            if len(self._without_push) < MAX_REMEMBERED:
                self._without_push.add(service)

    def postpone(self, service: str) -> None:
        """Remember a service that has no free slot until `resume`."""
        self._taken.pop(service, None)
        self._at_capacity[service] = None

    def resume(self) -> None:
        """A slot is free again."""
        self._waiting |= self._at_capacity
        self._at_capacity.clear()

    def finish_turn(self, service: str, *, has_more: bool) -> None:
        self._taken.pop(service, None)
        if has_more:
            self._waiting.setdefault(service)

    def _is_scan_due(self) -> bool:
        """A scan of one page may follow whenever no service is waiting, a longer one after its pause."""
        return monotonic() >= self._next_scan or (self._scan_pages <= 1 and not self._waiting)

    async def _scan_page(self, tx: Tx, after: str) -> None:
        self._scanned_at = monotonic()
        services = await tx.all(ScannedService, Q.scan_services, after=after, limit=SCAN_PAGE)
        due = [service.name for service in services if service.is_due]
        self._waiting |= dict.fromkeys(due)
        self._without_push.difference_update(due)
        self._scan_pages += 1
        self._scan_after = services[-1].name if len(services) == SCAN_PAGE else None
        if self._scan_after is None:
            self._next_scan = monotonic() + max(PAUSE_PER_PAGE * self._scan_pages, POLL_INTERVAL.total_seconds())
