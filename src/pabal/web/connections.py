"""The open connections of a process and their limits.

A connection is anonymous until a request on it is authenticated. Anonymous connections are limited per address and in
all, so that a client without credentials cannot use up the memory or the file descriptors of the hub.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
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
LOG_INTERVAL = 60.0


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

    @classmethod
    def of_open_files(cls, open_files: int, reserved: int = 0, per_address: int = DEFAULT_PER_ADDRESS) -> Self:
        """The limits for a number of file descriptors, of which `reserved` are not for clients.

        One address may have at most half of the anonymous connections. `per_address` 0 is no limit.
        """
        total = max(open_files - RESERVED_FILES - reserved, MIN_TOTAL)
        anonymous = min(total * 3 // 4, MAX_ANONYMOUS)
        return cls(total, anonymous, min(per_address, anonymous // 2) if per_address else anonymous)


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

    def abort(self) -> None: ...


class ConnectionTable:
    """All open connections of a process."""

    def __init__(self, limits: ConnectionLimits, trusted: Sequence[IpNetwork] = ()) -> None:
        self.limits = limits
        self.closed = Counter[CloseReason]()
        self._trusted = trusted
        self._open: set[OpenConnection] = set()
        self._anonymous: dict[str, set[OpenConnection]] = {}
        self._anonymous_count = 0
        self._logged = Counter[CloseReason]()
        self._logged_at = -LOG_INTERVAL
        self.on_slot_free: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def anonymous_count(self) -> int:
        return self._anonymous_count

    def address_key(self, peer: str) -> str:
        """What a peer's connections are counted by: its address or IPv6 network; empty for a trusted proxy."""
        return "" if is_trusted_proxy(peer, self._trusted) else rate_limit_address(peer)

    def has_slot(self, address: str) -> bool:
        """Whether another anonymous connection of the address may be served."""
        return self._anonymous_count < self.limits.anonymous and not self.is_address_full(address)

    def is_address_full(self, address: str) -> bool:
        return bool(address) and len(self._anonymous.get(address, ())) >= self.limits.per_address

    def add(self, connection: OpenConnection) -> None:
        self._open.add(connection)
        self._anonymous.setdefault(connection.address, set()).add(connection)
        self._anonymous_count += 1

    def remove(self, connection: OpenConnection) -> None:
        self._open.discard(connection)
        self.release_slot(connection)

    def release_slot(self, connection: OpenConnection) -> None:
        """Stop counting a connection as anonymous."""
        same_address = self._anonymous.get(connection.address)
        if same_address is not None and connection in same_address:
            same_address.remove(connection)
            self._anonymous_count -= 1
            if not same_address:
                del self._anonymous[connection.address]
        self.on_slot_free()

    def close_expired(self, now: float) -> None:
        for connection in [*self._open]:
            connection.close_expired(now)

    def evict_of_address(self, address: str, count: int, now: float) -> None:
        """Close idle anonymous connections of an address, the longest idle first."""
        self._evict(self._anonymous.get(address, ()), count, now, CloseReason.ADDRESS_LIMIT)

    def evict_anonymous(self, count: int, now: float) -> None:
        """Close idle anonymous connections, those of the address with the most first."""
        anonymous = (connection for group in self._anonymous.values() for connection in group)
        self._evict(anonymous, count, now, CloseReason.CONNECTION_LIMIT)

    def evict_any(self, count: int, now: float) -> None:
        """Close idle connections, the anonymous ones first."""
        self._evict(self._open, count, now, CloseReason.CONNECTION_LIMIT)

    def _evict(self, candidates: Iterable[OpenConnection], count: int, now: float, reason: CloseReason) -> None:
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

    def log_refusals(self, now: float) -> None:
        """Log how many connections the limits have closed, at most once a minute."""
        if now - self._logged_at < LOG_INTERVAL:
            return
        counts = {reason.value: self.closed[reason] - self._logged[reason] for reason in LOGGED_REASONS}
        if any(counts.values()):
            log.warning("connections refused", open=len(self), anonymous=self._anonymous_count, **counts)
            self._logged, self._logged_at = self.closed.copy(), now

    def register_metrics(self, meter: Meter) -> None:
        meter.create_observable_gauge(
            "pabal.http.connections", [self._observe_open], "1", "Open HTTP connections, by whether they are anonymous."
        )
        meter.create_observable_counter(
            "pabal.http.connections_closed", [self._observe_closed], "1", "HTTP connections closed by the hub."
        )

    def _observe_open(self, _options: CallbackOptions) -> Iterator[Observation]:
        yield Observation(self._anonymous_count, {"state": "anonymous"})
        yield Observation(len(self) - self._anonymous_count, {"state": "authenticated"})

    def _observe_closed(self, _options: CallbackOptions) -> Iterator[Observation]:
        for reason in CloseReason:
            yield Observation(self.closed[reason], {"reason": reason.value})
