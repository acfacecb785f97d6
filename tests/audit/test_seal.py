"""Every row is sealed once, as soon as no earlier row can appear."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pabal.audit.record import AuditEntry, record_audit_entry
from pabal.audit.seal import Q, seal_audit_log
from pabal.core.errors import Conflict
from pabal.db.errors import UniqueViolation
from pabal.keys.key import KeyUse
from pabal.keys.keyring import KeyRing
from support.audit_log import Ledger
from support.large_tables import pages
from support.wait import until

HUB_PLANNER_SETTINGS = "set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off"
pytestmark = pytest.mark.anyio


async def test_a_rolled_back_entry_is_not_written(ledger: Ledger) -> None:
    with pytest.raises(Conflict):
        async with ledger.hub.transaction() as tx:
            await record_audit_entry(tx, AuditEntry("minu_find", "token.issued"))
            raise Conflict("no")

    assert await ledger.rows() == []


async def test_an_entry_is_written_with_all_columns(ledger: Ledger) -> None:
    async with ledger.hub.transaction() as tx:
        await record_audit_entry(
            tx, AuditEntry("minu_find", "token.issued", "t1", {"family": "f1"}, "2001:db8::1", "r1")
        )
        await record_audit_entry(tx, AuditEntry("hub", "key.rotated", client_ip=""))

    full, minimal = await ledger.ask("select * from pabal.audit_log order by id")
    assert (full["actor"], full["action"], full["subject"]) == ("minu_find", "token.issued", "t1")
    assert (full["details"], str(full["client_ip"]), full["request_id"]) == ('{"family": "f1"}', "2001:db8::1", "r1")
    assert (minimal["subject"], minimal["details"], minimal["client_ip"], minimal["request_id"]) == (
        None,
        "{}",
        None,
        None,
    )
    assert full["xid"] == minimal["xid"]


async def test_an_empty_log_is_not_sealed(ledger: Ledger) -> None:
    assert await ledger.seal() == 0
    await ledger.write(3)
    assert await ledger.seal() == 3
    assert await ledger.seal() == 0

    assert len(await ledger.seals()) == 1
    assert (await ledger.verify()).broken == 0


async def test_sealing_waits_for_the_oldest_running_transaction(ledger: Ledger) -> None:
    await ledger.write()
    async with ledger.hub.transaction() as running_tx:
        await record_audit_entry(running_tx, AuditEntry("minu_keep", "token.revoked"))
        await ledger.write(5, each=True)
        assert await ledger.seal() == 1
        assert await ledger.seal() == 0
        assert (await ledger.verify()).unsealed == 5
    assert await ledger.seal() == 6

    assert await ledger.named() == await ledger.rows()
    assert (await ledger.verify()).broken == 0


async def test_many_rows_take_several_seals_without_splitting_a_transaction(ledger: Ledger) -> None:
    for count in (3, 3, 3, 3):
        await ledger.write(count)

    assert [await ledger.seal(batch=5) for _ in range(3)] == [6, 6, 0]

    assert await ledger.named() == await ledger.rows()
    report = await ledger.verify()
    assert (report.seals, report.rows, report.unsealed, report.broken) == (2, 12, 0, 0)


async def test_one_of_two_concurrent_seals_succeeds(ledger: Ledger) -> None:
    await ledger.write(3)

    async def is_second_waiting() -> bool:
        return bool(await ledger.ask("select from pg_locks where not granted"))

    async with ledger.hub.transaction() as tx:
        await seal_audit_log(tx, ledger.key, 100)
        second = asyncio.create_task(ledger.seal())
        await until(is_second_waiting)

    with pytest.raises(UniqueViolation, match="seal_chain_is_linear"):
        await second
    assert await ledger.named() == await ledger.rows()


async def test_a_chore_seals_every_second(ledger: Ledger) -> None:
    await ledger.write(2)

    assert "seal audit" in await ledger.hub.chores.run_due()

    assert await ledger.named() == await ledger.rows()


async def test_after_a_key_rotation_new_seals_use_the_new_key_and_old_ones_stay_valid(ledger: Ledger) -> None:
    await ledger.write()
    await ledger.seal()
    rotated = replace(ledger, keys=KeyRing(ledger.keys.keys.rotate([KeyUse.AUDIT], datetime.now(UTC))))
    await rotated.write()
    await rotated.seal()

    key_ids = [row["key_id"] for row in await ledger.ask("select key_id from pabal.audit_seals order by id")]
    assert key_ids == [ledger.key.id, rotated.key.id]
    assert ledger.key.id != rotated.key.id
    assert await rotated.breaks() == []


async def test_the_cost_of_sealing_does_not_grow_with_the_log(ledger: Ledger) -> None:
    async with ledger.owner() as conn:
        await conn.execute(
            "insert into pabal.audit_log (actor, action)"
            " select 'minu_find', 'token.issued' from generate_series(1, 20000)"
        )
    await ledger.chain(1)
    [last] = await ledger.ask("select below from pabal.audit_seals order by id desc limit 1")
    await ledger.write(1)
    arguments = {"below": last["below"], "floor": 0, "finished": False, "batch": 5000}

    async with ledger.owner() as conn:
        page_count, rows = await pages(conn, Q.unsealed_rows, arguments, prepare=HUB_PLANNER_SETTINGS)

    assert rows == 1
    assert page_count < 10
