"""Key rotation: re-encrypt envelopes under the active key while the hub runs, and retire old keys.

To add a column of envelopes, add two statements and a line in `count_envelopes` to `rotation.sql`, and an entry to
`ENVELOPE_COLUMNS`.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.core.duration import format_duration
from pabal.core.errors import Conflict, DecryptionError
from pabal.core.ids import LOWEST_ID
from pabal.db.queries import Query, load_queries
from pabal.db.tx import Tx
from pabal.keys.envelope import EnvelopeLocation, decrypt_envelope, encrypt_envelope, envelope_prefix
from pabal.keys.key import Key, KeyUse
from pabal.keys.keyring import KeyRing

Q = load_queries(__file__)

REWRAP_BATCH_SIZE = 500
MAX_LISTED_UNREADABLE = 100
"""How many unreadable envelopes are listed: if a key is lost, all of its envelopes are unreadable."""


@dataclass(frozen=True, slots=True)
class EnvelopeColumn:
    """A column of envelopes, with the statements that find outdated ones and update them."""

    table: str
    name: str
    select_outdated: Query
    update: Query


ENVELOPE_COLUMNS = (
    EnvelopeColumn("service_tokens", "access_token", Q.outdated_access_tokens, Q.update_access_tokens),
    EnvelopeColumn("refresh_tokens", "refresh_token", Q.outdated_refresh_tokens, Q.update_refresh_tokens),
    EnvelopeColumn("pabal.subscriptions", "secret", Q.outdated_secrets, Q.update_secrets),
    EnvelopeColumn("pabal.subscriptions", "previous_secret", Q.outdated_previous_secrets, Q.update_previous_secrets),
    EnvelopeColumn("pabal.relay_keys", "data_key", Q.outdated_data_keys, Q.update_data_keys),
)


@dataclass(frozen=True, slots=True)
class EnvelopeCell:
    """An envelope and its row."""

    id: UUID
    envelope: str


@dataclass(frozen=True, slots=True)
class EnvelopeCount:
    """The number of envelopes under a key. `key_id` is None for values that are not envelopes."""

    key_id: str | None
    count: int


@dataclass(frozen=True, slots=True)
class RewrapBatch:
    """The result for some rows of a column. `last_id` is None at the end of the column."""

    last_id: UUID | None
    rewrapped: int = 0
    skipped: int = 0
    unreadable: tuple[EnvelopeLocation, ...] = ()

    @property
    def total(self) -> int:
        return self.rewrapped + self.skipped + len(self.unreadable)


@dataclass(slots=True)
class RewrapReport:
    """The result of a rewrap. `left` rows were locked by other transactions and need another run."""

    rewrapped: int = 0
    left: int = 0
    unreadable: int = 0
    named: list[EnvelopeLocation] = field(default_factory=list[EnvelopeLocation])


async def rewrap_all_envelopes(
    transaction: Callable[[], AbstractAsyncContextManager[Tx]],
    keyring: KeyRing,
    on_batch: Callable[[RewrapBatch], None],
) -> RewrapReport:
    """Re-encrypt every column in small transactions. It can be interrupted and started again at any time.

    Skipped rows are tried again as long as there is progress.
    """
    total = RewrapReport()
    while True:
        report = RewrapReport()
        for column in ENVELOPE_COLUMNS:
            after: UUID | None = LOWEST_ID
            while after is not None:
                async with transaction() as tx:
                    batch = await rewrap_batch(tx, keyring, column, after)
                report.rewrapped += batch.rewrapped
                report.left += batch.skipped
                report.unreadable += len(batch.unreadable)
                report.named += batch.unreadable[: MAX_LISTED_UNREADABLE - len(report.named)]
                on_batch(batch)
                after = batch.last_id
        total = RewrapReport(total.rewrapped + report.rewrapped, report.left, report.unreadable, report.named)
        if not report.left or not report.rewrapped:
            return total


async def rewrap_batch(
    tx: Tx, keyring: KeyRing, column: EnvelopeColumn, after: UUID, batch: int = REWRAP_BATCH_SIZE
) -> RewrapBatch:
    """Re-encrypt the next envelopes after `after` that are not under the active key.

    An unreadable envelope is not changed: it is readable again if the lost key is restored.
    """
    prefix = envelope_prefix(keyring.active(KeyUse.ENCRYPTION))
    cells = await tx.all(EnvelopeCell, column.select_outdated, after=after, prefix=prefix, batch=batch)
    rewrapped: dict[EnvelopeCell, str] = {}
    unreadable: list[EnvelopeLocation] = []
    for cell in cells:
        location = EnvelopeLocation(column.table, column.name, cell.id)
        try:
            rewrapped[cell] = encrypt_envelope(keyring, decrypt_envelope(keyring, cell.envelope, location), location)
        except DecryptionError:
            unreadable.append(location)
    updated = await tx.run(
        column.update,
        ids=[cell.id for cell in rewrapped],
        previous=[cell.envelope for cell in rewrapped],
        envelopes=[*rewrapped.values()],
    )
    last = cells[-1].id if len(cells) == batch else None
    return RewrapBatch(last, updated, len(rewrapped) - updated, tuple(unreadable))


async def count_envelopes(tx: Tx) -> dict[str | None, int]:
    """The number of envelopes under each key."""
    return {row.key_id: row.count for row in await tx.all(EnvelopeCount, Q.count_envelopes)}


RETIRE_GRACE = {
    KeyUse.SIGNING: (timedelta(hours=1), "tokens it signed may still be in use"),
    KeyUse.ENCRYPTION: (timedelta(minutes=2), "a transaction may still encrypt with it"),
    KeyUse.AUDIT: (timedelta(minutes=2), "a transaction may still seal with it"),
}
"""How long an old key must be kept, and why: an access token is valid for an hour; no transaction takes two minutes."""


@dataclass(frozen=True, slots=True)
class OldKeyUsage:
    """How old a key is by the database's clock, and the number of its seals."""

    age: timedelta
    seal_count: int


async def read_database_clock(tx: Tx) -> datetime:
    return await tx.value(Q.database_clock)


async def check_key_retirable(tx: Tx, key: Key, *, force: bool = False) -> None:
    """Raise Conflict if the old key is still needed. `force` skips the waiting time only."""
    usage = await tx.one(OldKeyUsage, Q.old_key_usage, id=key.id, old_since=key.since)
    if usage.seal_count:
        raise Conflict(f"{usage.seal_count} seals of the audit log can only be verified with {key.id}")
    if envelopes := (await count_envelopes(tx)).get(key.id):
        raise Conflict(f"{envelopes} values are encrypted under {key.id}. Run `pabal key rewrap` first")
    grace, reason = RETIRE_GRACE[key.use]
    if usage.age < grace and not force:
        raise Conflict(f"{key.id} was rotated less than {format_duration(grace)} ago; {reason}. Wait, or use --force")


async def database_uses_keys(tx: Tx) -> bool:
    """Whether the database has values that were encrypted or sealed with any key."""
    return await tx.value(Q.database_uses_keys)
