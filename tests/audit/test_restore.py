"""The chain continues after a restore on a server with lower transaction ids."""

from collections.abc import Iterable

import pytest

from pabal.audit.seal import ChainEnd, Q, SealedRange, insert_seal, list_unsealed_rows, seal_audit_log
from support.audit_log import AuditLog

pytestmark = pytest.mark.anyio

SEALED, UNSEALED = 500, 700
"""Offsets of the other server's transaction ids: of its last sealed rows and of its unsealed rows."""


async def write_as_other_server(audit_log: AuditLog, offsets: Iterable[int]) -> int:
    """Write rows as the other server did and seal some; returns its last transaction id."""
    [current] = await audit_log.fetch("select pg_current_xact_id() as xid")
    async with audit_log.owner() as conn:
        for offset in offsets:
            await conn.execute(
                "insert into pabal.audit_log (actor, action, xid) values ('minu_find', 'token.issued', $1)",
                current["xid"] + offset,
            )
    sealed_below = current["xid"] + UNSEALED
    async with audit_log.hub.transaction() as tx:
        rows = [
            row for row in await list_unsealed_rows(tx, SealedRange(0, 0), 100, finished=True) if row.xid < sealed_below
        ]
        await insert_seal(tx, audit_log.key, await tx.one(ChainEnd, Q.chain_end), rows, SealedRange(sealed_below, 0))
    return sealed_below


async def consume_transaction_ids(audit_log: AuditLog, count: int) -> None:
    """Use up transaction ids."""
    async with audit_log.owner() as conn:
        await conn.execute(
            f"do $$ begin for i in 1..{count} loop perform pg_current_xact_id(); commit; end loop; end $$"
        )


@pytest.mark.parametrize("batch", [1, 2, 1000])
async def test_a_restored_database_seals_the_remaining_rows_and_new_ones(audit_log: AuditLog, batch: int) -> None:
    """The restored rows have transaction ids that this server will use again for other rows."""
    sealed_below = await write_as_other_server(
        audit_log, [SEALED, UNSEALED, SEALED + 1, SEALED + 1, UNSEALED + 1, UNSEALED]
    )
    await audit_log.write(2)
    before = await audit_log.verify()
    assert (before.rows, before.unsealed, before.broken) == (3, 5, 0)

    for _ in range(10):
        await audit_log.seal(batch)
    assert await audit_log.sealed_row_ids() == await audit_log.rows()
    assert await audit_log.breaks() == []

    for _ in range(4):
        await consume_transaction_ids(audit_log, 250)
        await audit_log.write_sealed(2)
    [newest] = await audit_log.fetch("select max(xid) as xid from pabal.audit_log")
    assert newest["xid"] > sealed_below + 100
    assert await audit_log.sealed_row_ids() == await audit_log.rows()
    report = await audit_log.verify()
    assert (report.rows, report.unsealed, report.broken) == (16, 0, 0)


async def test_a_row_inserted_among_restored_ones_is_reported(audit_log: AuditLog) -> None:
    """Before the first seal on this server, an inserted row looks like an unsealed one; afterwards it does not."""
    insert = "insert into pabal.audit_log (id, actor, action, xid) values ({}, 'minu_keep', 'token.issued', '{}')"
    await audit_log.tamper("select setval('pabal.audit_log_id_seq', 10)")
    sealed_below = await write_as_other_server(audit_log, [SEALED, UNSEALED, SEALED + 1])

    await audit_log.tamper(insert.format(5, sealed_below - 1))
    assert await audit_log.breaks() == [("row_added", None, 5)]
    await audit_log.seal()
    await audit_log.tamper(insert.format(6, sealed_below + 9))
    await audit_log.seal()
    await audit_log.write(1)
    await audit_log.seal()

    assert await audit_log.breaks() == [("row_added", None, 5), ("row_added", None, 6)]


async def test_a_restored_database_without_unsealed_rows_seals_nothing(audit_log: AuditLog) -> None:
    await write_as_other_server(audit_log, [SEALED, SEALED + 1])

    assert await audit_log.seal() == 0
    await audit_log.write_sealed(1)

    assert await audit_log.sealed_row_ids() == await audit_log.rows()
    assert await audit_log.breaks() == []


async def test_an_acceptance_is_sealed_although_the_server_has_reached_the_ids_of_the_backup(
    audit_log: AuditLog,
) -> None:
    """It was written with a lower transaction id than the chain's, and another transaction ended before the seal."""
    sealed_below = await write_as_other_server(audit_log, [SEALED, SEALED + 1])
    await audit_log.write(1)
    [row] = await audit_log.fetch("select max(id) as id from pabal.audit_log")
    await consume_transaction_ids(audit_log, UNSEALED)
    [current] = await audit_log.fetch("select pg_current_xact_id() as xid")
    assert current["xid"] > sealed_below
    assert await audit_log.seal() == 0
    assert await audit_log.breaks() == [("row_added", None, row["id"])]

    async with audit_log.hub.transaction() as tx:
        await seal_audit_log(tx, audit_log.key, 100, after_restore=True)

    assert await audit_log.breaks() == []
    await audit_log.write_sealed(2)
    assert await audit_log.sealed_row_ids() == await audit_log.rows()
    assert await audit_log.breaks() == []
