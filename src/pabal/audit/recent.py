"""Verify the end of the chain: the newest seals, held against the one before them.

What lies before is taken as it is, so this proves less than `verify` and takes a second at most, however long the log.
"""

from dataclasses import dataclass

from pabal.audit.verify import LOWEST, Start, Verdict, verify
from pabal.audit.walk import Seal
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.keys.ring import Ring

Q = beside(__file__)

SEALS = 5_000
ROWS = 50_000


@dataclass(frozen=True, slots=True)
class Looked:
    """What the walk found, and how many seals it left out: none means that all of the log was looked at."""

    verdict: Verdict
    left_out: int


async def recent(tx: Tx, keys: Ring, seals: int = SEALS, rows: int = ROWS) -> Looked:
    """Verify as many of the newest seals as hold `rows` rows, `seals` at most."""
    before = await tx.maybe(Seal, Q.before, seals=seals, rows=rows)
    if before is None:
        return Looked(await verify(tx, keys), 0)
    highest = await tx.value(Q.highest, seal=before.id)
    found = await verify(tx, keys, start=Start(before, highest or LOWEST))
    return Looked(found, await tx.value(Q.left_out, seal=before.id))
