"""How often: limits shared by every process, kept in one row each."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from pabal.core.errors import RateLimited
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`count` of something in any `span`, spread evenly after the first burst."""

    name: str
    count: int
    window: timedelta


async def consume_rate_limit(tx: Tx, limit: RateLimit, key: str, count: int = 1) -> None:
    """Count a call of `key`, or so many at once, all or none; or raise TooMany. More than the limit are all of it.

    Give it a transaction of its own: a limit that is rolled back with the work it guards limits nothing.
    """
    step = limit.window // limit.count * min(count, limit.count)
    call = {"key": f"{limit.name}:{key}", "step": step, "span": limit.window}
    if not await tx.value(Q.consume, **call):
        raise RateLimited(limit.name, await tx.value(Q.retry_after, **call) or step)


@dataclass(frozen=True, slots=True)
class RateLimitState:
    """How somebody stands with a limit: how long they must wait, and whether anything is counted against them."""

    retry_after: timedelta
    is_used: bool


async def read_rate_limits(tx: Tx, *calls: tuple[RateLimit, str]) -> list[RateLimitState]:
    """How each of these stands, in one statement that counts nothing."""
    return await tx.all(
        RateLimitState,
        Q.read_states,
        keys=[f"{limit.name}:{key}" for limit, key in calls],
        steps=[limit.window // limit.count for limit, _ in calls],
        spans=[limit.window for limit, _ in calls],
    )


async def block_rate_limit(tx: Tx, limit_name: str, key: str, duration: timedelta) -> None:
    """Let nobody through for this long, because somebody else's server said so; a longer wait stays."""
    await tx.run(Q.block, key=f"{limit_name}:{key}", span=duration)


async def blocked_for(tx: Tx, limit_name: str, keys: Sequence[str]) -> timedelta:
    """How long the longest of these holds still lasts."""
    return await tx.value(Q.blocked_for, keys=[f"{limit_name}:{key}" for key in keys])


async def reserve_rate_limit(tx: Tx, limit: RateLimit, key: str, max_wait: timedelta) -> timedelta:
    """Take the next free place, and be told how long it is until then; TooMany when that is not within the time."""
    call = {"key": f"{limit.name}:{key}", "step": limit.window // limit.count, "span": limit.window}
    wait = await tx.value(Q.reserve, **call, within=max_wait)
    if wait is None:
        raise RateLimited(limit.name, max_wait)
    return wait


async def purge_rate_limits(tx: Tx, batch: int) -> int:
    """Drop up to `batch` limits that limit nobody any more; how many went."""
    return await tx.run(Q.purge, batch=batch)


IPV6_NETWORK_BITS = 64
"""Bits of an IPv6 address that a network gives somebody; the other half they choose themselves, anew for every call."""


def rate_limit_address(address: str) -> str:
    """What to count an address by: an IPv4 one by itself, an IPv6 one by its /64; what is no address stays as it is."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    rest = parsed.max_prefixlen - IPV6_NETWORK_BITS
    return str(ipaddress.IPv6Network((int(parsed) >> rest << rest, IPV6_NETWORK_BITS)))


__all__ = [
    "RateLimit",
    "RateLimitState",
    "block_rate_limit",
    "blocked_for",
    "consume_rate_limit",
    "purge_rate_limits",
    "rate_limit_address",
    "read_rate_limits",
    "reserve_rate_limit",
]
