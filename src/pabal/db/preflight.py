"""Find everything in a database that pending migrations would collide with, before the first of them runs.

The names come from the migration files, so a new migration is checked without changes here. Only the catalog is read.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pabal.core.errors import MigrationError
from pabal.db.adopt.catalog import specified_tables
from pabal.db.queries import load_queries
from pabal.db.schema import SHARED_TABLES, Migration

if TYPE_CHECKING:
    import asyncpg

    CatalogConnection = asyncpg.Connection[asyncpg.Record]

Q = load_queries(__file__)

SQL_COMMENT = re.compile(r"--[^\n]*")
CREATE_INDEX = re.compile(
    r"create\s+(?:unique\s+)?index\s+if\s+not\s+exists\s+(?P<name>[a-z0-9_]+)\s+on\s+(?P<schema>[a-z0-9_]+)\."
)
CREATE_SEQUENCE = re.compile(r"create\s+sequence\s+if\s+not\s+exists\s+(?P<name>[a-z0-9_]+\.[a-z0-9_]+)")
CREATE_FUNCTION = re.compile(r"create\s+or\s+replace\s+function\s+(?P<name>[a-z0-9_]+\.[a-z0-9_]+)\s*\(")

RELATION_KINDS = {
    "r": "table",
    "p": "table",
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
    "i": "index",
    "I": "index",
    "S": "sequence",
    "c": "type",
}
ROLES = ("anon", "authenticated", "service_role", "pabal_publisher")
SCHEMAS = ("public", "pabal", "auth", "notification", "guild", "identity")
SHARED_IDS = ("auth.users", "guild.guilds", "identity.users")
"""Tables of other systems whose `id` foreign keys refer to."""
SHARED_FUNCTIONS = {"auth.uid()": "uuid", "public.update_updated_at_column()": "trigger"}
"""Functions of other systems, which are used unchanged, and what they must return."""
SHARED_SCHEMAS = {
    "auth": {"auth.users", "auth.uid()"},
    "guild": {"guild.guilds"},
    "identity": {"identity.users"},
}
"""Schemas of other systems, and what is created in them if it is missing."""
TEXT_TYPES = frozenset({"text", "character varying", "citext", "public.citext"})
ADMIN_ROLES = ("admin", "super_admin")
RENAME_ADVICE = "rename it, or use another database for Pabal"
ADOPT_ADVICE = f"if it is the specification's, run `pabal adopt --dry-run`; else {RENAME_ADVICE}"
OTHER_TYPE_ADVICE = "use another database for Pabal"


@dataclass(frozen=True, slots=True)
class Collision:
    """An object of the database that keeps a migration from running, and what to do about it."""

    object: str
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"{self.object} {self.problem}; {self.advice}"


@dataclass(frozen=True, slots=True)
class CreatedNames:
    """The names that migrations create."""

    tables: frozenset[str]
    indexes: frozenset[str]
    sequences: frozenset[str]
    functions: frozenset[str]


def read_created_names(migrations: Sequence[Migration]) -> CreatedNames:
    """Read the names that these migrations create from their SQL."""
    texts = [SQL_COMMENT.sub("", migration.sql) for migration in migrations]
    return CreatedNames(
        tables=frozenset(table for migration in migrations for table in migration.created_tables()),
        indexes=frozenset(f"{m['schema']}.{m['name']}" for text in texts for m in CREATE_INDEX.finditer(text)),
        sequences=frozenset(m["name"] for text in texts for m in CREATE_SEQUENCE.finditer(text)),
        functions=frozenset(m["name"] for text in texts for m in CREATE_FUNCTION.finditer(text)),
    )


async def find_collisions(
    conn: "CatalogConnection", applied: Sequence[Migration], pending: Sequence[Migration]
) -> list[Collision]:
    """List all collisions of the pending migrations with objects that are not Pabal's. Changes nothing."""
    if not pending:
        return []
    before, new = read_created_names(applied), read_created_names(pending)
    sql = "\n".join(migration.sql for migration in pending)
    shared = await _read_shared_objects(conn, sql)
    return [
        *await _find_relation_collisions(conn, before, new),
        *await _find_function_collisions(conn, new.functions - before.functions),
        *_check_shared_objects(shared),
        *await _find_missing_privileges(conn, sql, shared),
    ]


def check_collisions(collisions: Sequence[Collision]) -> None:
    """Refuse to migrate a database with collisions, and name all of them."""
    if collisions:
        raise MigrationError("nothing was changed: " + ". ".join(map(str, collisions)))


async def _find_relation_collisions(
    conn: "CatalogConnection", before: CreatedNames, new: CreatedNames
) -> list[Collision]:
    tables = new.tables - before.tables
    names = tables | (new.indexes - before.indexes) | (new.sequences - before.sequences)
    collisions: list[Collision] = []
    for row in await conn.fetch(Q.find_relations.sql, *Q.find_relations.bind({"names": [*names]})):
        kind, owner = RELATION_KINDS.get(row["kind"], "relation"), row["table_name"]
        if kind == "index" and owner in before.tables | new.tables:
            continue  # the table is one of ours, or it is reported itself
        where = f" of {owner}" if owner else ""
        advice = ADOPT_ADVICE if row["name"] in specified_tables() else RENAME_ADVICE
        collisions.append(Collision(f"{kind} {row['name']}{where}", "exists and is not Pabal's", advice))
    types = await conn.fetch(Q.find_types.sql, *Q.find_types.bind({"names": [*tables]}))
    return collisions + [Collision(f"type {row['name']}", "exists and is not Pabal's", RENAME_ADVICE) for row in types]


async def _find_function_collisions(conn: "CatalogConnection", names: frozenset[str]) -> list[Collision]:
    rows = await conn.fetch(Q.find_functions.sql, *Q.find_functions.bind({"names": [*names]}))
    return [Collision(f"function {row['signature']}", "exists and is not Pabal's", RENAME_ADVICE) for row in rows]


@dataclass(frozen=True, slots=True)
class SharedObjects:
    """The tables and functions of other systems that exist: columns by table, result types by function."""

    columns: "dict[str, dict[str, asyncpg.Record]]"
    results: dict[str, str]

    @property
    def names(self) -> set[str]:
        return {*self.columns, *self.results}


async def _read_shared_objects(conn: "CatalogConnection", sql: str) -> SharedObjects:
    columns: dict[str, dict[str, asyncpg.Record]] = {}
    tables = [table for table in sorted(SHARED_TABLES) if table in sql]
    for row in await conn.fetch(Q.find_shared_columns.sql, *Q.find_shared_columns.bind({"tables": tables})):
        columns.setdefault(row["table_name"], {})[row["name"]] = row
    signatures = [signature for signature in SHARED_FUNCTIONS if signature in sql]
    rows = await conn.fetch(Q.find_shared_functions.sql, *Q.find_shared_functions.bind({"signatures": signatures}))
    return SharedObjects(columns, {row["signature"]: row["result"] for row in rows})


def _check_shared_objects(shared: SharedObjects) -> Iterator[Collision]:
    """Objects of other systems that exist, but not in the form that migrations refer to."""
    for table, columns in sorted(shared.columns.items()):
        yield from _check_shared_table(table, columns)
    for signature, result in shared.results.items():
        if result != SHARED_FUNCTIONS[signature]:
            problem = f"returns {result}, not {SHARED_FUNCTIONS[signature]}"
            yield Collision(f"function {signature}", problem, RENAME_ADVICE)


def _check_shared_table(table: str, columns: "dict[str, asyncpg.Record]") -> Iterator[Collision]:
    column = columns.get("id")
    if column is None:
        yield Collision(f"table {table}", "has no column id", OTHER_TYPE_ADVICE)
    elif column["type"] != "uuid":
        yield Collision(f"column {table}.id", f"is {column['type']}, not uuid", OTHER_TYPE_ADVICE)
    elif table in SHARED_IDS and not column["is_unique"]:
        advice = f"run: alter table {table} add unique (id)"
        yield Collision(f"column {table}.id", "has no primary key or unique constraint", advice)
    if table != "public.profiles":
        return
    role = columns.get("role")
    if role is None:
        advice = "run: alter table public.profiles add column role text not null default 'user'"
        yield Collision(f"table {table}", "has no column role", advice)
    elif role["labels"]:
        for label in ADMIN_ROLES:
            if label not in role["labels"]:
                advice = f"run: alter type {role['type']} add value '{label}'"
                yield Collision(f"type {role['type']} of {table}.role", f"has no value {label}", advice)
    elif role["type"] not in TEXT_TYPES:
        yield Collision(f"column {table}.role", f"is {role['type']}, not text", OTHER_TYPE_ADVICE)


async def _find_missing_privileges(conn: "CatalogConnection", sql: str, shared: SharedObjects) -> list[Collision]:
    roles = [name for name in ROLES if f"'{name}'" in sql]
    row = await conn.fetchrow(Q.find_role.sql, *Q.find_role.bind({"roles": roles}))
    assert row is not None
    role = f"role {row['name']}"
    names = [name for name in SCHEMAS if re.search(rf"\b{name}\.", sql)]
    schemas = await conn.fetch(Q.find_schemas.sql, *Q.find_schemas.bind({"names": names}))
    collisions: list[Collision] = []
    missing = set(names) - {schema["name"] for schema in schemas}
    if missing and not row["may_create_schema"]:
        advice = f"grant it CREATE on the database, or create the schemas for it: {', '.join(sorted(missing))}"
        collisions.append(Collision(role, "may not create schemas", advice))
    if row["missing_roles"] and not row["may_create_role"]:
        advice = f"create these roles without login: {', '.join(row['missing_roles'])}"
        collisions.append(Collision(role, "may not create roles", advice))
    for schema in schemas:
        name, used = schema["name"], SHARED_SCHEMAS.get(schema["name"])
        if not schema["may_use"]:
            collisions.append(Collision(role, f"may not use schema {name}", f"grant it USAGE on schema {name}"))
        elif not schema["may_create"] and (used is None or not used <= shared.names):
            problem = f"may not create objects in schema {name}"
            collisions.append(Collision(role, problem, f"grant it CREATE on schema {name}"))
    tables = [name for name in SHARED_IDS if f"references {name}" in sql]
    closed = await conn.fetch(Q.find_closed_tables.sql, *Q.find_closed_tables.bind({"names": tables}))
    return collisions + [
        Collision(role, f"may not refer to table {table['name']}", f"grant it REFERENCES on {table['name']}")
        for table in closed
    ]
