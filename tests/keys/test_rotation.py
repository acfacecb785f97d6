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
from support.clusters import connected
from support.envelopes import kept, put_access, put_pairs

pytestmark = pytest.mark.anyio

[ACCESS, *_] = ENVELOPE_COLUMNS


def turned(ring: KeyRing) -> KeyRing:
    return KeyRing(ring.keys.rotate([KeyUse.ENCRYPTION], datetime.now(UTC)))


def under(ring: KeyRing) -> str:
    return envelope_prefix(ring.active(KeyUse.ENCRYPTION))


def silence(_: RewrapBatch) -> None:
    return


@pytest.fixture
def before() -> KeyRing:
    return KeyRing(KeySet.generate(datetime.now(UTC)))


async def test_all_envelopes_are_rewrapped_with_their_text_unchanged(
    hub: Hub, database_urls: DatabaseUrls, before: KeyRing
) -> None:
    held, now = await put_pairs(database_urls, before, REWRAP_BATCH_SIZE + 20), turned(before)
    batches: list[RewrapBatch] = []

    tally = await rewrap_all_envelopes(hub.transaction, now, batches.append)

    assert (tally.rewrapped, tally.left, tally.unreadable, tally.named) == (len(held), 0, 0, [])
    assert [batch.total for batch in batches] == [REWRAP_BATCH_SIZE, 20] * len(ENVELOPE_COLUMNS)
    found = await kept(database_urls)
    assert {place: decrypt_envelope(now, envelope, place) for place, envelope in found.items()} == held
    assert all(envelope.startswith(under(now)) for envelope in found.values())
    async with hub.autocommit() as tx:
        assert await count_envelopes(tx) == {now.active(KeyUse.ENCRYPTION).id: len(held)}

    again = await rewrap_all_envelopes(hub.transaction, now, silence)
    assert again.rewrapped == 0
    assert await kept(database_urls) == found


async def test_an_interrupted_rewrap_continues(hub: Hub, database_urls: DatabaseUrls, before: KeyRing) -> None:
    held, now = await put_pairs(database_urls, before, REWRAP_BATCH_SIZE + 20), turned(before)

    def stop(_: RewrapBatch) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await rewrap_all_envelopes(hub.transaction, now, stop)
    tally = await rewrap_all_envelopes(hub.transaction, now, silence)

    assert tally.rewrapped == len(held) - REWRAP_BATCH_SIZE
    assert {
        place: decrypt_envelope(now, envelope, place) for place, envelope in (await kept(database_urls)).items()
    } == held


async def test_unreadable_envelopes_are_reported_and_not_changed(
    hub: Hub, database_urls: DatabaseUrls, before: KeyRing
) -> None:
    held = await put_pairs(database_urls, before, 1)
    stranger, mine = (
        KeyRing(KeySet.generate(datetime.now(UTC))),
        EnvelopeLocation("service_tokens", "access_token", new_id()),
    )
    rows = {
        new_id(): "eyJhbGciOiJ.was-never.encrypted",
        new_id(): encrypt_envelope(before, "copied from another row", mine),
        mine.row: encrypt_envelope(stranger, "under a key that is lost", mine),
    }
    for row, envelope in rows.items():
        await put_access(database_urls, row, envelope)
    now = turned(before)

    tally = await rewrap_all_envelopes(hub.transaction, now, silence)

    assert (tally.rewrapped, tally.left, tally.unreadable) == (len(held), 0, len(rows))
    assert {*tally.named} == {replace(mine, row=row) for row in rows}
    found = await kept(database_urls)
    assert {row: found[replace(mine, row=row)] for row in rows} == rows
    async with hub.autocommit() as tx:
        counts = await count_envelopes(tx)
    assert counts == {
        None: 1,
        before.active(KeyUse.ENCRYPTION).id: 1,
        stranger.active(KeyUse.ENCRYPTION).id: 1,
        now.active(KeyUse.ENCRYPTION).id: len(held),
    }


async def test_an_empty_cell_is_ignored(hub: Hub, database_urls: DatabaseUrls, before: KeyRing) -> None:
    async with connected(database_urls.direct or database_urls.main) as conn:
        await conn.execute(
            "insert into pabal.subscriptions (service_name, mode, event_types) values ('minu_find', 'pull', '{a.b}')"
        )

    tally = await rewrap_all_envelopes(hub.transaction, before, silence)

    assert (tally.rewrapped, tally.unreadable) == (0, 0)
    async with hub.autocommit() as tx:
        assert await count_envelopes(tx) == {}


async def test_with_a_lost_key_all_envelopes_are_counted_and_some_listed(
    hub: Hub, database_urls: DatabaseUrls, before: KeyRing
) -> None:
    held = await put_pairs(database_urls, before, MAX_LISTED_UNREADABLE)

    tally = await rewrap_all_envelopes(hub.transaction, KeyRing(KeySet.generate(datetime.now(UTC))), silence)

    assert (tally.rewrapped, tally.unreadable, len(tally.named)) == (0, len(held), MAX_LISTED_UNREADABLE)


async def test_a_rewrap_continues_after_unreadable_envelopes(
    hub: Hub, database_urls: DatabaseUrls, before: KeyRing
) -> None:
    for _ in range(3):
        await put_access(database_urls, new_id(), "not an envelope")
    await put_pairs(database_urls, before, 2)
    now, after, seen = turned(before), LOWEST_ID, list[RewrapBatch]()

    while True:
        async with hub.transaction() as tx:
            seen.append(await rewrap_batch(tx, now, ACCESS, after, batch=2))
        if seen[-1].last_id is None:
            break
        after = seen[-1].last_id

    assert [(batch.rewrapped, len(batch.unreadable)) for batch in seen] == [(0, 2), (1, 1), (1, 0)]


async def test_a_locked_row_is_skipped_without_waiting(hub: Hub, database_urls: DatabaseUrls, before: KeyRing) -> None:
    held, now = await put_pairs(database_urls, before, 3), turned(before)
    place = next(place for place in held if place.table == "service_tokens")

    async with connected(database_urls.direct or database_urls.main) as other, other.transaction():
        await other.execute("select from public.service_tokens where id = $1 for update", place.row)
        tally = await rewrap_all_envelopes(hub.transaction, now, silence)
    assert (tally.rewrapped, tally.left) == (len(held) - 1, 1)

    assert (await rewrap_all_envelopes(hub.transaction, now, silence)).rewrapped == 1


@pytest.mark.parametrize("column", ENVELOPE_COLUMNS, ids=lambda column: column.name)
async def test_a_value_changed_after_it_was_read_is_not_overwritten(
    hub: Hub, database_urls: DatabaseUrls, before: KeyRing, column: EnvelopeColumn
) -> None:
    held = await put_pairs(database_urls, before, 2)
    [changed, other] = [place for place in held if (place.table, place.column) == (column.table, column.name)]
    read = await kept(database_urls)
    newer = encrypt_envelope(before, "newer", changed)
    async with connected(database_urls.direct or database_urls.main) as conn:
        await conn.execute(f"update {column.table} set {column.name} = $2 where id = $1", changed.row, newer)

    async with hub.transaction() as tx:
        put = await tx.run(
            column.update,
            ids=[changed.row, other.row],
            previous=[read[changed], read[other]],
            envelopes=["stale", "fresh"],
        )

    assert put == 1
    found = await kept(database_urls)
    assert (found[changed], found[other]) == (newer, "fresh")


async def test_a_rewrap_beside_a_writer_loses_nothing_and_does_not_deadlock(
    hub: Hub, database_urls: DatabaseUrls, before: KeyRing
) -> None:
    """The writer locks several rows at a time, in any order, and writes under the old key as often as the new one."""
    held, now = await put_pairs(database_urls, before, 200), turned(before)
    places, wrote, dice, stop = [*held], 0, random.Random(7), asyncio.Event()

    async def write() -> None:
        nonlocal wrote
        async with connected(database_urls.direct or database_urls.main) as conn:
            while not stop.is_set():
                chosen = dice.sample(places, 8)
                said = {place: f"{held[place]} again" for place in chosen}
                async with conn.transaction():  # a deadlock would be detected by the server and fail here
                    for place, text in said.items():
                        envelope = encrypt_envelope(dice.choice((before, now)), text, place)
                        await conn.execute(
                            f"update {place.table} set {place.column} = $2 where id = $1", place.row, envelope
                        )
                held.update(said)
                wrote += 1

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(write())
        moved = 0
        while wrote < 60 or moved <= len(held):  # so some were written under the old key and rewrapped again
            moved += (await rewrap_all_envelopes(hub.transaction, now, silence)).rewrapped
        stop.set()

    tally = await rewrap_all_envelopes(hub.transaction, now, silence)
    assert (tally.left, tally.unreadable) == (0, 0)
    found = await kept(database_urls)
    assert all(envelope.startswith(under(now)) for envelope in found.values())
    assert {place: decrypt_envelope(now, envelope, place) for place, envelope in found.items()} == held


def test_every_column_has_its_statements_and_is_counted() -> None:
    names = {statement.name for column in ENVELOPE_COLUMNS for statement in (column.select_outdated, column.update)}

    assert names == {query.name for query in Q} - {
        "count_envelopes",
        "database_clock",
        "old_key_usage",
        "database_uses_keys",
    }
    assert [column.name for column in ENVELOPE_COLUMNS if column.name not in Q.count_envelopes.sql] == []
