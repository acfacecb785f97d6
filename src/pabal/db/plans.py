"""Plans: made once for each statement and connection, and anew when the tables have outgrown them.

A plan that was made while a table was empty goes by whichever index comes first, as all of them are as good: by the
account instead of the id, say, and reads more with every row that comes. PostgreSQL itself makes it anew only after its
next look at the table's statistics, minutes later.
"""

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pabal.db.tx import PooledConnection

PLAN_CHECK_INTERVAL = 1.0
"""Seconds between looks at how much there is, while there is work."""
MIN_PLANNED_ROWS = 50
"""Rows that no plan is wrong for."""
REPLAN_GROWTH = 4

TABLE_ROW_COUNTS_SQL = """
select c.oid::bigint as oid, pg_stat_get_live_tuples(c.oid) as rows
from pg_class c
where c.relkind = 'r'
  and c.relnamespace in (select n.oid from pg_namespace n where n.nspname in ('public', 'pabal', 'notification'))
"""


class PlanRefresher:
    """What the plans of a pool's connections were made for. Connections are told apart by the server's processes."""

    def __init__(self) -> None:
        self._planned_rows: dict[int, int] = {}
        self._last_check = monotonic()
        self._is_outgrown = False
        self._refreshed_backends: set[int] = set()

    def needs_refresh(self, backend_pid: int) -> bool:
        """Whether a connection's plans may have been outgrown: it is time to look, or the last look found so."""
        return monotonic() - self._last_check >= PLAN_CHECK_INTERVAL or (
            self._is_outgrown and backend_pid not in self._refreshed_backends
        )

    async def refresh(self, connection: "PooledConnection") -> None:
        """Look, if it is time; have what was planned for less than there is now planned anew."""
        if monotonic() - self._last_check >= PLAN_CHECK_INTERVAL:
            self._last_check = monotonic()
            if self.update_row_counts(
                {row["oid"]: row["rows"] for row in await connection.fetch(TABLE_ROW_COUNTS_SQL)}
            ):
                self._is_outgrown = True
                self._refreshed_backends.clear()
        process = connection.get_server_pid()
        if self._is_outgrown and process not in self._refreshed_backends:
            await connection.execute("discard plans")
            self._refreshed_backends.add(process)

    def update_row_counts(self, rows: dict[int, int]) -> bool:
        """Note how much there is, and whether any table has several times what it was last planned for."""
        outgrown = False
        for table, count in rows.items():
            most = max(self._planned_rows.get(table, 0), MIN_PLANNED_ROWS)
            if count >= REPLAN_GROWTH * most:
                outgrown = True
            elif count * REPLAN_GROWTH > most:  # neither outgrown nor emptied since
                continue
            self._planned_rows[table] = count
        return outgrown
