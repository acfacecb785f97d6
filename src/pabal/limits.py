"""Rate limits, shared by all processes. Each limit and key is one row."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pabal.core.errors import RateLimited
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`count` calls per `window`, evenly spread after an initial burst."""

    name: str
    count: int
    window: timedelta


async def consume_rate_limit(tx: Tx, limit: RateLimit, key: str, count: int = 1) -> None:
    """Count `count` calls of `key`, all or none; raises RateLimited. More calls than the limit count as the limit.

    Call it in its own transaction: a rolled back count would limit nothing.
    """
    step = limit.window // limit.count * min(count, limit.count)
    arguments = {"key": f"{limit.name}:{key}", "step": step, "window": limit.window}
    if not await tx.value(Q.consume, **arguments):
        raise RateLimited(limit.name, await tx.value(Q.retry_after, **arguments) or step)


@dataclass(frozen=True, slots=True)
class RateLimitState:
    """The state of a limit for a key: how long to wait, and whether any call is counted."""

    retry_after: timedelta
    is_used: bool


async def read_rate_limits(tx: Tx, *calls: tuple[RateLimit, str]) -> list[RateLimitState]:
    """Read the state of several limits in one statement, without counting a call."""
    return await tx.all(
        RateLimitState,
        Q.read_states,
        keys=[f"{limit.name}:{key}" for limit, key in calls],
        steps=[limit.window // limit.count for limit, _ in calls],
        windows=[limit.window for limit, _ in calls],
    )


async def block_rate_limit(tx: Tx, limit_name: str, key: str, duration: timedelta) -> None:
    """Block all calls for `duration`, for example after a server's Retry-After. A longer block stays."""
    await tx.run(Q.block, key=f"{limit_name}:{key}", duration=duration)


async def blocked_for(tx: Tx, limit_name: str, keys: Sequence[str]) -> timedelta:
    """How long the longest of these blocks still lasts."""
    return await tx.value(Q.blocked_for, keys=[f"{limit_name}:{key}" for key in keys])


async def reserve_rate_limit(tx: Tx, limit: RateLimit, key: str, max_wait: timedelta) -> timedelta:
    """Reserve the next free slot; returns how long to wait for it. Raises RateLimited if longer than `max_wait`."""
    arguments = {"key": f"{limit.name}:{key}", "step": limit.window // limit.count, "window": limit.window}
    wait = await tx.value(Q.reserve, **arguments, max_wait=max_wait)
    if wait is None:
        raise RateLimited(limit.name, max_wait)
    return wait


@dataclass(frozen=True, slots=True)
class RateLimitReservation:
    """Slots that a caller has reserved. `backlog` is how far earlier calls already reach into the future."""

    limit: RateLimit
    backlog: timedelta

    def wait_for_slot(self, number: int) -> timedelta:
        """How long to wait for one of the slots, the first of which has the number 0."""
        used = self.backlog + self.limit.window // self.limit.count * (number + 1)
        return max(used - self.limit.window, timedelta())


@dataclass(frozen=True, slots=True)
class UsedLimit:
    key: str
    used: timedelta


async def reserve_rate_limits(tx: Tx, limit: RateLimit, counts: Mapping[str, int]) -> dict[str, RateLimitReservation]:
    """Reserve the next `count` slots for each key, in one statement, however far in the future they are.

    Call it in the transaction that uses them: a rollback returns them.
    """
    step = limit.window // limit.count
    names = {f"{limit.name}:{key}": key for key in sorted(counts)}
    durations = [step * counts[key] for key in names.values()]
    rows = await tx.all(UsedLimit, Q.reserve_many, keys=[*names], durations=durations)
    return {names[row.key]: RateLimitReservation(limit, row.used - step * counts[names[row.key]]) for row in rows}


async def refund_rate_limits(tx: Tx, limit: RateLimit, counts: Mapping[str, int]) -> None:
    """Return slots that this transaction has reserved and does not use."""
    step = limit.window // limit.count
    keys = sorted(counts)
    await tx.run(
        Q.refund_many, keys=[f"{limit.name}:{key}" for key in keys], durations=[step * counts[key] for key in keys]
    )


async def purge_rate_limits(tx: Tx, batch: int) -> int:
    """Delete up to `batch` rows without effect; returns how many."""
    return await tx.run(Q.purge, batch=batch)


IPV6_NETWORK_BITS = 64
"""The prefix that a provider assigns to a customer, who can use any address inside it."""


def rate_limit_address(address: str) -> str:
    """The key to count an address by: the IPv4 address, or the /64 of an IPv6 address. Other text is unchanged."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    host_bits = parsed.max_prefixlen - IPV6_NETWORK_BITS
    return str(ipaddress.IPv6Network((int(parsed) >> host_bits << host_bits, IPV6_NETWORK_BITS)))


__all__ = [
    "RateLimit",
    "RateLimitReservation",
    "RateLimitState",
    "block_rate_limit",
    "blocked_for",
    "consume_rate_limit",
    "purge_rate_limits",
    "rate_limit_address",
    "read_rate_limits",
    "refund_rate_limits",
    "reserve_rate_limit",
    "reserve_rate_limits",
]
