"""Generic plans that are dropped when their tables have grown."""

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pabal.db.tx import DriverConnection

PLAN_CHECK_INTERVAL = 1.0
"""Seconds between checks of the table sizes, while the pool is used."""
MIN_PLANNED_ROWS = 50
"""Below this size every plan is good enough."""
REPLAN_GROWTH = 4
"""A table that grew by this factor since its statements were planned needs new plans."""

TABLE_ROW_COUNTS_SQL = """
select c.oid::bigint as oid, pg_stat_get_live_tuples(c.oid) as rows
from pg_class c
where c.relkind = 'r'
  and c.relnamespace in (select n.oid from pg_namespace n where n.nspname in ('public', 'pabal', 'notification'))
"""


class PlanRefresher:
    """Discards the generic plans of a pool's connections when tables have outgrown them.

    Connections are identified by the pid of their server process.
    """

    def __init__(self) -> None:
        self._planned_rows: dict[int, int] = {}
        self._last_check = monotonic()
        self._is_outgrown = False
        self._refreshed_backends: set[int] = set()

    def needs_refresh(self, backend_pid: int) -> bool:
        """Whether a check of the table sizes is due, or this connection has plans to discard."""
        return monotonic() - self._last_check >= PLAN_CHECK_INTERVAL or (
            self._is_outgrown and backend_pid not in self._refreshed_backends
        )

    async def refresh(self, connection: "DriverConnection", timeout: float) -> None:
        """Check the table sizes if that is due, and discard the connection's plans if they are outdated."""
        if monotonic() - self._last_check >= PLAN_CHECK_INTERVAL:
            self._last_check = monotonic()
            if self.update_row_counts(
                {row["oid"]: row["rows"] for row in await connection.fetch(TABLE_ROW_COUNTS_SQL, timeout=timeout)}
            ):
                self._is_outgrown = True
                self._refreshed_backends.clear()
        backend_pid = connection.get_server_pid()
        if self._is_outgrown and backend_pid not in self._refreshed_backends:
            await connection.execute("discard plans", timeout=timeout)
            self._refreshed_backends.add(backend_pid)

    def update_row_counts(self, rows: dict[int, int]) -> bool:
        """Store the table sizes; returns whether a table has outgrown its plans."""
        outgrown = False
        for table, count in rows.items():
            planned_rows = max(self._planned_rows.get(table, 0), MIN_PLANNED_ROWS)
            if count >= REPLAN_GROWTH * planned_rows:
                outgrown = True
            elif count * REPLAN_GROWTH > planned_rows:  # neither outgrown nor emptied
                continue
            self._planned_rows[table] = count
        return outgrown
