"""Verify the end of the chain: the newest seals, held against the one before them.

What lies before is taken as it is, so this proves less than `verify` and takes a second at most, however long the log.
"""

from dataclasses import dataclass

from pabal.audit.verify import MIN_ROW_ID, VerifyReport, VerifyStart, verify_audit_log
from pabal.audit.walk import Seal
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.keys.ring import KeyRing

Q = load_queries(__file__)

MAX_RECENT_SEALS = 5_000
MAX_RECENT_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class RecentVerification:
    """What the walk found, and how many seals it left out: none means that all of the log was looked at."""

    report: VerifyReport
    skipped_seals: int


async def verify_recent_seals(
    tx: Tx, keyring: KeyRing, max_seals: int = MAX_RECENT_SEALS, max_rows: int = MAX_RECENT_ROWS
) -> RecentVerification:
    """Verify as many of the newest seals as hold `rows` rows, `seals` at most."""
    before = await tx.maybe(Seal, Q.seal_before_recent, seals=max_seals, rows=max_rows)
    if before is None:
        return RecentVerification(await verify_audit_log(tx, keyring), 0)
    highest = await tx.value(Q.highest_sealed_row, seal=before.id)
    found = await verify_audit_log(tx, keyring, start=VerifyStart(before, highest or MIN_ROW_ID))
    return RecentVerification(found, await tx.value(Q.count_skipped_seals, seal=before.id))
