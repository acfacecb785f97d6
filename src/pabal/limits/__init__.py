"""How often: limits shared by every process, kept in one row each."""

from pabal.limits.take import (
    RateLimit,
    RateLimitState,
    block_rate_limit,
    blocked_for,
    consume_rate_limit,
    purge_rate_limits,
    read_rate_limits,
    reserve_rate_limit,
)
from pabal.limits.whose import rate_limit_address

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
