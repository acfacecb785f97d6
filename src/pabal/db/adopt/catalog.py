"""The shape of tables: that of the specification, read from a file, and that of a database, read from its catalog."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pabal.db.queries import load_queries

if TYPE_CHECKING:
    from pabal.db.preflight import CatalogConnection

Q = load_queries(__file__)

SPECIFICATION_FILE = Path(__file__).with_name("specification.toml")
TABLE_GROUPS = {
    "tokens": ("public.service_tokens", "public.refresh_tokens"),
    "events": ("public.event_queue", "public.dead_letter_queue"),
    "relay": (
        "public.accounts",
        "public.conversation_mappings",
        "public.inbound_messages",
        "public.pairing_codes",
    ),
    "notifications": ("notification.requests", "notification.preferences"),
}
"""The specification's tables. Those of a group refer to each other and are adopted together, in this order."""
SPECIFIED_FUNCTIONS = {
    "public.move_event_to_dlq": "trigger",
    "public.cleanup_expired_tokens": "integer",
    "public.cleanup_old_events": "integer",
}
"""The specification's functions and what they return. Pabal's have the same names."""


@dataclass(frozen=True, slots=True)
class ColumnShape:
    type: str
    is_required: bool
    default: str | None


@dataclass(frozen=True, slots=True)
class TableShape:
    """The columns of a table, and its other parts: definitions by kind and name."""

    columns: Mapping[str, ColumnShape]
    parts: Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class ExistingTable:
    name: str
    kind: str
    is_owned: bool
    owner: str
    hides_rows: bool
    """Whether policies apply to the role that adopts."""


@dataclass(frozen=True, slots=True)
class ExistingFunction:
    signature: str
    result: str
    is_owned: bool


@dataclass(frozen=True, slots=True)
class TableDependent:
    """An object of the database that depends on a table and is not part of it."""

    table: str
    name: str


@dataclass(frozen=True, slots=True)
class TableGrant:
    """The privileges on a table of a role that Pabal does not know."""

    table: str
    role: str
    privileges: str


class SpecifiedTable(msgspec.Struct, frozen=True):
    """A table of the file."""

    columns: dict[str, str]
    parts: dict[str, list[str]]


@cache
def load_specification() -> Mapping[str, TableShape]:
    """Read the shapes of the specification's tables."""
    document = tomllib.loads(SPECIFICATION_FILE.read_text("utf-8"))
    tables = msgspec.convert(document, dict[str, SpecifiedTable])
    return {
        name: TableShape(
            {column: parse_column(text) for column, text in table.columns.items()},
            {(kind, part): "" for kind, parts in table.parts.items() for part in parts},
        )
        for name, table in tables.items()
    }


def parse_column(text: str) -> ColumnShape:
    """Parse a column of the file: `type [not null] [default expression]`."""
    definition, _, default = text.partition(" default ")
    return ColumnShape(definition.removesuffix(" not null"), definition.endswith(" not null"), default or None)


def specified_tables() -> tuple[str, ...]:
    return tuple(table for tables in TABLE_GROUPS.values() for table in tables)


async def list_existing_tables(conn: "CatalogConnection", tables: Sequence[str]) -> list[ExistingTable]:
    rows = await conn.fetch(Q.list_tables.sql, *Q.list_tables.bind({"tables": [*tables]}))
    return [ExistingTable(*row) for row in rows]


async def read_shapes(conn: "CatalogConnection", tables: Sequence[str]) -> dict[str, TableShape]:
    """Read the shapes of tables from the catalog."""
    columns: dict[str, dict[str, ColumnShape]] = {table: {} for table in tables}
    for row in await conn.fetch(Q.list_columns.sql, *Q.list_columns.bind({"tables": [*tables]})):
        columns[row["table_name"]][row["name"]] = ColumnShape(row["type"], row["is_required"], row["default_value"])
    parts: dict[str, dict[tuple[str, str], str]] = {table: {} for table in tables}
    for row in await conn.fetch(Q.list_parts.sql, *Q.list_parts.bind({"tables": [*tables]})):
        parts[row["table_name"]][row["kind"], row["name"]] = row["definition"] or ""
    return {table: TableShape(columns[table], parts[table]) for table in tables}


async def list_dependents(conn: "CatalogConnection", tables: Sequence[str]) -> list[TableDependent]:
    rows = await conn.fetch(Q.list_dependents.sql, *Q.list_dependents.bind({"tables": [*tables]}))
    return [TableDependent(*row) for row in rows]


async def list_table_grants(conn: "CatalogConnection", tables: Sequence[str]) -> list[TableGrant]:
    rows = await conn.fetch(Q.list_grants.sql, *Q.list_grants.bind({"tables": [*tables]}))
    return [TableGrant(*row) for row in rows]


async def list_specified_functions(conn: "CatalogConnection") -> list[ExistingFunction]:
    rows = await conn.fetch(Q.list_functions.sql, *Q.list_functions.bind({"names": [*SPECIFIED_FUNCTIONS]}))
    return [ExistingFunction(*row) for row in rows]
