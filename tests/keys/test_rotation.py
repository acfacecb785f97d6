"""Rewrapping re-encrypts all envelopes under the active key while the hub runs, and keeps unreadable ones."""

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls, Hub
from pabal.keys.envelope import EnvelopeLocation, decrypt_envelope, encrypt_envelope, envelope_prefix
from pabal.keys.key import KeySet, KeyUse
from pabal.keys.keyring import KeyRing
from pabal.keys.rotation import (
    ENVELOPE_COLUMNS,
    LOWEST_ID,
    MAX_LISTED_UNREADABLE,
    REWRAP_BATCH_SIZE,
    EnvelopeColumn,
    Q,
    RewrapBatch,
    count_envelopes,
    rewrap_all_envelopes,
    rewrap_batch,
)
from support.clusters import open_connection
from support.envelopes import insert_access_token, insert_envelopes, load_envelopes

pytestmark = pytest.mark.anyio

[ACCESS, *_] = ENVELOPE_COLUMNS


def rotated_ring(ring: KeyRing) -> KeyRing:
    return KeyRing(ring.keys.rotate([KeyUse.ENCRYPTION], datetime.now(UTC)))


def active_prefix(ring: KeyRing) -> str:
    return envelope_prefix(ring.active(KeyUse.ENCRYPTION))


def ignore_progress(_: RewrapBatch) -> None:
    return


@pytest.fixture
def old_ring() -> KeyRing:
    return KeyRing(KeySet.generate(datetime.now(UTC)))


async def test_all_envelopes_are_rewrapped_with_their_text_unchanged(
    hub: Hub, database_urls: DatabaseUrls, old_ring: KeyRing
) -> None:
    texts, new_ring = await insert_envelopes(database_urls, old_ring, REWRAP_BATCH_SIZE + 20), rotated_ring(old_ring)
    batches: list[RewrapBatch] = []

    result = await rewrap_all_envelopes(hub.transaction, new_ring, batches.append)

    assert (result.rewrapped, result.left, result.unreadable, result.named) == (len(texts), 0, 0, [])
    assert [batch.total for batch in batches] == [REWRAP_BATCH_SIZE, 20] * len(ENVELOPE_COLUMNS)
    envelopes = await load_envelopes(database_urls)
    assert {
        location: decrypt_envelope(new_ring, envelope, location) for location, envelope in envelopes.items()
    } == texts
    assert all(envelope.startswith(active_prefix(new_ring)) for envelope in envelopes.values())
    async with hub.autocommit() as tx:
        assert await count_envelopes(tx) == {new_ring.active(KeyUse.ENCRYPTION).id: len(texts)}

    repeated = await rewrap_all_envelopes(hub.transaction, new_ring, ignore_progress)
    assert repeated.rewrapped == 0
    assert await load_envelopes(database_urls) == envelopes


async def test_an_interrupted_rewrap_continues(hub: Hub, database_urls: DatabaseUrls, old_ring: KeyRing) -> None:
    texts, new_ring = await insert_envelopes(database_urls, old_ring, REWRAP_BATCH_SIZE + 20), rotated_ring(old_ring)

    def stop(_: RewrapBatch) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await rewrap_all_envelopes(hub.transaction, new_ring, stop)
    result = await rewrap_all_envelopes(hub.transaction, new_ring, ignore_progress)

    assert result.rewrapped == len(texts) - REWRAP_BATCH_SIZE
    assert {
        location: decrypt_envelope(new_ring, envelope, location)
        for location, envelope in (await load_envelopes(database_urls)).items()
    } == texts


async def test_unreadable_envelopes_are_reported_and_not_changed(
    hub: Hub, database_urls: DatabaseUrls, old_ring: KeyRing
) -> None:
    texts = await insert_envelopes(database_urls, old_ring, 1)
    other_ring, location = (
        KeyRing(KeySet.generate(datetime.now(UTC))),
        EnvelopeLocation("service_tokens", "access_token", new_id()),
    )
    rows = {
        new_id(): "eyJhbGciOiJ.was-never.encrypted",
        new_id(): encrypt_envelope(old_ring, "copied from another row", location),
        location.row: encrypt_envelope(other_ring, "under a key that is lost", location),
    }
    for row, envelope in rows.items():
        await insert_access_token(database_urls, row, envelope)
    new_ring = rotated_ring(old_ring)

    result = await rewrap_all_envelopes(hub.transaction, new_ring, ignore_progress)

    assert (result.rewrapped, result.left, result.unreadable) == (len(texts), 0, len(rows))
    assert {*result.named} == {replace(location, row=row) for row in rows}
    envelopes = await load_envelopes(database_urls)
    assert {row: envelopes[replace(location, row=row)] for row in rows} == rows
    async with hub.autocommit() as tx:
        counts = await count_envelopes(tx)
    assert counts == {
        None: 1,
        old_ring.active(KeyUse.ENCRYPTION).id: 1,
        other_ring.active(KeyUse.ENCRYPTION).id: 1,
        new_ring.active(KeyUse.ENCRYPTION).id: len(texts),
    }


async def test_an_empty_cell_is_ignored(hub: Hub, database_urls: DatabaseUrls, old_ring: KeyRing) -> None:
    async with open_connection(database_urls.direct or database_urls.main) as conn:
        await conn.execute(
            "insert into pabal.subscriptions (service_name, mode, event_types) values ('minu_find', 'pull', '{a.b}')"
        )

    result = await rewrap_all_envelopes(hub.transaction, old_ring, ignore_progress)

    assert (result.rewrapped, result.unreadable) == (0, 0)
    async with hub.autocommit() as tx:
        assert await count_envelopes(tx) == {}


async def test_with_a_lost_key_all_envelopes_are_counted_and_some_listed(
    hub: Hub, database_urls: DatabaseUrls, old_ring: KeyRing
) -> None:
    texts = await insert_envelopes(database_urls, old_ring, MAX_LISTED_UNREADABLE)

    result = await rewrap_all_envelopes(hub.transaction, KeyRing(KeySet.generate(datetime.now(UTC))), ignore_progress)

    assert (result.rewrapped, result.unreadable, len(result.named)) == (0, len(texts), MAX_LISTED_UNREADABLE)


async def test_a_rewrap_continues_after_unreadable_envelopes(
    hub: Hub, database_urls: DatabaseUrls, old_ring: KeyRing
) -> None:
    for _ in range(3):
        await insert_access_token(database_urls, new_id(), "not an envelope")
    await insert_envelopes(database_urls, old_ring, 2)
    new_ring, after, batches = rotated_ring(old_ring), LOWEST_ID, list[RewrapBatch]()

    while True:
        async with hub.transaction() as tx:
            batches.append(await rewrap_batch(tx, new_ring, ACCESS, after, batch=2))
        if batches[-1].last_id is None:
            break
        after = batches[-1].last_id

    assert [(batch.rewrapped, len(batch.unreadable)) for batch in batches] == [(0, 2), (1, 1), (1, 0)]


async def test_a_locked_row_is_skipped_without_waiting(
    hub: Hub, database_urls: DatabaseUrls, old_ring: KeyRing
) -> None:
    texts, new_ring = await insert_envelopes(database_urls, old_ring, 3), rotated_ring(old_ring)
    location = next(location for location in texts if location.table == "service_tokens")

    async with open_connection(database_urls.direct or database_urls.main) as other, other.transaction():
        await other.execute("select from public.service_tokens where id = $1 for update", location.row)
        result = await rewrap_all_envelopes(hub.transaction, new_ring, ignore_progress)
    assert (result.rewrapped, result.left) == (len(texts) - 1, 1)

    assert (await rewrap_all_envelopes(hub.transaction, new_ring, ignore_progress)).rewrapped == 1


@pytest.mark.parametrize("column", ENVELOPE_COLUMNS, ids=lambda column: column.name)
async def test_a_value_changed_after_it_was_read_is_not_overwritten(
    hub: Hub, database_urls: DatabaseUrls, old_ring: KeyRing, column: EnvelopeColumn
) -> None:
    texts = await insert_envelopes(database_urls, old_ring, 2)
    [changed, other] = [
        location for location in texts if (location.table, location.column) == (column.table, column.name)
    ]
    envelopes_before = await load_envelopes(database_urls)
    newer = encrypt_envelope(old_ring, "newer", changed)
    async with open_connection(database_urls.direct or database_urls.main) as conn:
        await conn.execute(f"update {column.table} set {column.name} = $2 where id = $1", changed.row, newer)

    async with hub.transaction() as tx:
        updated_count = await tx.run(
            column.update,
            ids=[changed.row, other.row],
            previous=[envelopes_before[changed], envelopes_before[other]],
            envelopes=["stale", "rewrapped"],
        )

    assert updated_count == 1
    envelopes = await load_envelopes(database_urls)
    assert (envelopes[changed], envelopes[other]) == (newer, "rewrapped")


async def test_a_rewrap_with_a_concurrent_writer_loses_nothing_and_does_not_deadlock(
    hub: Hub, database_urls: DatabaseUrls, old_ring: KeyRing
) -> None:
    """The writer locks several rows at a time in random order, and writes under the old and the new key alike."""
    texts, new_ring = await insert_envelopes(database_urls, old_ring, 200), rotated_ring(old_ring)
    locations, write_count, rng, stop = [*texts], 0, random.Random(7), asyncio.Event()

    async def write() -> None:
        nonlocal write_count
        async with open_connection(database_urls.direct or database_urls.main) as conn:
            while not stop.is_set():
                sample = rng.sample(locations, 8)
                new_texts = {location: f"{texts[location]} again" for location in sample}
                async with conn.transaction():  # a deadlock would be detected by the server and fail here
                    for location, text in new_texts.items():
                        envelope = encrypt_envelope(rng.choice((old_ring, new_ring)), text, location)
                        await conn.execute(
                            f"update {location.table} set {location.column} = $2 where id = $1", location.row, envelope
                        )
                texts.update(new_texts)
                write_count += 1

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        rewrapped_count = 0
        while write_count < 60 or rewrapped_count <= len(
            texts
        ):  # so some were written under the old key and rewrapped again
            rewrapped_count += (await rewrap_all_envelopes(hub.transaction, new_ring, ignore_progress)).rewrapped
        stop.set()

    result = await rewrap_all_envelopes(hub.transaction, new_ring, ignore_progress)
    assert (result.left, result.unreadable) == (0, 0)
    envelopes = await load_envelopes(database_urls)
    assert all(envelope.startswith(active_prefix(new_ring)) for envelope in envelopes.values())
    assert {
        location: decrypt_envelope(new_ring, envelope, location) for location, envelope in envelopes.items()
    } == texts


def test_every_column_has_its_statements_and_is_counted() -> None:
    names = {statement.name for column in ENVELOPE_COLUMNS for statement in (column.select_outdated, column.update)}

    assert names == {query.name for query in Q} - {
        "count_envelopes",
        "database_clock",
        "old_key_usage",
        "database_uses_keys",
    }
    assert [column.name for column in ENVELOPE_COLUMNS if column.name not in Q.count_envelopes.sql] == []
