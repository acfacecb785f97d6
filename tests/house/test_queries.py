"""Every named query runs on the schema we ship, is asked for by somebody, and names its tenant."""

import ast
import re
from pathlib import Path

import asyncpg
import pytest

import pabal
from clusters import connected
from pabal.db.queries import Query, parse
from pabal.queue.lane import STATEMENTS
from pabal.wiring import Roads

PACKAGE = Path(pabal.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*.sql") if "migrations" not in path.parts)
LANES = [path for path in FILES if path.name == "lane.sql"]


def queries(path: Path) -> list[Query]:
    return [*parse(path.read_text(encoding="utf-8"), str(path.relative_to(PACKAGE)))]


def asked_for(path: Path) -> set[str]:
    """The names a module asks of its queries: `Q.this`, or a lane's `self.q.this`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case (
                ast.Attribute(value=ast.Name(id="Q"), attr=name)
                | ast.Attribute(value=ast.Attribute(attr="q"), attr=name)
            ):
                found.add(name)
            case _:
                continue
    return found


ENGINE = asked_for(PACKAGE / "queue" / "lane.py")


@pytest.mark.anyio
async def test_every_query_can_be_prepared(roads: Roads) -> None:
    broken: dict[str, str] = {}
    async with connected(roads.work) as conn:
        for query in (query for path in FILES for query in queries(path)):
            try:
                await conn.prepare(query.sql)
            except asyncpg.PostgresError as error:
                broken[f"{query.source} {query.name}"] = str(error)

    assert broken == {}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_query_is_asked_for_and_every_one_asked_for_exists(path: Path) -> None:
    names = [query.name for query in queries(path)]
    own = asked_for(path.with_suffix(".py"))
    engine = ENGINE | {*STATEMENTS.values()} if path in LANES else set[str]()

    assert len(names) == len({*names})
    assert own <= {*names}
    assert {*names} <= own | engine


def test_every_lane_has_what_the_engine_asks_for() -> None:
    assert LANES
    assert {path.parent.name: ENGINE - {query.name for query in queries(path)} for path in LANES} == {
        path.parent.name: set[str]() for path in LANES
    }


TENANTS = ("inbound_messages", "conversation_mappings", "pairing_codes", "relay_sessions", "relay_replies")

UPKEEP = "upkeep of every account's rows; returns none of them"
BY_TOKEN = "the token is the key, and says whose it is"
A_PERSONS = "one person's own rows, whoever's bot they talked to"

A_WRITERS = "what a user writes, whoever's bot they talk to: the conversation says whose it becomes"
WITHOUT = {
    ("queue/census.sql", "lanes"): "counts everybody's, shows nobody's",
    ("relay/answers.sql", "failures"): "for an operator",
    ("relay/accounts.sql", "sweep"): UPKEEP,
    ("relay/bearer.sql", "find"): BY_TOKEN,
    ("relay/callback.sql", "rescue"): UPKEEP,
    ("relay/codes.sql", "make"): "writes the tenant's own row; a code is nobody else's",
    ("relay/codes.sql", "sweep"): UPKEEP,
    ("relay/commands.sql", "meet"): "the user's own conversation, whoever's bot they talk to",
    ("relay/conversations.sql", "everybodys"): "for an operator",
    ("relay/conversations.sql", "lapse"): UPKEEP,
    ("relay/conversations.sql", "sweep"): UPKEEP,
    ("relay/erase.sql", "codes"): A_PERSONS,
    ("relay/erase.sql", "conversation"): A_PERSONS,
    ("relay/erase.sql", "hold_messages"): A_PERSONS,
    ("relay/erase.sql", "hold_replies"): A_PERSONS,
    ("relay/erase.sql", "holdings"): A_PERSONS,
    ("relay/erase.sql", "messages"): A_PERSONS,
    ("relay/erase.sql", "sessions"): A_PERSONS,
    ("relay/export.sql", "conversation"): A_PERSONS,
    ("relay/export.sql", "messages"): A_PERSONS,
    ("relay/export.sql", "pairings"): A_PERSONS,
    ("relay/lane.sql", "expire"): UPKEEP,
    ("relay/lane.sql", "purge"): UPKEEP,
    ("relay/page.sql", "standing"): A_PERSONS,
    ("relay/pair.sql", "connect"): "the user's own conversation, which goes from one tenant to another",
    ("relay/pair.sql", "redeem"): "the code is the key, and says whose it is",
    ("relay/portal.sql", "awaited"): BY_TOKEN,
    ("relay/recall.sql", "take_back"): A_WRITERS,
    ("relay/receive.sql", "receive"): A_WRITERS,
    ("relay/receive.sql", "repeated"): A_WRITERS,
    ("relay/roster.sql", "newest"): "for an operator",
    ("relay/sessions.sql", "create"): "belongs to nobody yet",
    ("relay/sessions.sql", "status"): BY_TOKEN,
    ("relay/sessions.sql", "sweep"): UPKEEP,
    ("relay/stall.sql", "take"): "whoever's callback dies next; each row says whose it is",
    ("relay/switchboard.sql", "over"): "sessions that belong to nobody yet, by the ids of those that are open here",
    ("relay/switchboard.sql", "touch"): "the session whose token was just shown",
}
"""Queries that touch a tenant's table without naming the tenant, and why they may."""


def as_written(sql: str) -> str:
    """Parameters as `:n` again, so that one pattern finds a column held against one."""
    return re.sub(r"\$(\d+)", r":\1", sql)


def test_no_tenants_table_is_touched_without_naming_the_tenant() -> None:
    table = re.compile(rf"\b({'|'.join(TENANTS)})\b")
    touching = {
        (query.source, query.name): re.sub(r"--[^\n]*", "", query.sql)
        for path in FILES
        for query in queries(path)
        if table.search(query.sql)
    }
    filters = re.compile(r"(where|and|on)\s[^;]*?\baccount_id\s*=\s*(a\.account_id|any\s*\(|:)")
    nameless = {key for key, sql in touching.items() if not filters.search(as_written(sql))}

    assert nameless - WITHOUT.keys() == set()
    assert WITHOUT.keys() - nameless == set(), "no longer needed"
