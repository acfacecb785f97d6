"""Upkeep of tokens: mark what has expired, forget what ended long ago."""

from datetime import timedelta

from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)

FAMILIES = 50


async def expire(tx: Tx, _batch: int) -> int:
    """Mark what has expired as ended; how many access tokens. All of it at once: each is marked once in its life."""
    return await tx.value(Q.expire)


async def purge(tx: Tx, keep: timedelta, batch: int) -> int:
    """Forget up to `batch` families that ended longer ago than `keep`, a few at a time: each has many tokens."""
    gone = 0
    while gone < batch:
        step = min(FAMILIES, batch - gone)
        done = await tx.run(Q.purge, keep=keep, batch=step)
        gone += done
        if done < step:
            break
    return gone
