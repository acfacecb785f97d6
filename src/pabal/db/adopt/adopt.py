"""Adopt the specification's tables of an existing database, in one transaction.

The tables are moved aside, the migrations create Pabal's, the rows are copied by the rules, and the old tables are
dropped. So the result has exactly the catalog of a new hub, and a failure at any point changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import msgspec

from pabal.core.errors import MigrationError
from pabal.db.adopt.compare import Difference
from pabal.db.adopt.plan import AdoptionPlan, explain_row_conflicts, plan_adoption
from pabal.db.adopt.rules import count_rule_rows, moved_tables
from pabal.db.migrate import (
    LOCK_TIMEOUT,
    apply_migration,
    connect_for_migration,
    locked_transaction,
    prepare_login,
    read_applied_migrations,
)
from pabal.db.queries import load_queries
from pabal.db.schema import Migration, check_migration_status, load_bridge, load_migrations

if TYPE_CHECKING:
    from pabal.db.login_settings import MigrationConnection

Q = load_queries(__file__)

TABLE_LOCK_TIMEOUT = timedelta(seconds=10)
"""How long other sessions may keep us from locking the tables; meanwhile they wait behind us."""


async def read_adoption_plan(url: str) -> AdoptionPlan:
    """Plan the adoption in a read-only transaction."""
    async with connect_for_migration(url) as conn, conn.transaction(readonly=True, isolation="repeatable_read"):
        return await _plan_pending(conn)


async def adopt_database(
    url: str,
    actor: str,
    *,
    login: str | None = None,
    progress: Callable[[int], object] = lambda _: None,
    lock_timeout: timedelta = LOCK_TIMEOUT,
    table_lock_timeout: timedelta = TABLE_LOCK_TIMEOUT,
) -> AdoptionPlan:
    """Adopt the tables, and grant `login` the service role. One error lists all conflicts, if there are any."""
    async with connect_for_migration(url) as conn:
        async with locked_transaction(conn, lock_timeout):
            plan = await _plan_pending(conn)
            _refuse_conflicts(plan.conflicts)
            await _lock_tables(conn, plan.lock_statement, table_lock_timeout)
            plan = await _plan_pending(conn)  # what was committed before the lock counts too
            _refuse_conflicts(plan.conflicts)
            await _run_statements(conn, plan.move_statements)
            counts = await count_rule_rows(conn, plan.groups, moved_tables())
            _refuse_conflicts(explain_row_conflicts(counts))
            for migration in plan.migrations:
                await apply_migration(conn, migration, {"pabal.keep_services": "on"})
                progress(1)
            await _run_statements(conn, plan.copy_statements)
            await _run_statements(conn, plan.drop_statements)
            plan = replace(plan, counts=[count for count in counts if not count.rule.is_conflict])
            details = {"tables": plan.rows, "rules": plan.changed_rows()}
            arguments: dict[str, object] = {"actor": actor, "details": msgspec.json.encode(details).decode()}
            await conn.execute(Q.record_adoption.sql, *Q.record_adoption.bind(arguments))
        if login is not None:
            await prepare_login(conn, login)
        await conn.execute(plan.analyze_statement)
    return plan


def list_statements(plan: AdoptionPlan, login: str | None = None) -> list[str]:
    """The statements in the order they run. Migrations, and what a login of its own gets, are named, not printed."""
    return [
        "begin;",
        f"{plan.lock_statement};",
        *(f"{statement};" for statement in plan.move_statements),
        *(f"-- migration {migration.file_name}" for migration in plan.migrations),
        *(f"{statement};" for statement in (*plan.copy_statements, *plan.drop_statements)),
        f"{Q.record_adoption.sql};",
        "commit;",
        *([f"-- service_role and planner settings for the login {login}, if it lacks them"] if login else []),
        f"{plan.analyze_statement};",
    ]


async def _lock_tables(conn: "MigrationConnection", statement: str, timeout: timedelta) -> None:
    await conn.execute(f"set local lock_timeout = {timeout // timedelta(milliseconds=1)}")
    try:
        await conn.execute(statement)
    except asyncpg.LockNotAvailableError as error:
        raise MigrationError(
            "nothing was changed: other sessions have used the tables for more than "
            f"{timeout.total_seconds():g} s; stop them first"
        ) from error


async def _plan_pending(conn: "MigrationConnection") -> AdoptionPlan:
    pending = await _list_pending(conn)
    return await plan_adoption(conn, [file for file in load_migrations() if file not in pending], pending)


async def _list_pending(conn: "MigrationConnection") -> Sequence[Migration]:
    known = load_migrations()
    status = await read_applied_migrations(conn, known, load_bridge())
    check_migration_status(status, known)
    if status.needs_bridge or not status.pending:
        raise MigrationError("the database is a hub's already: run `pabal migrate up`")
    return status.pending


def _refuse_conflicts(conflicts: Sequence[Difference]) -> None:
    if conflicts:
        texts = (f"{conflict.object} {conflict.text}" for conflict in conflicts)
        raise MigrationError("nothing was changed: " + ". ".join(texts))


async def _run_statements(conn: "MigrationConnection", statements: Sequence[str]) -> None:
    for statement in statements:
        try:
            await conn.execute(statement)
        except asyncpg.IntegrityConstraintViolationError as error:
            # The detail of a check is the whole row, which may contain a token; that of a key is the key.
            is_key = isinstance(error, (asyncpg.UniqueViolationError, asyncpg.ForeignKeyViolationError))
            raise MigrationError(
                f"nothing was changed: rows of {error.schema_name}.{error.table_name} violate "
                f"{error.constraint_name}: {error.detail if is_key and error.detail else error.args[0]}"
            ) from error
