"""Plan an adoption: compare the catalogs, and count the rows of each rule. Only reads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pabal.core.errors import MigrationError
from pabal.db.adopt.catalog import (
    TABLE_GROUPS,
    ExistingTable,
    TableShape,
    list_dependents,
    list_existing_tables,
    list_specified_functions,
    list_table_grants,
    load_specification,
    read_shapes,
    specified_tables,
)
from pabal.db.adopt.compare import (
    Difference,
    DifferenceKind,
    compare_dependents,
    compare_functions,
    compare_grants,
    compare_groups,
    compare_table,
)
from pabal.db.adopt.rules import MOVED_SCHEMA, RuleCount, count_rule_rows, load_group_rules, moved_tables, place_tables
from pabal.db.preflight import Collision, find_collisions, read_created_names
from pabal.db.schema import Migration

if TYPE_CHECKING:
    from pabal.db.preflight import CatalogConnection


@dataclass(frozen=True, slots=True)
class AdoptionPlan:
    """The tables to adopt, how they differ, what their rules change, and the statements that do it, in their order."""

    tables: Sequence[str]
    groups: Sequence[str]
    rows: dict[str, int]
    differences: Sequence[Difference]
    counts: Sequence[RuleCount]
    lock_statement: str
    move_statements: Sequence[str]
    migrations: Sequence[Migration]
    copy_statements: Sequence[str]
    drop_statements: Sequence[str]
    analyze_statement: str
    """Runs after the commit."""

    @property
    def conflicts(self) -> list[Difference]:
        return [difference for difference in self.differences if difference.kind is DifferenceKind.CONFLICT]

    def changed_rows(self) -> dict[str, int]:
        """The rules that change rows, by their group and name."""
        return {f"{count.rule.group}: {count.rule.name}": count.rows for count in self.counts if count.rows}


async def plan_adoption(
    conn: "CatalogConnection", applied: Sequence[Migration], pending: Sequence[Migration]
) -> AdoptionPlan:
    """Compare the database with the specification and count the rows per rule."""
    created = read_created_names(pending).tables
    existing = await list_existing_tables(conn, [table for table in specified_tables() if table in created])
    if not existing:
        raise MigrationError("there is nothing to adopt: run `pabal migrate up`")
    names = [table for table in specified_tables() if table in {existing_table.name for existing_table in existing}]
    shapes = await read_shapes(conn, names)
    functions = [*compare_functions(await list_specified_functions(conn))]
    differences = [
        *compare_groups(existing),
        *(difference for name in names for difference in compare_table(name, shapes[name], load_specification()[name])),
        *functions,
        *compare_grants(await list_table_grants(conn, names)),
        *compare_dependents(await list_dependents(conn, names)),
        *explain_collisions(await find_collisions(conn, applied, pending), existing, functions),
    ]
    groups = [group for group, tables in TABLE_GROUPS.items() if set(tables) <= set(names)]
    counts: list[RuleCount] = []
    rows: dict[str, int] = {}
    if not any(difference.kind is DifferenceKind.CONFLICT for difference in differences):
        rows = {name: await conn.fetchval(f"select count(*) from {name}") for name in names}  # noqa: S608  # names of the specification
        sources = {name.partition(".")[2]: read_source(name, shapes[name]) for name in names}
        counts = await count_rule_rows(conn, groups, sources)
        differences += await find_null_conflicts(conn, shapes)
        differences += explain_row_conflicts(counts)
    return AdoptionPlan(
        tables=names,
        groups=groups,
        rows=rows,
        differences=differences,
        counts=[count for count in counts if not count.rule.is_conflict],
        lock_statement=f"lock table {', '.join(names)} in access exclusive mode",
        move_statements=[*list_move_statements(names, shapes)],
        migrations=pending,
        copy_statements=[
            place_tables(query.sql, moved_tables()) for group in groups for query in load_group_rules(group).copies
        ],
        drop_statements=[
            f"drop table {', '.join(moved_name(name) for name in names)}",
            f"drop schema {MOVED_SCHEMA}",
        ],
        analyze_statement=f"analyze {', '.join(names)}",
    )


def explain_row_conflicts(counts: Sequence[RuleCount]) -> list[Difference]:
    """The rows that no rule covers."""
    return [
        Difference(
            DifferenceKind.CONFLICT,
            f"{count.rows} rows of {count.rule.group}, such as {count.example!r}",
            count.rule.text,
        )
        for count in counts
        if count.rule.is_conflict and count.rows
    ]


def moved_name(table: str) -> str:
    return f"{MOVED_SCHEMA}.{table.partition('.')[2]}"


def missing_columns(table: str, shape: TableShape) -> list[str]:
    return [name for name in load_specification()[table].columns if name not in shape.columns]


def read_source(table: str, shape: TableShape) -> str:
    """The table with the columns of the specification that it has not yet: the rules read them."""
    missing = missing_columns(table, shape)
    if not missing:
        return table
    wanted = {name: load_specification()[table].columns[name] for name in missing}
    values = (f"({column.default or 'null'})::{column.type} as {name}" for name, column in wanted.items())
    return f"(select t.*, {', '.join(values)} from {table} t)"  # noqa: S608  # names of the specification


def list_move_statements(names: Sequence[str], shapes: dict[str, TableShape]) -> Iterator[str]:
    yield f"create schema {MOVED_SCHEMA}"
    for name in names:
        yield f"alter table {name} set schema {MOVED_SCHEMA}"
        for column in missing_columns(name, shapes[name]):
            wanted = load_specification()[name].columns[column]
            default = f" default {wanted.default}" if wanted.default else ""
            yield f"alter table {moved_name(name)} add column {column} {wanted.type}{default}"


def explain_collisions(
    collisions: Sequence[Collision], existing: Sequence[ExistingTable], functions: Sequence[Difference]
) -> Iterator[Difference]:
    """The collisions that remain when the tables and functions of the specification are adopted."""
    adopted = {f"table {table.name}" for table in existing} | {difference.object for difference in functions}
    for collision in collisions:
        if collision.object not in adopted:
            yield Difference(DifferenceKind.CONFLICT, collision.object, f"{collision.problem}; {collision.advice}")


async def find_null_conflicts(conn: "CatalogConnection", shapes: dict[str, TableShape]) -> list[Difference]:
    """Columns that the specification requires, that are nullable here, and that have rows without a value."""
    differences: list[Difference] = []
    for table, shape in shapes.items():
        for name, wanted in load_specification()[table].columns.items():
            column = shape.columns.get(name)
            if column is None or column.is_required or not wanted.is_required:
                continue
            rows: int = await conn.fetchval(f"select count(*) from {table} where {name} is null")  # noqa: S608  # names of the specification
            if rows:
                text = f"is null in {rows} rows; set a value"
                differences.append(Difference(DifferenceKind.CONFLICT, f"column {table}.{name}", text))
    return differences
