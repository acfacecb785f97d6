"""Restore beside objects of another system, such as those of Supabase, which a backup of a hub may contain too.

Their entries in the dump are not loaded, and the restored hub does not consider them its own: a rollback of the
migrations would drop them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pabal.db.preflight import SHARED_SCHEMAS, read_created_names
from pabal.db.queries import load_queries
from pabal.db.schema import load_migrations

if TYPE_CHECKING:
    from pabal.db.connect import HubConnection

Q = load_queries(__file__)

GRANT_TO_ADMINISTRATORS = "grant select on table public.dead_letter_queue to authenticated"
"""The only privilege that the migrations grant to such a role: a policy shows the rows to administrators alone."""


@dataclass(frozen=True, slots=True)
class SharedObject:
    """A schema, table, function or privilege of the target that existed before the restore."""

    kind: str
    name: str


async def list_shared_objects(connection: "HubConnection") -> list[SharedObject]:
    return [SharedObject(*row) for row in await connection.fetch(Q.list_shared_objects.sql)]


def filter_dump_entries(entries: str, shared: Sequence[SharedObject], rows: Mapping[str, int]) -> str:
    """The table of contents of a dump without the entries of these objects.

    Rows of a table stay: foreign keys of the hub refer to them.
    """
    patterns = [pattern for item in shared for pattern in dump_entry_patterns(item)]
    kept = {f" TABLE DATA {item.name.replace('.', ' ')} " for item in shared if rows.get(item.name)}
    return "".join(
        f"{line}\n"
        for line in entries.splitlines()
        if any(entry in line for entry in kept) or not any(pattern.search(line) for pattern in patterns)
    )


def dump_entry_patterns(item: SharedObject) -> list[re.Pattern[str]]:
    """Patterns of the lines that `pg_restore --list` prints for an object and its parts."""
    schema, _, name = item.name.partition(".")
    match item.kind:
        case "schema" if item.name in SHARED_SCHEMAS:
            return [re.compile(rf" - (?:SCHEMA )?{item.name} ")]
        case "schema":  # its privileges are granted in any case
            return [re.compile(rf" (?:SCHEMA -|COMMENT - SCHEMA) {item.name} ")]
        case "table":
            return [re.compile(rf" {schema} (?:TABLE |COLUMN )?{name}[. ]")]
        case "function":
            return [re.compile(rf" {schema} (?:FUNCTION )?{re.escape(name)} ")]
        case _:
            return []


async def separate_shared_objects(connection: "HubConnection", shared: Sequence[SharedObject]) -> None:
    """Forget that these objects were created by the backed-up hub, and revoke what default privileges granted."""
    names = read_created_names(load_migrations())
    async with connection.transaction():
        await connection.execute(
            Q.forget_created_objects.sql,
            *Q.forget_created_objects.bind(
                {"kinds": [item.kind for item in shared], "names": [item.name for item in shared]}
            ),
        )
        statements = await connection.fetch(
            Q.list_default_grants.sql,
            *Q.list_default_grants.bind(
                {
                    "tables": [*names.tables],
                    "sequences": [*names.sequences],
                    "functions": [*names.functions],
                }
            ),
        )
        for row in statements:
            await connection.execute(row[0])
        if statements:
            await connection.execute(GRANT_TO_ADMINISTRATORS)
