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
from support.audit_log import AuditLog
from support.large_tables import count_pages
from support.wait import wait_until

HUB_PLANNER_SETTINGS = "set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off"
pytestmark = pytest.mark.anyio


async def test_a_rolled_back_entry_is_not_written(audit_log: AuditLog) -> None:
    with pytest.raises(Conflict):
        async with audit_log.hub.transaction() as tx:
            await record_audit_entry(tx, AuditEntry("minu_find", "token.issued"))
            raise Conflict("no")

    assert await audit_log.rows() == []


async def test_an_entry_is_written_with_all_columns(audit_log: AuditLog) -> None:
    async with audit_log.hub.transaction() as tx:
        await record_audit_entry(
            tx, AuditEntry("minu_find", "token.issued", "t1", {"family": "f1"}, "2001:db8::1", "r1")
        )
        await record_audit_entry(tx, AuditEntry("hub", "key.rotated", client_ip=""))

    full, minimal = await audit_log.fetch("select * from pabal.audit_log order by id")
    assert (full["actor"], full["action"], full["subject"]) == ("minu_find", "token.issued", "t1")
    assert (full["details"], str(full["client_ip"]), full["request_id"]) == ('{"family": "f1"}', "2001:db8::1", "r1")
    assert (minimal["subject"], minimal["details"], minimal["client_ip"], minimal["request_id"]) == (
        None,
        "{}",
        None,
        None,
    )
    assert full["xid"] == minimal["xid"]


async def test_an_empty_log_is_not_sealed(audit_log: AuditLog) -> None:
    assert await audit_log.seal() == 0
    await audit_log.write(3)
    assert await audit_log.seal() == 3
    assert await audit_log.seal() == 0

    assert len(await audit_log.seals()) == 1
    assert (await audit_log.verify()).broken == 0


async def test_sealing_waits_for_the_oldest_running_transaction(audit_log: AuditLog) -> None:
    await audit_log.write()
    async with audit_log.hub.transaction() as running_tx:
        await record_audit_entry(running_tx, AuditEntry("minu_keep", "token.revoked"))
        await audit_log.write(5, each=True)
        assert await audit_log.seal() == 1
        assert await audit_log.seal() == 0
        assert (await audit_log.verify()).unsealed == 5
    assert await audit_log.seal() == 6

    assert await audit_log.sealed_row_ids() == await audit_log.rows()
    assert (await audit_log.verify()).broken == 0


async def test_many_rows_take_several_seals_without_splitting_a_transaction(audit_log: AuditLog) -> None:
    for count in (3, 3, 3, 3):
        await audit_log.write(count)

    assert [await audit_log.seal(batch=5) for _ in range(3)] == [6, 6, 0]

    assert await audit_log.sealed_row_ids() == await audit_log.rows()
    report = await audit_log.verify()
    assert (report.seals, report.rows, report.unsealed, report.broken) == (2, 12, 0, 0)


async def test_one_of_two_concurrent_seals_succeeds(audit_log: AuditLog) -> None:
    await audit_log.write(3)

    async def is_second_waiting() -> bool:
        return bool(await audit_log.fetch("select from pg_locks where not granted"))

    async with audit_log.hub.transaction() as tx:
        await seal_audit_log(tx, audit_log.key, 100)
        second = asyncio.create_task(audit_log.seal())
        await wait_until(is_second_waiting)

    with pytest.raises(UniqueViolation, match="seal_chain_is_linear"):
        await second
    assert await audit_log.sealed_row_ids() == await audit_log.rows()


async def test_a_chore_seals_every_second(audit_log: AuditLog) -> None:
    await audit_log.write(2)

    assert "seal audit" in await audit_log.hub.chores.run_due()

    assert await audit_log.sealed_row_ids() == await audit_log.rows()


async def test_after_a_key_rotation_new_seals_use_the_new_key_and_old_ones_stay_valid(audit_log: AuditLog) -> None:
    await audit_log.write()
    await audit_log.seal()
    rotated = replace(audit_log, keys=KeyRing(audit_log.keys.keys.rotate([KeyUse.AUDIT], datetime.now(UTC))))
    await rotated.write()
    await rotated.seal()

    key_ids = [row["key_id"] for row in await audit_log.fetch("select key_id from pabal.audit_seals order by id")]
    assert key_ids == [audit_log.key.id, rotated.key.id]
    assert audit_log.key.id != rotated.key.id
    assert await rotated.breaks() == []


async def test_the_cost_of_sealing_does_not_grow_with_the_log(audit_log: AuditLog) -> None:
    async with audit_log.owner() as conn:
        await conn.execute(
            "insert into pabal.audit_log (actor, action)"
            " select 'minu_find', 'token.issued' from generate_series(1, 20000)"
        )
    await audit_log.write_sealed(1)
    [last] = await audit_log.fetch("select below from pabal.audit_seals order by id desc limit 1")
    await audit_log.write(1)
    arguments = {"below": last["below"], "floor": 0, "finished": False, "batch": 5000}

    async with audit_log.owner() as conn:
        page_count, rows = await count_pages(conn, Q.unsealed_rows, arguments, prepare=HUB_PLANNER_SETTINGS)

    assert rows == 1
    assert page_count < 10
