"""The life of a key, by the database's clock: when it turns, and what still needs it at its end."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from pabal.core.errors import Conflict
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.keys.key import Key, KeyUse
from pabal.keys.rewrap import count_envelopes
from pabal.settings import format_duration

Q = load_queries(__file__)

RETIRE_GRACE = {
    KeyUse.SIGNING: (timedelta(hours=1), "tokens it signed may still be in use"),
    KeyUse.ENCRYPTION: (timedelta(minutes=2), "somebody may still be writing under it"),
    KeyUse.AUDIT: (timedelta(minutes=2), "somebody may still be sealing with it"),
}
"""How long a key stays after it left, and why: an access token lives an hour, no transaction of ours two minutes."""


@dataclass(frozen=True, slots=True)
class OldKeyUsage:
    """An old key as the database knows it."""

    age: timedelta
    seal_count: int


async def read_database_clock(tx: Tx) -> datetime:
    return await tx.value(Q.database_clock)


async def check_key_retirable(tx: Tx, key: Key, *, force: bool = False) -> None:
    """Refuse to let an old key go that something still needs; `force` spares the waiting, and nothing else."""
    left = await tx.one(OldKeyUsage, Q.old_key_usage, id=key.id, left_at=key.since)
    if left.seal_count:
        raise Conflict(f"{key.id} made {left.seal_count} seals of the audit log, which nobody could verify without it")
    if under := (await count_envelopes(tx)).get(key.id):
        raise Conflict(f"{under} values are encrypted under {key.id}: run `pabal keys rewrap` first")
    grace, why = RETIRE_GRACE[key.use]
    if left.age < grace and not force:
        raise Conflict(f"{key.id} left less than {format_duration(grace)} ago and {why}: wait, or say --force")
