"""The rules by which rows of the specification's tables become rows of Pabal's, read from `migrations/adopt/`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING

from pabal.db.adopt.catalog import TABLE_GROUPS
from pabal.db.queries import Query, parse_queries
from pabal.db.schema import MIGRATIONS_DIR

if TYPE_CHECKING:
    from pabal.db.preflight import CatalogConnection

MOVED_SCHEMA = "pabal_adopt"
"""Where the existing tables are while their rows are copied."""

_EXISTING_TABLE = re.compile(r"\bexisting\.([a-z_]+)")


@dataclass(frozen=True, slots=True)
class RowRule:
    """A rule for rows that Pabal's tables would not accept as they are, or a conflict that no rule covers."""

    group: str
    name: str
    text: str
    query: Query
    is_conflict: bool


@dataclass(frozen=True, slots=True)
class RuleCount:
    """How many rows a rule changes, and an example of a conflict."""

    rule: RowRule
    rows: int
    example: str | None


@dataclass(frozen=True, slots=True)
class GroupRules:
    """The rules of a group of tables, and the statements that copy its rows, in order."""

    rules: Sequence[RowRule]
    copies: Sequence[Query]


@cache
def load_group_rules(group: str) -> GroupRules:
    path = MIGRATIONS_DIR / "adopt" / f"{group}.sql"
    rules: list[RowRule] = []
    copies: list[Query] = []
    for query in parse_queries(path.read_text("utf-8"), path.name):
        kind, _, name = query.name.partition("_")
        if kind == "copy":
            copies.append(query)
        else:
            rules.append(RowRule(group, name.replace("_", " "), read_comment(query), query, kind == "conflict"))
    return GroupRules(rules, copies)


def read_comment(query: Query) -> str:
    """The comment of a statement, as one line."""
    lines = takewhile(lambda line: line.startswith("--"), query.sql.splitlines())
    return " ".join(line.removeprefix("--").strip() for line in lines)


def place_tables(sql: str, sources: Mapping[str, str]) -> str:
    """Replace `existing.` and the name of a table by what its rows are read from."""
    return _EXISTING_TABLE.sub(lambda match: sources[match[1]], sql)


def moved_tables() -> dict[str, str]:
    """The old tables while they are set aside, by their names without a schema."""
    names = (table.partition(".")[2] for tables in TABLE_GROUPS.values() for table in tables)
    return {name: f"{MOVED_SCHEMA}.{name}" for name in names}


async def count_rule_rows(
    conn: "CatalogConnection", groups: Iterable[str], sources: Mapping[str, str]
) -> list[RuleCount]:
    """Count the rows of each rule and conflict of these groups."""
    counts: list[RuleCount] = []
    for rule in (rule for group in groups for rule in load_group_rules(group).rules):
        row = await conn.fetchrow(place_tables(rule.query.sql, sources))
        assert row is not None
        counts.append(RuleCount(rule, row[0], row[1] if rule.is_conflict else None))
    return counts
