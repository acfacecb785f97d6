"""Plans: made once for each statement and connection, and anew when the tables have outgrown them.

A plan that was made while a table was empty goes by whichever index comes first, as all of them are as good: by the
account instead of the id, say, and reads more with every row that comes. PostgreSQL itself makes it anew only after its
next look at the table's statistics, minutes later.
"""

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pabal.db.tx import Connection

EVERY = 1.0
"""Seconds between looks at how much there is, while there is work."""
LEAST = 50
"""Rows that no plan is wrong for."""
OUTGROWN = 4

ROWS = """
select c.oid::bigint as oid, pg_stat_get_live_tuples(c.oid) as rows
from pg_class c
where c.relkind = 'r'
  and c.relnamespace in (select n.oid from pg_namespace n where n.nspname in ('public', 'pabal', 'notification'))
"""


class Plans:
    """What the plans of a pool's connections were made for. Connections are told apart by the server's processes."""

    def __init__(self) -> None:
        self._made_for: dict[int, int] = {}
        self._looked = monotonic()
        self._have_been_outgrown = False
        self._renewed: set[int] = set()

    def are_old(self, process: int) -> bool:
        """Whether a connection's plans may have been outgrown: it is time to look, or the last look found so."""
        return monotonic() - self._looked >= EVERY or (self._have_been_outgrown and process not in self._renewed)

    async def renew(self, connection: "Connection") -> None:
        """Look, if it is time; have what was planned for less than there is now planned anew."""
        if monotonic() - self._looked >= EVERY:
            self._looked = monotonic()
            if self.outgrown({row["oid"]: row["rows"] for row in await connection.fetch(ROWS)}):
                self._have_been_outgrown = True
                self._renewed.clear()
        process = connection.get_server_pid()
        if self._have_been_outgrown and process not in self._renewed:
            await connection.execute("discard plans")
            self._renewed.add(process)

    def outgrown(self, rows: dict[int, int]) -> bool:
        """Note how much there is, and whether any table has several times what it was last planned for."""
        outgrown = False
        for table, count in rows.items():
            most = max(self._made_for.get(table, 0), LEAST)
            if count >= OUTGROWN * most:
                outgrown = True
            elif count * OUTGROWN > most:  # neither outgrown nor emptied since
                continue
            self._made_for[table] = count
        return outgrown
