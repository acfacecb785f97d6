"""Upkeep of tokens: mark what has expired, forget what ended long ago."""

from datetime import timedelta

from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)

PURGE_STEP = 50


async def expire_tokens(tx: Tx, _batch: int) -> int:
    """Mark what has expired as ended; how many access tokens. All of it at once: each is marked once in its life."""
    return await tx.value(Q.expire_tokens)


async def purge_token_families(tx: Tx, keep: timedelta, batch: int) -> int:
    """Forget up to `batch` families that ended longer ago than `keep`, a few at a time: each has many tokens."""
    gone = 0
    while gone < batch:
        step = min(PURGE_STEP, batch - gone)
        done = await tx.run(Q.purge_token_families, keep=keep, batch=step)
        gone += done
        if done < step:
            break
    return gone
