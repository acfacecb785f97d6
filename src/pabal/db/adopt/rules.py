"""The rules by which rows of the specification's tables become rows of Pabal's, read from `migrations/adopt/`."""

import re
from collections.abc import Iterable, Sequence
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


def place_tables(sql: str, schema: str | None = None) -> str:
    """Replace `existing` by the schema the old tables are in: their own, or the one they were moved to."""
    own = {table.partition(".")[2]: table for tables in TABLE_GROUPS.values() for table in tables}
    return _EXISTING_TABLE.sub(lambda match: f"{schema}.{match[1]}" if schema else own[match[1]], sql)


async def count_rule_rows(
    conn: "CatalogConnection", groups: Iterable[str], schema: str | None = None
) -> list[RuleCount]:
    """Count the rows of each rule and conflict of these groups."""
    counts: list[RuleCount] = []
    for rule in (rule for group in groups for rule in load_group_rules(group).rules):
        row = await conn.fetchrow(place_tables(rule.query.sql, schema))
        assert row is not None
        counts.append(RuleCount(rule, row[0], row[1] if rule.is_conflict else None))
    return counts
