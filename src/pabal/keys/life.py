"""The life of a key, by the database's clock: when it turns, and what still needs it at its end."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from pabal.core.errors import Conflict
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.keys.key import Key, Use
from pabal.keys.rewrap import envelopes
from pabal.settings import in_words

Q = beside(__file__)

GRACE = {
    Use.SIGNING: (timedelta(hours=1), "tokens it signed may still be in use"),
    Use.ENCRYPTION: (timedelta(minutes=2), "somebody may still be writing under it"),
    Use.AUDIT: (timedelta(minutes=2), "somebody may still be sealing with it"),
}
"""How long a key stays after it left, and why: an access token lives an hour, no transaction of ours two minutes."""


@dataclass(frozen=True, slots=True)
class Left:
    """An old key as the database knows it."""

    ago: timedelta
    seals: int


async def now(tx: Tx) -> datetime:
    return await tx.value(Q.now)


async def let_go(tx: Tx, key: Key, *, force: bool = False) -> None:
    """Refuse to let an old key go that something still needs; `force` spares the waiting, and nothing else."""
    left = await tx.one(Left, Q.since_it_left, id=key.id, left_at=key.since)
    if left.seals:
        raise Conflict(f"{key.id} made {left.seals} seals of the audit log, which nobody could verify without it")
    if under := (await envelopes(tx)).get(key.id):
        raise Conflict(f"{under} values are encrypted under {key.id}: run `pabal keys rewrap` first")
    grace, why = GRACE[key.use]
    if left.ago < grace and not force:
        raise Conflict(f"{key.id} left less than {in_words(grace)} ago and {why}: wait, or say --force")
