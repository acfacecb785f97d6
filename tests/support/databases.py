"""Migrated databases for tests: copied from a template once, then reset in place and used again.

Copying and dropping a database costs more than most tests, and the first statements of a connection have to build the
catalog caches, so a database keeps the connection that resets it. A reset truncates what the test wrote. A database
whose catalog or statistics differ from the template's after the test is dropped instead.
"""

from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg.errors import InvalidSchemaName, UndefinedFunction
from psycopg.rows import namedtuple_row
from psycopg.sql import SQL, Composed, Identifier, Literal

from pabal.db.embedded import ServerAddress
from pabal.hub import DatabaseUrls

SCHEMAS = ["auth", "guild", "identity", "notification", "pabal", "public"]
SEEDED_TABLE = "public.services"
"""The one table with rows in the template that tests add to: restored. Others with rows must not change."""

TABLES = """
select quote_ident(n.nspname) || '.' || quote_ident(c.relname) as name,
       pg_relation_size(c.oid) as bytes,
       concat_ws(' ', pg_total_relation_size(c.oid), c.relpages, c.reltuples) as storage
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r' and n.nspname = any(%(schemas)s)
order by 1
"""
SEQUENCES = """
select quote_ident(schemaname) || '.' || quote_ident(sequencename) as name, last_value
from pg_sequences
where schemaname = any(%(schemas)s)
"""
CATALOG = """
with ours as materialized (
  select * from pg_class where relnamespace = any(%(schemas)s::regnamespace[]) and relkind <> 't'
)
select md5(string_agg(entry, '' order by entry)) from (
  select concat('class', oid, relname, relkind, relnamespace, reloptions, relacl, relrowsecurity) as entry from ours
  union all select concat('attribute', attrelid, attnum, xmin) from pg_attribute
    where attrelid in (select oid from ours)
  union all select concat('default', oid, xmin) from pg_attrdef
  union all select concat('function', oid, xmin) from pg_proc
    where pronamespace = any(%(schemas)s::regnamespace[]) and oid <> 'pabal.now'::regproc
  union all select concat('trigger', oid, xmin) from pg_trigger where not tgisinternal
  union all select concat('constraint', oid, xmin) from pg_constraint where conrelid in (select oid from ours)
  union all select concat('policy', oid, xmin) from pg_policy
  union all select concat('schema', oid, xmin) from pg_namespace where left(nspname, 3) <> 'pg_'
  union all select concat('extension', oid) from pg_extension
  union all select concat('setting', setdatabase, setrole, setconfig) from pg_db_role_setting
  union all select concat('statistics', starelid) from pg_statistic where starelid in (select oid from ours)
) entries
"""
RESTORE_SEEDED_ROWS = f"insert into {SEEDED_TABLE} ({{0}}) select {{0}} from unnest(%s::{SEEDED_TABLE}[])"
SEEDED_COLUMNS = f"""
select attname from pg_attribute
where attrelid = '{SEEDED_TABLE}'::regclass and attnum > 0 and not attisdropped and attgenerated = ''
order by attnum
"""
OTHER_SESSIONS = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


@dataclass(frozen=True)
class TemplateState:
    """What a database looks like before its first test."""

    catalog: str
    tables: dict[str, str]
    """The size and the planner's estimates of each table that is empty."""
    sequences: dict[str, int | None]
    contents: dict[str, str]
    seeded_rows: list[str]
    restore: Composed
    """The statement that inserts the seeded rows again, without generated columns."""
    now_function: str


class DatabasePool:
    """Hands out migrated databases of one server. One is out at a time, or several."""

    def __init__(self, address: ServerAddress, template: str) -> None:
        self._address = address
        self._template = template
        self._admin: psycopg.Connection[Any] = psycopg.connect(address.owner_url, autocommit=True)
        self._numbers = count()
        self._idle: list[str] = []
        self._connections: dict[str, psycopg.Connection[Any]] = {}
        with psycopg.connect(url_with_database(address.owner_url, template), row_factory=namedtuple_row) as connection:
            self._state = read_template_state(connection)

    def acquire(self) -> str:
        if self._idle:
            return self._idle.pop()
        name = f"test_{next(self._numbers)}"
        self._admin.execute(
            SQL("create database {} template {} strategy file_copy").format(
                Identifier(name), Identifier(self._template)
            )
        )
        return name

    def release(self, name: str) -> None:
        if self._reset(name):
            self._idle.append(name)
            return
        if connection := self._connections.pop(name, None):
            connection.close()
        self._admin.execute(SQL("drop database if exists {} with (force)").format(Identifier(name)))

    def _reset(self, name: str) -> bool:
        connection = self._connections.get(name)
        if connection:
            with suppress(psycopg.OperationalError):  # the test terminated it: connect again
                return reset_database(connection, self._state)
            connection.close()
        try:
            connection = psycopg.connect(
                url_with_database(self._address.owner_url, name), autocommit=True, row_factory=namedtuple_row
            )
            self._connections[name] = connection
            return reset_database(connection, self._state)
        except psycopg.OperationalError:  # the test left the database unreachable
            return False

    def urls(self, name: str) -> DatabaseUrls:
        return DatabaseUrls(
            url_with_database(self._address.hub_url, name), url_with_database(self._address.owner_url, name)
        )

    def close(self) -> None:
        for connection in (self._admin, *self._connections.values()):
            connection.close()


def read_template_state(connection: "psycopg.Connection[Any]") -> TemplateState:
    tables = connection.execute(TABLES, {"schemas": SCHEMAS}).fetchall()
    return TemplateState(
        catalog=read_catalog(connection),
        tables={table.name: table.storage for table in tables if not table.bytes},
        sequences=dict(connection.execute(SEQUENCES, {"schemas": SCHEMAS}).fetchall()),
        contents={name: read_content(connection, name) for name in (table.name for table in tables if table.bytes)},
        seeded_rows=[row[0] for row in connection.execute(f"select t::text from {SEEDED_TABLE} t")],  # pyright: ignore[reportArgumentType, reportCallIssue]
        restore=SQL(RESTORE_SEEDED_ROWS).format(
            SQL(", ").join(Identifier(row[0]) for row in connection.execute(SEEDED_COLUMNS))  # pyright: ignore[reportArgumentType, reportCallIssue]
        ),
        now_function=one_value(connection, "select pg_get_functiondef('pabal.now'::regproc)"),
    )


def reset_database(connection: "psycopg.Connection[Any]", template: TemplateState) -> bool:
    """Bring a database back to the template's state. Returns False if only a new copy can."""
    while others := connection.execute(OTHER_SESSIONS).fetchall():
        for row in others:
            connection.execute("select pg_terminate_backend(%s, 5000)", [row.pid])
    try:
        catalog = read_catalog(connection)
    except (InvalidSchemaName, UndefinedFunction):  # the test reverted migrations
        return False
    if catalog != template.catalog:
        return False
    with connection.transaction():
        connection.execute("set local session_replication_role = replica")  # no triggers, no foreign keys
        tables = connection.execute(TABLES, {"schemas": SCHEMAS}).fetchall()
        # An empty table may have been written to: vacuum shortens it, but its indexes and estimates tell.
        written = [t.name for t in tables if t.name in template.tables and t.storage != template.tables[t.name]]
        if written:
            connection.execute(f"truncate {', '.join(written)} cascade")  # pyright: ignore[reportArgumentType, reportCallIssue]
        if read_content(connection, SEEDED_TABLE) != template.contents[SEEDED_TABLE]:
            connection.execute(f"delete from {SEEDED_TABLE}")  # pyright: ignore[reportArgumentType, reportCallIssue]
            connection.execute(template.restore, [template.seeded_rows])
        for name, value in connection.execute(SEQUENCES, {"schemas": SCHEMAS}).fetchall():
            if value != template.sequences[name]:
                first = template.sequences[name]
                connection.execute("select setval(%s::regclass, %s, %s)", [name, first or 1, first is not None])
        if one_value(connection, "select pg_get_functiondef('pabal.now'::regproc)") != template.now_function:
            connection.execute(template.now_function)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return all(read_content(connection, name) == content for name, content in template.contents.items())


def read_catalog(connection: "psycopg.Connection[Any]") -> str:
    return one_value(connection, CATALOG, {"schemas": SCHEMAS})


def read_content(connection: "psycopg.Connection[Any]", table: str) -> str:
    return one_value(connection, f"select md5(string_agg(t::text, '|' order by t::text)) from {table} t")


def one_value(connection: "psycopg.Connection[Any]", query: str, parameters: dict[str, Any] | None = None) -> Any:
    row = connection.execute(query, parameters).fetchone()  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert row is not None
    return row[0]


def weaken_passwords(address: ServerAddress) -> None:
    """Hash the same passwords with one iteration instead of 4,096: a hub opens several connections per test."""
    with psycopg.connect(address.owner_url, autocommit=True) as connection:
        connection.execute("set scram_iterations = 1")
        for url in map(urlsplit, (address.owner_url, address.hub_url)):
            connection.execute(
                SQL("alter role {} password {}").format(Identifier(url.username or ""), Literal(url.password))
            )


def url_with_database(url: str, database: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))
