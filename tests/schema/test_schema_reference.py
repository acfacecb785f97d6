"""docs/database.md names every function and trigger of the schema, and no other."""

import pytest

from pabal.db.schema_reference import read_definitions
from support.clusters import Connection

pytestmark = pytest.mark.anyio

FUNCTIONS = """
select distinct n.nspname || '.' || p.proname
from pg_proc p
join pg_namespace n on n.oid = p.pronamespace
where n.nspname not in ('pg_catalog', 'information_schema') and n.nspname not like 'pg_temp%'
  and not exists (select from pg_depend d where d.objid = p.oid and d.deptype = 'e')
"""
TRIGGERS = """
select n.nspname || '.' || c.relname, t.tgname, f.nspname || '.' || p.proname
from pg_trigger t
join pg_class c on c.oid = t.tgrelid
join pg_namespace n on n.oid = c.relnamespace
join pg_proc p on p.oid = t.tgfoid
join pg_namespace f on f.oid = p.pronamespace
where not t.tgisinternal and t.tgparentid = 0
"""


async def test_the_reference_names_the_functions_and_triggers_of_the_schema(db: Connection) -> None:
    functions, triggers = read_definitions()

    assert {row[0] for row in await db.fetch(FUNCTIONS)} == {*functions}
    found = {(row[0], row[1]): row[2] for row in await db.fetch(TRIGGERS)}
    assert found == {key: function for key, (_, function) in triggers.items()}
