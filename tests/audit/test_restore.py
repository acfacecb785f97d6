"""The chain continues after a restore on a server with lower transaction ids."""

from collections.abc import Iterable

import pytest

from pabal.audit.seal import ChainEnd, Q, SealedRange, insert_seal, list_unsealed_rows
from support.audit_log import Ledger

pytestmark = pytest.mark.anyio

SEALED, LEFT = 500, 700
"""How far the transaction ids of the other server are ahead: of its last sealed rows and of its unsealed rows."""


async def write_as_other_server(ledger: Ledger, ahead: Iterable[int]) -> int:
    """Write rows as the other server did and seal some; returns its last transaction id."""
    [now] = await ledger.ask("select pg_current_xact_id() as xid")
    async with ledger.owner() as conn:
        for xid in ahead:
            await conn.execute(
                "insert into pabal.audit_log (actor, action, xid) values ('minu_find', 'token.issued', $1)",
                now["xid"] + xid,
            )
    below = now["xid"] + LEFT
    async with ledger.hub.transaction() as tx:
        rows = [row for row in await list_unsealed_rows(tx, SealedRange(0, 0), 100, finished=True) if row.xid < below]
        await insert_seal(tx, ledger.key, await tx.one(ChainEnd, Q.chain_end), rows, SealedRange(below, 0))
    return below


async def consume_transaction_ids(ledger: Ledger, count: int) -> None:
    """Use up transaction ids."""
    async with ledger.owner() as conn:
        await conn.execute(
            f"do $$ begin for i in 1..{count} loop perform pg_current_xact_id(); commit; end loop; end $$"
        )


@pytest.mark.parametrize("batch", [1, 2, 1000])
async def test_a_restored_database_seals_the_remaining_rows_and_new_ones(ledger: Ledger, batch: int) -> None:
    """The restored rows have transaction ids that this server will use again for other rows."""
    below = await write_as_other_server(ledger, [SEALED, LEFT, SEALED + 1, SEALED + 1, LEFT + 1, LEFT])
    await ledger.write(2)
    before = await ledger.verify()
    assert (before.rows, before.unsealed, before.broken) == (3, 5, 0)

    for _ in range(10):
        await ledger.seal(batch)
    assert await ledger.named() == await ledger.rows()
    assert await ledger.breaks() == []

    for _ in range(4):
        await consume_transaction_ids(ledger, 250)
        await ledger.chain(2)
    [newest] = await ledger.ask("select max(xid) as xid from pabal.audit_log")
    assert newest["xid"] > below + 100
    assert await ledger.named() == await ledger.rows()
    verdict = await ledger.verify()
    assert (verdict.rows, verdict.unsealed, verdict.broken) == (16, 0, 0)


async def test_a_row_inserted_among_restored_ones_is_reported(ledger: Ledger) -> None:
    """Before the first seal on this server, an inserted row looks like an unsealed one; afterwards it does not."""
    put_in = "insert into pabal.audit_log (id, actor, action, xid) values ({}, 'minu_keep', 'token.issued', '{}')"
    await ledger.tamper("select setval('pabal.audit_log_id_seq', 10)")
    below = await write_as_other_server(ledger, [SEALED, LEFT, SEALED + 1])

    await ledger.tamper(put_in.format(5, below - 1))
    assert await ledger.breaks() == [("row_added", None, 5)]
    await ledger.seal()
    await ledger.tamper(put_in.format(6, below + 9))
    await ledger.seal()
    await ledger.write(1)
    await ledger.seal()

    assert await ledger.breaks() == [("row_added", None, 5), ("row_added", None, 6)]


async def test_a_restored_database_without_unsealed_rows_seals_nothing(ledger: Ledger) -> None:
    await write_as_other_server(ledger, [SEALED, SEALED + 1])

    assert await ledger.seal() == 0
    await ledger.chain(1)

    assert await ledger.named() == await ledger.rows()
    assert await ledger.breaks() == []
