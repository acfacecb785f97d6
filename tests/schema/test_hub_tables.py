"""Audit log, seals, limits and operators."""

import asyncpg
import pytest

from support.clusters import Connection

pytestmark = pytest.mark.anyio

INSERT_ENTRY = "insert into pabal.audit_log (actor, action) values ('hub', 'token.issued')"
INSERT_SEAL = """
    insert into pabal.audit_seals (first_id, last_id, count, digest, previous, key_id, ids, macs, below)
    values ($1, $2, $3::bigint, $4, $5, 'k1', $6, $7, '9')
"""


async def seal(db: Connection, ids: list[int], digest: bytes, previous: bytes | None) -> None:
    await db.execute(INSERT_SEAL, ids[0], ids[-1], len(ids), digest, previous, ids, bytes(8 * len(ids)))


@pytest.mark.parametrize("table", ["audit_log", "audit_seals"])
@pytest.mark.parametrize("statement", ["update pabal.{} set id = default", "delete from pabal.{}", "truncate pabal.{}"])
async def test_append_only_tables_refuse_changes(db: Connection, table: str, statement: str) -> None:
    """Also by a superuser, to whom grants do not apply."""
    await db.execute(INSERT_ENTRY)
    await seal(db, [1], b"a", None)
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match=f"pabal.{table} is append-only"):
        await db.execute(statement.format(table))
    assert await db.fetchval(f"select count(*) from pabal.{table}") == 1


async def test_an_audit_row_records_its_transaction(db: Connection) -> None:
    async with db.transaction():
        await db.execute(INSERT_ENTRY)
        assert await db.fetchval("select xid = pg_current_xact_id() from pabal.audit_log")


async def test_the_chain_of_seals_does_not_fork(db: Connection) -> None:
    await seal(db, [1, 2, 3, 5], b"a", None)
    await seal(db, [4, 6, 9], b"b", b"a")
    with pytest.raises(asyncpg.UniqueViolationError, match="seal_chain_is_linear"):
        await seal(db, [4, 6, 9], b"c", b"a")
    with pytest.raises(asyncpg.UniqueViolationError, match="seal_chain_is_linear"):
        await seal(db, [1, 2], b"d", None)


@pytest.mark.parametrize(
    ("span", "ids", "mac_length", "constraint"),
    [
        ((5, 4, 2), [5, 4], 16, "seal_spans_rows"),
        ((1, 5, 0), [], 0, "seal_"),
        ((1, 5, 6), [1, 1, 2, 3, 4, 5], 48, "seal_spans_rows"),
        ((1, 5, 3), [1, 5], 16, "seal_lists_its_rows"),
        ((1, 5, 2), [2, 5], 16, "seal_lists_its_rows"),
        ((1, 5, 2), [1, 4], 16, "seal_lists_its_rows"),
        ((1, 5, 2), [1, 5], 15, "seal_lists_its_rows"),
    ],
)
async def test_a_seal_lists_its_rows(
    db: Connection, span: tuple[int, int, int], ids: list[int], mac_length: int, constraint: str
) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match=constraint):
        await db.execute(INSERT_SEAL, *span, b"a", None, ids, bytes(mac_length))


async def test_a_seal_that_lists_no_rows_is_refused(db: Connection) -> None:
    with pytest.raises(asyncpg.NotNullViolationError, match="ids"):
        await db.execute(
            "insert into pabal.audit_seals (first_id, last_id, count, digest, key_id) values (1, 1, 1, 'a', 'k1')"
        )


async def test_the_table_of_limits_is_unlogged(db: Connection) -> None:
    assert await db.fetchval("select relpersistence from pg_class where oid = 'pabal.limits'::regclass") == b"u"


async def test_operator_names_are_unique_ignoring_case(db: Connection) -> None:
    insert_operator = "insert into pabal.operators (name, password_hash, role) values ($1, 'x', $2) returning id"
    operator_id = await db.fetchval(insert_operator, "Mina", "admin")
    with pytest.raises(asyncpg.UniqueViolationError, match="idx_operators_name"):
        await db.execute(insert_operator, "mina", "viewer")
    with pytest.raises(asyncpg.CheckViolationError, match="operator_role"):
        await db.execute(insert_operator, "root", "root")

    await db.execute(
        "insert into pabal.operator_sessions (token_hash, operator_id, csrf, expires_at)"
        " values (sha256('cookie'), $1, 'x', now() + interval '1 hour')",
        operator_id,
    )
    await db.execute("delete from pabal.operators where id = $1", operator_id)
    assert await db.fetchval("select count(*) from pabal.operator_sessions") == 0
