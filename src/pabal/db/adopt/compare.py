"""Compare tables that exist with those of the specification. Plain functions on shapes; nothing is read or changed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pabal.db.adopt.catalog import (
    SPECIFIED_FUNCTIONS,
    TABLE_GROUPS,
    ColumnShape,
    ExistingFunction,
    ExistingTable,
    TableDependent,
    TableGrant,
    TableShape,
)

WIDENED_TYPES = {"text": ("character varying", "character"), "integer": ("smallint",)}
"""Types of the specification, and those whose values they can hold."""
DROPPED_PARTS = frozenset({"index"})
"""Parts that may be dropped without changing which rows a table accepts or what is done with them."""


class DifferenceKind(StrEnum):
    SAME = "same"
    WIDEN = "widen"
    REPLACE = "replace"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Difference:
    """How an object of the database compares to Pabal's. A conflict stops the adoption."""

    kind: DifferenceKind
    object: str
    text: str


def compare_table(name: str, shape: TableShape, specified: TableShape) -> Iterator[Difference]:
    """Compare a table with that of the specification."""
    differences = [*compare_columns(name, shape, specified), *compare_parts(name, shape, specified)]
    if all(difference.kind is not DifferenceKind.CONFLICT for difference in differences):
        yield Difference(DifferenceKind.SAME, f"table {name}", f"has {len(shape.columns)} columns of the specification")
        yield Difference(DifferenceKind.WIDEN, f"table {name}", "gets the columns and constraints that Pabal adds")
    yield from differences


def compare_columns(table: str, shape: TableShape, specified: TableShape) -> Iterator[Difference]:
    for name, wanted in specified.columns.items():
        column = shape.columns.get(name)
        if column is None:
            yield compare_missing_column(f"column {table}.{name}", wanted)
        elif column.type != wanted.type:
            base = column.type.partition("(")[0]
            is_wider = base in WIDENED_TYPES.get(wanted.type, ())
            kind = DifferenceKind.WIDEN if is_wider else DifferenceKind.CONFLICT
            yield Difference(kind, f"column {table}.{name}", f"is {column.type} and becomes {wanted.type}")
    for name in shape.columns.keys() - specified.columns.keys():
        text = "is not in the specification; move its values to a table of your own and drop it"
        yield Difference(DifferenceKind.CONFLICT, f"column {table}.{name}", text)


def compare_missing_column(column: str, wanted: ColumnShape) -> Difference:
    if wanted.is_required and wanted.default is None:
        return Difference(DifferenceKind.CONFLICT, column, "is missing and has no default")
    return Difference(DifferenceKind.WIDEN, column, f"is missing and is added with {wanted.default or 'null'}")


def compare_parts(table: str, shape: TableShape, specified: TableShape) -> Iterator[Difference]:
    known = {name for _, name in specified.parts}
    replaced = sorted(name for _, name in shape.parts if name in known)
    if replaced:
        yield Difference(DifferenceKind.REPLACE, f"table {table}", f"gets Pabal's {', '.join(replaced)}")
    for (kind, name), definition in sorted(shape.parts.items()):
        if name in known:
            continue
        if kind in DROPPED_PARTS:
            text = f"is dropped; create it again if you need it: {definition}"
            yield Difference(DifferenceKind.REPLACE, f"{kind} {name} of {table}", text)
        else:
            text = f"is not in the specification; drop it first: {definition}"
            yield Difference(DifferenceKind.CONFLICT, f"{kind} {name} of {table}", text)


def compare_groups(tables: Sequence[ExistingTable]) -> Iterator[Difference]:
    """Tables that miss another of their group, that are no tables, that belong to another role, or that hide rows."""
    names = {table.name for table in tables}
    for group in TABLE_GROUPS.values():
        if names.intersection(group):
            for missing in sorted(set(group) - names):
                present = ", ".join(name for name in group if name in names)
                text = f"is missing beside {present}; create it as the specification does, or rename the others"
                yield Difference(DifferenceKind.CONFLICT, f"table {missing}", text)
    for table in tables:
        if table.kind != "r":
            yield Difference(DifferenceKind.CONFLICT, table.name, "is not a plain table")
        elif not table.is_owned:
            text = f"belongs to {table.owner}; adopt as that role"
            yield Difference(DifferenceKind.CONFLICT, f"table {table.name}", text)
        elif table.hides_rows:  # they would be neither counted nor copied, and dropped with the table
            text = f"hides rows from its owner; run: alter table {table.name} no force row level security"
            yield Difference(DifferenceKind.CONFLICT, f"table {table.name}", text)


def compare_functions(functions: Sequence[ExistingFunction]) -> Iterator[Difference]:
    for function in functions:
        name = f"function {function.signature}"
        wanted = SPECIFIED_FUNCTIONS[function.signature.partition("(")[0]]
        if not function.is_owned:
            yield Difference(DifferenceKind.CONFLICT, name, "belongs to another role; adopt as that role")
        elif function.result != wanted:
            yield Difference(DifferenceKind.CONFLICT, name, f"returns {function.result}, not {wanted}; rename it")
        else:
            yield Difference(DifferenceKind.REPLACE, name, "becomes Pabal's function of that name")


def compare_dependents(dependents: Sequence[TableDependent]) -> Iterator[Difference]:
    for dependent in dependents:
        text = f"depends on {dependent.table}; drop it first and create it again afterwards"
        yield Difference(DifferenceKind.CONFLICT, dependent.name, text)


def compare_grants(grants: Sequence[TableGrant]) -> Iterator[Difference]:
    for grant in grants:
        text = f"are dropped ({grant.privileges}); grant again what the role needs, with a policy for its rows"
        yield Difference(DifferenceKind.REPLACE, f"privileges of {grant.role} on {grant.table}", text)
