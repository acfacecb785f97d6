"""Notices that another version of Pabal has migrated the database of a running process.

Most migrations only add something, and the process goes on. But if the server rejects a statement of the process, and
the newest migration is not the one that the process was written for, the two do not fit. Such a statement is answered
like one of an unavailable database, and the process is not ready, claims nothing and runs no chores until the schema is
the expected one again.
"""

from typing import TYPE_CHECKING

import asyncpg

from pabal.core.errors import SchemaMismatch
from pabal.core.outage import load_logger
from pabal.db.errors import CONNECTION_ERRORS, DatabaseError
from pabal.db.schema import newest_shipped_version

if TYPE_CHECKING:
    from pabal.db.tx import DriverConnection

NEWEST_MIGRATION_SQL = "select max(version) from pabal.schema_migrations"


class SchemaFit:
    """Whether the statements of one process fit the schema of its database."""

    def __init__(self) -> None:
        self._known = newest_shipped_version()
        self._is_mismatch = False

    @property
    def is_mismatch(self) -> bool:
        """Whether a statement was rejected because of the schema, as far as the last check knows."""
        return self._is_mismatch

    def needs_check(self, error: BaseException | None) -> bool:
        """Whether an error may come from another schema: a name does not exist, or a statement is not valid."""
        return isinstance(error, DatabaseError) and isinstance(error.__cause__, asyncpg.SyntaxOrAccessError)

    async def check(self, connection: "DriverConnection", timeout: float) -> SchemaMismatch | None:
        """Read the newest migration. Returns the error to raise if it is not the one this process was written for."""
        newest: str | None = None
        try:
            newest = await connection.fetchval(NEWEST_MIGRATION_SQL, timeout=timeout)
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
            pass  # all migrations are reverted
        except (*CONNECTION_ERRORS, asyncpg.PostgresError):
            return None  # unknown: the caller has an error of its own, or tries again
        was_mismatch, self._is_mismatch = self._is_mismatch, newest != self._known
        if self._is_mismatch and not was_mismatch:
            load_logger().error("schema does not fit", newest=newest, known=self._known)
        elif was_mismatch and not self._is_mismatch:
            load_logger().info("schema fits again", newest=newest)
        return SchemaMismatch(self._known, newest) if self._is_mismatch else None
