"""Rewrap: bring what is encrypted under the active key, beside a hub that goes on writing.

A column of envelopes is two statements and a line of `envelopes` in `rewrap.sql`, and a line of `COLUMNS`.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.core.duration import format_duration
from pabal.core.errors import Conflict, DecryptionError
from pabal.db.queries import Query, load_queries
from pabal.db.tx import Tx
from pabal.keys.envelope import EnvelopeLocation, decrypt_envelope, encrypt_envelope, envelope_prefix
from pabal.keys.key import Key, KeyUse
from pabal.keys.keyring import KeyRing

Q = load_queries(__file__)

REWRAP_BATCH_SIZE = 500
LOWEST_ID = UUID(int=0)
MAX_LISTED_UNREADABLE = 100
"""How many envelopes that do not open are told one by one: where a key is lost, it is all of them."""


@dataclass(frozen=True, slots=True)
class EnvelopeColumn:
    """A column of envelopes: how to find those under another key, and how to put them back."""

    table: str
    name: str
    select_outdated: Query
    update: Query


ENVELOPE_COLUMNS = (
    EnvelopeColumn("service_tokens", "access_token", Q.outdated_access_tokens, Q.update_access_tokens),
    EnvelopeColumn("refresh_tokens", "refresh_token", Q.outdated_refresh_tokens, Q.update_refresh_tokens),
    EnvelopeColumn("pabal.subscriptions", "secret", Q.outdated_secrets, Q.update_secrets),
    EnvelopeColumn("pabal.subscriptions", "previous_secret", Q.outdated_previous_secrets, Q.update_previous_secrets),
)


@dataclass(frozen=True, slots=True)
class EnvelopeCell:
    """An envelope and its row."""

    id: UUID
    envelope: str


@dataclass(frozen=True, slots=True)
class EnvelopeCount:
    """How many envelopes lie under a key; no key is named for what is not an envelope."""

    key_id: str | None
    count: int


@dataclass(frozen=True, slots=True)
class RewrapBatch:
    """What became of some rows of a column. `last` is None when the column is at its end."""

    last_id: UUID | None
    rewrapped: int = 0
    skipped: int = 0
    unreadable: tuple[EnvelopeLocation, ...] = ()

    @property
    def total(self) -> int:
        return self.rewrapped + self.skipped + len(self.unreadable)


@dataclass(slots=True)
class RewrapReport:
    """What a rewrap came to. `left` were being changed by somebody else, and are for the next time."""

    rewrapped: int = 0
    left: int = 0
    unreadable: int = 0
    named: list[EnvelopeLocation] = field(default_factory=list[EnvelopeLocation])


async def rewrap_all_envelopes(
    transaction: Callable[[], AbstractAsyncContextManager[Tx]],
    keyring: KeyRing,
    on_batch: Callable[[RewrapBatch], None],
) -> RewrapReport:
    """Walk every column in small transactions; stopped at any point, it goes on from there when started again.

    What was passed by is tried again for as long as that gets anywhere.
    """
    total = RewrapReport()
    while True:
        walk = RewrapReport()
        for column in ENVELOPE_COLUMNS:
            after: UUID | None = LOWEST_ID
            while after is not None:
                async with transaction() as tx:
                    batch = await rewrap_batch(tx, keyring, column, after)
                walk.rewrapped += batch.rewrapped
                walk.left += batch.skipped
                walk.unreadable += len(batch.unreadable)
                walk.named += batch.unreadable[: MAX_LISTED_UNREADABLE - len(walk.named)]
                on_batch(batch)
                after = batch.last_id
        total = RewrapReport(total.rewrapped + walk.rewrapped, walk.left, walk.unreadable, walk.named)
        if not walk.left or not walk.rewrapped:
            return total


async def rewrap_batch(
    tx: Tx, keyring: KeyRing, column: EnvelopeColumn, after: UUID, batch: int = REWRAP_BATCH_SIZE
) -> RewrapBatch:
    """Seal again the next envelopes behind `after` that are not under the active key.

    One that does not open stays as it is: whoever finds the key again finds it too.
    """
    mark = envelope_prefix(keyring.active(KeyUse.ENCRYPTION))
    cells = await tx.all(EnvelopeCell, column.select_outdated, after=after, mark=mark, batch=batch)
    fresh: dict[EnvelopeCell, str] = {}
    unreadable: list[EnvelopeLocation] = []
    for cell in cells:
        place = EnvelopeLocation(column.table, column.name, cell.id)
        try:
            fresh[cell] = encrypt_envelope(keyring, decrypt_envelope(keyring, cell.envelope, place), place)
        except DecryptionError:
            unreadable.append(place)
    put = await tx.run(
        column.update,
        ids=[cell.id for cell in fresh],
        were=[cell.envelope for cell in fresh],
        envelopes=[*fresh.values()],
    )
    last = cells[-1].id if len(cells) == batch else None
    return RewrapBatch(last, put, len(fresh) - put, tuple(unreadable))


async def count_envelopes(tx: Tx) -> dict[str | None, int]:
    """How many envelopes lie under each key."""
    return {each.key_id: each.count for each in await tx.all(EnvelopeCount, Q.count_envelopes)}


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


async def database_uses_keys(tx: Tx) -> bool:
    """Whether anything here was encrypted or sealed with keys, whichever they were."""
    return await tx.value(Q.database_uses_keys)
