"""Tampering with the log as a superuser, with triggers disabled, is detected and located."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pabal.audit import verify
from pabal.audit.chain_head import ChainHead
from pabal.hub import open_hub
from pabal.keys.key import KeySet
from pabal.keys.keyring import KeyRing
from support.audit_log import AuditLog

pytestmark = pytest.mark.anyio

ROW_CHANGES = {
    "at": "at + interval '1 microsecond'",
    "actor": "upper(actor)",
    "action": "'token.refreshed'",
    "subject": "null",
    "details": """'{"n": 1.0}'""",
    "client_ip": "'10.1.2.3/24'",
    "request_id": "''",
    "xid": "'3'",
}
SEAL_CHANGES = {
    "first_id": "first_id - 1",
    "last_id": "last_id + 1",
    "count": "count + 1",
    "digest": "sha256(digest)",
    "previous": "sha256(previous)",
    "key_id": "(select key_id from pabal.audit_seals where id = 1) || 'x'",
    "sealed_at": "sealed_at - interval '1 hour'",
    "ids": "ids[2:]",
    "macs": "set_byte(macs, 0, get_byte(macs, 0) # 1)",
    "below": "'18446744073709551615'",
    "floor": "1000",
}


async def test_an_untouched_log_is_valid(audit_log: AuditLog) -> None:
    empty = await audit_log.verify()
    await audit_log.write_sealed(3, 1, 2)
    await audit_log.write(4)

    report = await audit_log.verify()

    assert (empty.seals, empty.rows, empty.head, empty.ahead, empty.broken) == (0, 0, None, 0, 0)
    assert (report.seals, report.rows, report.unsealed, report.ahead, report.broken) == (3, 6, 4, 0, 0)
    [last] = await audit_log.fetch("select id, count, digest from pabal.audit_seals order by id desc limit 1")
    assert report.head == ChainHead(last["id"], last["digest"].hex(), last["count"])


@pytest.mark.parametrize("setting", ["timezone = 'Asia/Seoul'", "datestyle = 'German'", "bytea_output = 'escape'"])
async def test_verification_does_not_depend_on_session_settings(audit_log: AuditLog, setting: str) -> None:
    await audit_log.write_sealed(2)
    [database] = await audit_log.fetch("select current_database() as name")
    await audit_log.tamper(f"alter database {database['name']} set {setting}")

    async with open_hub(audit_log.hub.settings, audit_log.database_urls) as second_hub:
        assert await replace(audit_log, hub=second_hub).breaks() == []


@pytest.mark.parametrize("column", ROW_CHANGES)
async def test_a_changed_row_is_reported(audit_log: AuditLog, column: str) -> None:
    _, [_, middle, _], _ = await audit_log.write_sealed(3, 3, 3)

    await audit_log.tamper(f"update pabal.audit_log set {column} = {ROW_CHANGES[column]} where id = {middle}")

    assert await audit_log.breaks() == [("row_changed", 2, middle)]


async def test_every_column_is_covered(audit_log: AuditLog) -> None:
    columns = "select attname from pg_attribute where attnum > 0 and attrelid = 'pabal.{}'::regclass"

    assert {row["attname"] for row in await audit_log.fetch(columns.format("audit_log"))} == {"id", *ROW_CHANGES}
    assert {row["attname"] for row in await audit_log.fetch(columns.format("audit_seals"))} == {"id", *SEAL_CHANGES}


@pytest.mark.parametrize("index", [0, 1, 2], ids=["first", "middle", "last"])
async def test_a_removed_row_is_reported(audit_log: AuditLog, index: int) -> None:
    _, rows, _ = await audit_log.write_sealed(2, 3, 2)

    await audit_log.tamper(f"delete from pabal.audit_log where id = {rows[index]}")

    assert await audit_log.breaks() == [("row_removed", 2, rows[index])]


async def test_two_swapped_rows_are_both_reported(audit_log: AuditLog) -> None:
    [first, _], [_, second] = await audit_log.write_sealed(2, 2)

    await audit_log.tamper(
        f"update pabal.audit_log set id = 0 where id = {first}",
        f"update pabal.audit_log set id = {first} where id = {second}",
        f"update pabal.audit_log set id = {second} where id = 0",
    )

    assert await audit_log.breaks() == [("row_changed", 1, first), ("row_changed", 2, second)]


async def test_a_moved_row_is_reported_as_removed_and_inserted(audit_log: AuditLog) -> None:
    [row] = (await audit_log.write_sealed(1))[0]

    await audit_log.tamper(f"update pabal.audit_log set id = -5 where id = {row}")

    assert await audit_log.breaks() == [("row_removed", 1, row), ("row_added", None, -5)]


async def test_a_row_inserted_among_sealed_ones_is_reported(audit_log: AuditLog) -> None:
    await audit_log.write_sealed(2, 2)

    await audit_log.tamper(
        "insert into pabal.audit_log (id, at, actor, action, xid)"
        " select 1000, at, 'minu_keep', 'token.issued', xid from pabal.audit_log where id = 2"
    )
    await audit_log.write_sealed(1)

    assert await audit_log.breaks() == [("row_added", None, 1000)]


@pytest.mark.parametrize("column", SEAL_CHANGES)
async def test_a_changed_seal_is_reported(audit_log: AuditLog, column: str) -> None:
    _, rows, _ = await audit_log.write_sealed(2, 3, 2)

    await audit_log.tamper(f"update pabal.audit_seals set {column} = {SEAL_CHANGES[column]} where id = 2")

    row_breaks: dict[str, list[tuple[str, int | None, int | None]]] = {
        "macs": [("row_changed", 2, rows[0])],
        "ids": [("row_added", None, row) for row in rows],
    }
    kind = "key_unknown" if column == "key_id" else "seal_changed"
    assert await audit_log.breaks() == [(kind, 2, None), *row_breaks.get(column, [])]


async def test_removing_a_row_and_its_id_from_the_seal_is_reported(audit_log: AuditLog) -> None:
    _, [_, last] = await audit_log.write_sealed(2, 2)

    await audit_log.tamper(
        f"delete from pabal.audit_log where id = {last}",
        "update pabal.audit_seals set ids = ids[:1], macs = substr(macs, 1, 8), count = 1, last_id = first_id"
        " where id = 2",
    )

    assert await audit_log.breaks() == [("seal_changed", 2, None)]


@pytest.mark.parametrize("ids", ["'{null,2}'", "'{{1},{2}}'", "'{}'"])
async def test_an_unreadable_seal_is_reported(audit_log: AuditLog, ids: str) -> None:
    await audit_log.write_sealed(2)

    await audit_log.tamper(f"update pabal.audit_seals set ids = {ids}")

    assert ("seal_changed", 1, None) in await audit_log.breaks()


@pytest.mark.parametrize("seal", [1, 2], ids=["first", "middle"])
async def test_a_removed_seal_leaves_a_gap_and_unsealed_rows(audit_log: AuditLog, seal: int) -> None:
    rows_by_seal = await audit_log.write_sealed(2, 2, 2)

    await audit_log.tamper(f"delete from pabal.audit_seals where id = {seal}")

    rows = [("row_added", None, row) for row in rows_by_seal[seal - 1]]
    assert await audit_log.breaks() == [("seal_removed", seal + 1, None), *rows]


async def test_swapped_seals_are_reported(audit_log: AuditLog) -> None:
    await audit_log.write_sealed(1, 1, 1)

    await audit_log.tamper(
        "update pabal.audit_seals set id = 9 where id = 1",
        "update pabal.audit_seals set id = 1 where id = 2",
        "update pabal.audit_seals set id = 2 where id = 9",
    )

    kinds = {(kind, seal) for kind, seal, _ in await audit_log.breaks()}
    assert {("seal_removed", 1), ("seal_removed", 2), ("seal_removed", 3)} <= kinds


async def test_a_chain_cut_at_its_end_is_detected_only_with_a_stored_head(audit_log: AuditLog) -> None:
    """The rows then look unsealed, and are sealed again."""
    await audit_log.write_sealed(2, 2, 2)
    stored_head = (await audit_log.verify()).head
    assert await audit_log.breaks(stored_head) == []

    await audit_log.tamper(
        "delete from pabal.audit_seals where id > 1", "update pabal.audit_log set actor = 'other' where id = 6"
    )
    cut = await audit_log.verify()
    assert (cut.unsealed, cut.ahead, cut.broken) == (4, 2, 0)
    await audit_log.write_sealed(1)

    assert await audit_log.breaks() == []
    assert stored_head
    assert await audit_log.breaks(stored_head) == [("chain_cut", stored_head.id, None)]
    assert await audit_log.breaks(ChainHead(1, stored_head.digest)) == [("chain_cut", 1, None)]


async def test_a_row_that_is_not_sealed_yet_is_protected_by_grants_only(audit_log: AuditLog) -> None:
    [row] = await audit_log.write()

    await audit_log.tamper(f"update pabal.audit_log set actor = 'other' where id = {row}")

    assert await audit_log.breaks() == []


async def test_other_keys_verify_nothing(audit_log: AuditLog) -> None:
    [[row]] = await audit_log.write_sealed(1)
    with_other_keys = replace(audit_log, keys=KeyRing(KeySet.generate(datetime.now(UTC))))
    assert await with_other_keys.breaks() == [("key_unknown", 1, None)]

    await audit_log.tamper(f"delete from pabal.audit_log where id = {row}")

    assert await with_other_keys.breaks() == [("key_unknown", 1, None), ("row_removed", 1, row)]


async def test_a_chain_with_the_id_but_not_the_secret_of_the_key_is_invalid(audit_log: AuditLog) -> None:
    forged_key = replace(audit_log.key, secret=bytes(32))
    keys = tuple(forged_key if key.id == forged_key.id else key for key in audit_log.keys.keys.all_keys)
    forged_ledger = replace(audit_log, keys=KeyRing(KeySet(keys)))
    [[row]] = await forged_ledger.write_sealed(1)

    assert await forged_ledger.breaks() == []
    assert await audit_log.breaks() == [("seal_changed", 1, None), ("row_changed", 1, row)]


async def test_a_long_log_is_read_in_batches_and_all_breaks_are_counted(
    audit_log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "SEALS_PER_BATCH", 2)
    monkeypatch.setattr(verify, "ROWS_PER_BATCH", 3)
    monkeypatch.setattr(verify, "MAX_KEPT_BREAKS", 4)
    await audit_log.write_sealed(1, 4, 2, 1, 1, 3)
    before = await audit_log.verify()

    await audit_log.tamper("update pabal.audit_log set actor = 'other' where id % 2 = 0")
    after = await audit_log.verify()

    assert (before.seals, before.rows, before.unsealed, before.broken) == (6, 12, 0, 0)
    assert ([chain_break.row for chain_break in after.breaks], after.broken) == ([2, 4, 6, 8], 6)
