"""The open connections of a process and their limits.

A connection is anonymous until a request on it is authenticated. Anonymous connections are limited per address and in
all, so that a client without credentials cannot use up the memory or the file descriptors of the hub.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial
from itertools import chain
from typing import Protocol, Self

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from pabal.core.log import get_logger
from pabal.limits import rate_limit_address
from pabal.web.request import IpNetwork, is_trusted_proxy

log = get_logger()

MAX_ANONYMOUS = 2048
"""At the worst, an anonymous connection holds five request heads, about 150 KB."""
DEFAULT_PER_ADDRESS = 512
RESERVED_FILES = 256
"""File descriptors for everything but clients: outgoing requests, log files, the connections of `pabal` itself."""
MIN_TOTAL = 64
EVICTABLE_AFTER = 1.0
"""Seconds that a connection waits for its client before it may be closed in favor of another one."""
MAX_EVICTIONS = 64
"""Connections closed per sweep when the process is full."""
LOG_INTERVAL = 60.0
MAX_CACHED_ADDRESSES = 1024


class CloseReason(StrEnum):
    """Why the hub closed a connection before its client did."""

    ADDRESS_LIMIT = "address_limit"
    CONNECTION_LIMIT = "connection_limit"
    PIPELINING = "pipelining"
    MALFORMED = "malformed"
    HEAD_TOO_LARGE = "head_too_large"
    HEAD_TIMEOUT = "head_timeout"
    BODY_TIMEOUT = "body_timeout"
    BODY_TOO_LARGE = "body_too_large"
    UNREAD_RESPONSE = "unread_response"


LOGGED_REASONS = (CloseReason.ADDRESS_LIMIT, CloseReason.CONNECTION_LIMIT, CloseReason.PIPELINING)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections a process keeps open: in all, anonymous ones, and anonymous ones of one address."""

    total: int
    anonymous: int
    per_address: int

    @property
    def waiting_per_address(self) -> int:
        """Connections of one address that wait for a slot. They leave room for other addresses."""
        return self.total // 2

    @classmethod
    def of_open_files(
        cls, open_files: int, reserved: int = 0, per_address: int = DEFAULT_PER_ADDRESS, processes: int = 1
    ) -> Self:
        """The limits for a number of file descriptors, of which `reserved` are not for clients.

        One address may have at most half of the anonymous connections. `per_address` 0 is no limit. Several processes
        on one port share both limits; the limit of open files is one per process.
        """
        total = max(open_files - RESERVED_FILES - reserved, MIN_TOTAL)
        anonymous = min(total * 3 // 4, max(MAX_ANONYMOUS // processes, 2))
        shared = max(per_address // processes, 1)
        return cls(total, anonymous, min(shared, anonymous // 2) if per_address else anonymous)


class OpenConnection(Protocol):
    """A connection as the limits see it."""

    address: str
    """What the connection counts for; empty for a trusted proxy, which has many clients."""
    is_anonymous: bool

    def idle_seconds(self, now: float) -> float:
        """How long the connection has waited for its client; 0 while a request is handled."""
        ...

    def close_expired(self, now: float) -> None:
        """Close the connection if its client has been too slow."""
        ...

    def hold(self) -> None:
        """Read nothing until `serve` is called."""
        ...

    def serve(self) -> None: ...

    def abort(self) -> None: ...


def address_key(peer: str, trusted: Sequence[IpNetwork]) -> str:
    """What the connections of a peer are counted by: its address or IPv6 network; empty for a trusted proxy."""
    return "" if is_trusted_proxy(peer, trusted) else rate_limit_address(peer)


class ConnectionTable:
    """All open connections of a process.

    A connection beyond the limits waits: a burst of clients from one address is served in turn, because slots become
    free as requests are authenticated, connections end, and idle ones are closed. If too many of one address wait, a
    new one is closed at once.
    """

    def __init__(self, limits: ConnectionLimits, trusted: Sequence[IpNetwork] = ()) -> None:
        self.limits = limits
        self.closed = Counter[CloseReason]()
        self.address_key = lru_cache(MAX_CACHED_ADDRESSES)(partial(address_key, trusted=trusted))
        self.is_closing = False
        """Whether the process stops: every response then carries `Connection: close`."""
        self.on_removed: Callable[[], None] = lambda: None
        self._open: set[OpenConnection] = set()
        self._anonymous: dict[str, set[OpenConnection]] = {}
        self._waiting: dict[str, dict[OpenConnection, None]] = {}
        self._logged = Counter[CloseReason]()
        self._logged_at = -LOG_INTERVAL
        self.anonymous_count = 0
        self.waiting_count = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        return len(self._open) >= self.limits.total

    def has_slot(self, address: str) -> bool:
        """Whether another anonymous connection of the address may be served."""
        return self.anonymous_count < self.limits.anonymous and not self.is_address_full(address)

    def is_address_full(self, address: str) -> bool:
        return bool(address) and len(self._anonymous.get(address, ())) >= self.limits.per_address

    def add(self, connection: OpenConnection) -> None:
        """Add a new connection, to be served now or when there is a slot."""
        self._open.add(connection)
        if connection.address not in self._waiting and self.has_slot(connection.address):
            self._take_slot(connection)
        elif connection.address and len(self._waiting.get(connection.address, ())) >= self.limits.waiting_per_address:
            # One that waits in the kernel's queue instead would delay the clients behind it.
            self.closed[CloseReason.ADDRESS_LIMIT] += 1
            connection.abort()
        else:
            self._waiting.setdefault(connection.address, {})[connection] = None
            self.waiting_count += 1
            connection.hold()

    def remove(self, connection: OpenConnection) -> None:
        self._open.discard(connection)
        if self._waiting and connection in self._waiting.get(connection.address, ()):
            self._pop_waiting(connection)
        self.release_slot(connection)
        self.on_removed()

    def release_slot(self, connection: OpenConnection) -> None:
        """Stop counting a connection as anonymous."""
        same_address = self._anonymous.get(connection.address)
        if same_address is not None and connection in same_address:
            same_address.remove(connection)
            self.anonymous_count -= 1
            if not same_address:
                del self._anonymous[connection.address]
            if self._waiting:
                self._serve_waiting()

    def sweep(self, now: float) -> None:
        """Close connections whose clients are too slow, and idle ones if others wait for their place."""
        for connection in [*self._open]:
            try:
                connection.close_expired(now)
            except Exception:  # one connection must not stop the check of the others
                log.exception("connection check failed")
                connection.abort()
        for address, queue in self._waiting.items():
            if self.is_address_full(address):
                self._evict(self._anonymous[address], len(queue), now, CloseReason.ADDRESS_LIMIT)
        if self._waiting and self.anonymous_count >= self.limits.anonymous:
            anonymous = chain.from_iterable(self._anonymous.values())
            self._evict(anonymous, self.waiting_count, now, CloseReason.CONNECTION_LIMIT)
        if self.is_full:
            self._evict(self._open, MAX_EVICTIONS, now, CloseReason.CONNECTION_LIMIT)
        self._log_refusals(now)

    def _evict(self, candidates: Iterable[OpenConnection], count: int, now: float, reason: CloseReason) -> None:
        """Close idle connections: anonymous before authenticated ones, first those of the address with the most."""
        idle = [connection for connection in candidates if connection.idle_seconds(now) >= EVICTABLE_AFTER]
        idle.sort(
            key=lambda connection: (
                not connection.is_anonymous,
                -len(self._anonymous.get(connection.address, ())),
                -connection.idle_seconds(now),
            )
        )
        for connection in idle[:count]:
            self.closed[reason] += 1
            connection.abort()

    def _take_slot(self, connection: OpenConnection) -> None:
        self._anonymous.setdefault(connection.address, set()).add(connection)
        self.anonymous_count += 1

    def _serve_waiting(self) -> None:
        """Serve connections that got a slot, one address after the other."""
        addresses = deque(self._waiting)
        while addresses:
            address = addresses.popleft()
            if self.has_slot(address):
                connection = next(iter(self._waiting[address]))
                self._pop_waiting(connection)
                if address in self._waiting:  # behind the other addresses
                    self._waiting[address] = self._waiting.pop(address)
                    addresses.append(address)
                self._take_slot(connection)
                connection.serve()

    def _pop_waiting(self, connection: OpenConnection) -> None:
        queue = self._waiting[connection.address]
        del queue[connection]
        self.waiting_count -= 1
        if not queue:
            del self._waiting[connection.address]

    def _log_refusals(self, now: float) -> None:
        """Log how many connections the limits have closed, at most once a minute."""
        if now - self._logged_at < LOG_INTERVAL:
            return
        counts = {reason.value: self.closed[reason] - self._logged[reason] for reason in LOGGED_REASONS}
        if any(counts.values()):
            log.warning("connections refused", open=len(self), anonymous=self.anonymous_count, **counts)
            self._logged, self._logged_at = self.closed.copy(), now

    def register_metrics(self, meter: Meter) -> None:
        meter.create_observable_gauge(
            "pabal.http.connections", [self._observe_open], "1", "Open HTTP connections, by state."
        )
        meter.create_observable_counter(
            "pabal.http.connections_closed", [self._observe_closed], "1", "HTTP connections closed by the hub."
        )

    def _observe_open(self, _options: CallbackOptions) -> Iterator[Observation]:
        yield Observation(self.anonymous_count, {"state": "anonymous"})
        yield Observation(self.waiting_count, {"state": "waiting"})
        yield Observation(len(self) - self.anonymous_count - self.waiting_count, {"state": "authenticated"})

    def _observe_closed(self, _options: CallbackOptions) -> Iterator[Observation]:
        for reason in CloseReason:
            yield Observation(self.closed[reason], {"reason": reason.value})
