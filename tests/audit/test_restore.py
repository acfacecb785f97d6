"""A database restored into another server, which counts its transactions from lower on: the chain goes on."""

from collections.abc import Iterable

import pytest

from pabal.audit.seal import ChainEnd, Q, SealedRange, insert_seal, list_unsealed_rows
from support.audit_log import Ledger

pytestmark = pytest.mark.anyio

SEALED, LEFT = 500, 700
"""How far ahead of this server the other one was, with what it sealed last and with what it left unsealed."""


async def earlier_life(ledger: Ledger, ahead: Iterable[int]) -> int:
    """Rows of the other server, sealed up to where it left off; the transaction it had come to."""
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


async def burn(ledger: Ledger, count: int) -> None:
    """Let the server count on."""
    async with ledger.owner() as conn:
        await conn.execute(
            f"do $$ begin for i in 1..{count} loop perform pg_current_xact_id(); commit; end loop; end $$"
        )


@pytest.mark.parametrize("batch", [1, 2, 1000])
async def test_it_seals_what_was_left_behind_and_what_follows(ledger: Ledger, batch: int) -> None:
    """The rows know numbers that this server has yet to reach, and will reach again with other deeds."""
    below = await earlier_life(ledger, [SEALED, LEFT, SEALED + 1, SEALED + 1, LEFT + 1, LEFT])
    await ledger.write(2)
    before = await ledger.verify()
    assert (before.rows, before.unsealed, before.broken) == (3, 5, 0)

    for _ in range(10):
        await ledger.seal(batch)
    assert await ledger.named() == await ledger.rows()
    assert await ledger.breaks() == []

    for _ in range(4):
        await burn(ledger, 250)
        await ledger.chain(2)
    [newest] = await ledger.ask("select max(xid) as xid from pabal.audit_log")
    assert newest["xid"] > below + 100
    assert await ledger.named() == await ledger.rows()
    verdict = await ledger.verify()
    assert (verdict.rows, verdict.unsealed, verdict.broken) == (16, 0, 0)


async def test_a_row_put_in_among_those_of_before_is_named(ledger: Ledger) -> None:
    """Before the first seal here, one may pretend to have been left unsealed; after it, nothing can."""
    put_in = "insert into pabal.audit_log (id, actor, action, xid) values ({}, 'minu_keep', 'token.issued', '{}')"
    await ledger.tamper("select setval('pabal.audit_log_id_seq', 10)")
    below = await earlier_life(ledger, [SEALED, LEFT, SEALED + 1])

    await ledger.tamper(put_in.format(5, below - 1))
    assert await ledger.breaks() == [("row_added", None, 5)]
    await ledger.seal()
    await ledger.tamper(put_in.format(6, below + 9))
    await ledger.seal()
    await ledger.write(1)
    await ledger.seal()

    assert await ledger.breaks() == [("row_added", None, 5), ("row_added", None, 6)]


async def test_nothing_is_sealed_where_nothing_was_left_and_nothing_followed(ledger: Ledger) -> None:
    await earlier_life(ledger, [SEALED, SEALED + 1])

    assert await ledger.seal() == 0
    await ledger.chain(1)

    assert await ledger.named() == await ledger.rows()
    assert await ledger.breaks() == []
