"""Every named query can be prepared on the shipped schema, is used, and filters by its tenant."""

import ast
import re
from pathlib import Path

import asyncpg
import pytest

import pabal
from pabal.db.queries import Query, parse_queries
from pabal.hub import DatabaseUrls
from support.clusters import open_connection

PACKAGE = Path(pabal.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*.sql") if "migrations" not in path.parts)
LANES = [path for path in FILES if path.name == "lane.sql"]


def queries(path: Path) -> list[Query]:
    return [*parse_queries(path.read_text(encoding="utf-8"), str(path.relative_to(PACKAGE)))]


def used_queries(path: Path) -> set[str]:
    """The queries a module uses: `Q.name`, or `self.q.name` in a lane."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case (
                ast.Attribute(value=ast.Name(id="Q"), attr=name)
                | ast.Attribute(value=ast.Attribute(attr="q"), attr=name)
            ):
                names.add(name)
            case _:
                continue
    return names


LANE_QUERIES = used_queries(PACKAGE / "queue" / "lane.py")
RETRY_QUERIES = {"settle_retry", "settle_dead"}  # the relay's lane neither retries nor has dead letters


@pytest.mark.anyio
async def test_every_query_can_be_prepared(database_urls: DatabaseUrls) -> None:
    errors: dict[str, str] = {}
    async with open_connection(database_urls.main) as conn:
        for query in (query for path in FILES for query in queries(path)):
            try:
                await conn.prepare(query.sql)
            except asyncpg.PostgresError as error:
                errors[f"{query.source} {query.name}"] = str(error)

    assert errors == {}


@pytest.mark.anyio
async def test_no_statement_finds_events_by_ctid(database_urls: DatabaseUrls) -> None:
    """In a partitioned table, one ctid names a row in each partition."""
    statements = {f"{query.source} {query.name}": query.sql for path in FILES for query in queries(path)}
    async with open_connection(database_urls.main) as conn:
        functions = "select oid::regprocedure::text, pg_get_functiondef(oid) from pg_proc where pronamespace = any($1)"
        schemas = "select array_agg(oid) from pg_namespace where nspname in ('public', 'pabal', 'notification')"
        rows = await conn.fetch(functions, await conn.fetchval(schemas))
    statements |= {row[0]: row[1] for row in rows}

    by_ctid: set[str] = set()
    for name, sql in statements.items():
        aliases = {"event_queue", *re.findall(r"public\.event_queue\s+(?:as\s+)?(\w+)", sql)}
        if any(re.search(rf"\b{alias}\.ctid\b", sql) for alias in aliases):
            by_ctid.add(name)
        if "public.event_queue" in sql and re.search(r"(?<![.\w])ctid\b", re.sub(r"--.*", "", sql)):
            by_ctid.add(name)

    assert len(statements) > 200
    assert by_ctid == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_query_is_used_and_every_used_query_exists(path: Path) -> None:
    names = [query.name for query in queries(path)]
    own = used_queries(path.with_suffix(".py"))
    engine = LANE_QUERIES if path in LANES else set[str]()

    assert len(names) == len({*names})
    assert own <= {*names}
    assert {*names} <= own | engine


def test_every_lane_has_the_common_lane_queries() -> None:
    assert LANES
    missing = {path.parent.name: LANE_QUERIES - {query.name for query in queries(path)} for path in LANES}

    assert missing == {path.parent.name: set[str]() for path in LANES} | {"delivery": RETRY_QUERIES}


TENANT_TABLES = ("inbound_messages", "conversation_mappings", "pairing_codes", "relay_sessions", "relay_replies")

MAINTENANCE = "maintenance of all accounts; returns none of their rows"
BY_TOKEN = "the token is the key and identifies the account"
ONE_USER = "rows of one user, in all accounts"

BY_CONVERSATION = "messages of users: the conversation determines the account"
UNFILTERED = {
    ("stats.sql", "lane_stats"): "counts rows of all accounts, shows none",
    ("relay/first_steps.sql", "relay_progress"): "says whether any account was used, shows none",
    ("relay/first_steps.sql", "relay_is_used"): "says whether any account was used, shows none",
    ("relay/messages.sql", "list_failed_callbacks"): "for an operator",
    ("relay/accounts.sql", "purge_unused_accounts"): MAINTENANCE,
    ("relay/auth.sql", "find_relay_token"): BY_TOKEN,
    ("relay/reply/callback.sql", "rescue_lost_callbacks"): MAINTENANCE,
    ("relay/reply/callback.sql", "confirm_claims"): "the fence is the key; only the process that made it knows it",
    ("relay/pairing/codes.sql", "insert_pairing_code"): "inserts a row with the account's id",
    ("relay/pairing/codes.sql", "purge_pairing_codes"): MAINTENANCE,
    (
        "relay/webhook/commands.sql",
        "lock_or_create_conversation",
    ): "the conversation of the user, in any account",
    ("relay/conversations.sql", "list_all_conversations"): "for an operator",
    ("relay/conversations.sql", "expire_pending_pairings"): MAINTENANCE,
    ("relay/conversations.sql", "purge_unpaired_conversations"): MAINTENANCE,
    ("relay/privacy.sql", "unlink_pairing_codes"): ONE_USER,
    ("relay/privacy.sql", "delete_conversation"): ONE_USER,
    ("relay/privacy.sql", "lock_messages"): ONE_USER,
    ("relay/privacy.sql", "lock_replies"): ONE_USER,
    ("relay/privacy.sql", "count_conversation_data"): ONE_USER,
    ("relay/privacy.sql", "delete_messages"): ONE_USER,
    ("relay/privacy.sql", "unlink_sessions"): ONE_USER,
    ("relay/privacy.sql", "export_conversation"): ONE_USER,
    ("relay/privacy.sql", "export_messages"): ONE_USER,
    ("relay/privacy.sql", "export_pairings"): ONE_USER,
    ("relay/delivery/lane.sql", "expire"): MAINTENANCE,
    ("relay/delivery/lane.sql", "purge"): MAINTENANCE,
    ("relay/web_sessions.sql", "find_conversation_details"): ONE_USER,
    (
        "relay/pairing/pair.sql",
        "connect_conversation",
    ): "the conversation of the user, which changes its account",
    ("relay/pairing/pair.sql", "redeem_pairing_code"): "the code is the key and identifies the account",
    ("relay/pairing/pair.sql", "is_pairing_code_live"): "the code is the key; returns no row of the account",
    ("relay/web_sessions.sql", "find_pending_session_code"): BY_TOKEN,
    ("relay/encryption/message_cipher.sql", "find_token_accounts"): BY_TOKEN,
    ("relay/encryption/message_cipher.sql", "find_conversation_accounts"): BY_CONVERSATION,
    ("relay/webhook/recall.sql", "void_callbacks"): BY_CONVERSATION,
    ("relay/webhook/receive.sql", "receive_messages"): BY_CONVERSATION,
    ("relay/webhook/receive.sql", "find_duplicate"): BY_CONVERSATION,
    ("relay/webhook/receive.sql", "queue_unclear"): "by leases, which only the process that made them knows",
    ("relay/accounts.sql", "list_account_summaries"): "for an operator",
    ("relay/pairing/sessions.sql", "create_relay_session"): "belongs to no account yet",
    ("relay/id_lookup.sql", "match_messages"): "for an operator",
    ("relay/pairing/sessions.sql", "find_relay_session_status"): BY_TOKEN,
    ("relay/pairing/sessions.sql", "purge_relay_sessions"): MAINTENANCE,
    ("relay/reply/stall.sql", "claim_expiring_callbacks"): "callbacks of all accounts; each row names its account",
    ("relay/reply/waiting.sql", "list_waiting_replies"): "replies of all accounts, by id",
    (
        "relay/delivery/stream_control.sql",
        "find_ended_waits",
    ): "sessions without an account yet, by the ids of the open streams",
    (
        "relay/webhook/message_events.sql",
        "publish_message_events",
    ): "messages of all accounts; the event names its account",
}
"""Queries that use a tenant's table without filtering by the tenant, and why they may."""


def with_named_parameters(sql: str) -> str:
    """Parameters as `:n` again, so that one pattern matches a comparison with them."""
    return re.sub(r"\$(\d+)", r":\1", sql)


def test_queries_of_tenant_tables_filter_by_the_tenant() -> None:
    table = re.compile(rf"\b({'|'.join(TENANT_TABLES)})\b")
    tenant_queries = {
        (query.source, query.name): re.sub(r"--[^\n]*", "", query.sql)
        for path in FILES
        for query in queries(path)
        if table.search(query.sql)
    }
    tenant_filter = re.compile(r"(where|and|on)\s[^;]*?\baccount_id\s*=\s*(a\.account_id|any\s*\(|:)")
    unfiltered = {key for key, sql in tenant_queries.items() if not tenant_filter.search(with_named_parameters(sql))}

    assert unfiltered - UNFILTERED.keys() == set()
    assert UNFILTERED.keys() - unfiltered == set(), "no longer needed"
