"""The dry run of `pabal adopt` prints what `--yes` then executes and changes: no statement and no row more or less."""

import asyncio
import re
from collections.abc import AsyncGenerator, Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

from pabal.db.adopt.catalog import load_specification
from pabal.db.migrate import load_migrations
from support.clusters import Cluster, Connection, open_connection
from support.pabal_process import fresh_folder, pabal, pabal_json
from support.statement_log import run_statement_log
from support.supabase import ADD_ROLE, supabase_database

pytestmark = pytest.mark.anyio

FOLDER = Path(__file__).parent
HARMLESS_DIFFERENCES = """
alter table public.event_queue drop column error_history, drop constraint valid_source_service;
alter table public.pairing_codes drop column created_at;
update public.event_queue set source_service = 'shop' where status = 'pending' and target_service is not null;
update public.service_tokens set permissions = '["hub:manage"]' where token_hash = 'hash-4';
update public.accounts set relay_token_hash = repeat('C', 64) where openclaw_user_id = 'jun';
"""
EFFECTS = {
    "tokens: unknown services": """
        select 'public.services', s.name from public.services s
        where s.description = 'Adopted' and s.name in (select t.service_name from kept.service_tokens t)""",
    "tokens: other issuer": """
        select 'public.service_tokens', n.id::text from public.service_tokens n join kept.service_tokens o using (id)
        where n.access_token <> o.access_token
        union all
        select 'public.refresh_tokens', n.id::text from public.refresh_tokens n join kept.refresh_tokens o using (id)
        where n.refresh_token <> o.refresh_token""",
    "tokens: unknown permissions": """
        select 'public.service_tokens', n.id::text from public.service_tokens n join kept.service_tokens o using (id)
        where n.permissions <> o.permissions""",
    "tokens: duplicate access hashes": """
        select 'public.service_tokens', n.id::text from public.service_tokens n join kept.service_tokens o using (id)
        where n.token_hash <> o.token_hash""",
    "tokens: duplicate refresh hashes": """
        select 'public.refresh_tokens', n.id::text from public.refresh_tokens n join kept.refresh_tokens o using (id)
        where n.token_hash <> o.token_hash""",
    "tokens: refresh expiry": """
        select 'public.refresh_tokens', n.id::text from public.refresh_tokens n join kept.refresh_tokens o using (id)
        where n.expires_at is distinct from o.expires_at""",
    "events: unknown services": """
        select 'public.services', s.name from public.services s
        where s.description = 'Adopted' and exists (
          select from kept.event_queue e where s.name in (e.source_service, e.target_service))""",
    "events: processing": "select 'public.event_queue', c.id::text from pabal.plain_claims c",
    "events: open broadcasts": """
        select distinct 'public.event_queue', n.parent_id::text from public.event_queue n
        where n.parent_id is not null""",
    "events: end times": """
        select 'public.event_queue', n.id::text from public.event_queue n join kept.event_queue o using (id)
        where n.processed_at is distinct from o.processed_at and n.status = o.status""",
    "events: missing letters": """
        select 'public.event_queue', n.event_id::text from public.dead_letter_queue n
        where n.id not in (select o.id from kept.dead_letter_queue o)""",
    "events: repeated letters": """
        select 'public.dead_letter_queue', n.id::text
        from public.dead_letter_queue n join kept.dead_letter_queue o using (id)
        where n.resolved_at is distinct from o.resolved_at""",
    "relay: token hashes": """
        select 'public.accounts', n.id::text from public.accounts n where n.relay_token_hash like 'none:%'""",
    "relay: upper case hashes": """
        select 'public.accounts', n.id::text from public.accounts n join kept.accounts o using (id)
        where n.relay_token_hash = lower(o.relay_token_hash) and n.relay_token_hash <> o.relay_token_hash""",
    "relay: rate limits": """
        select 'public.accounts', n.id::text from public.accounts n join kept.accounts o using (id)
        where n.rate_limit_per_minute is distinct from o.rate_limit_per_minute""",
    "relay: without account": """
        select 'public.conversation_mappings', n.conversation_key
        from public.conversation_mappings n join kept.conversation_mappings o using (conversation_key)
        where n.state <> o.state""",
    "relay: unpaired accounts": """
        select 'public.conversation_mappings', n.conversation_key
        from public.conversation_mappings n join kept.conversation_mappings o using (conversation_key)
        where n.state = o.state and row(n.account_id, n.paired_at) is distinct from row(o.account_id, o.paired_at)
          and n.paired_at is null""",
    "relay: missing times": """
        select 'public.conversation_mappings', n.conversation_key
        from public.conversation_mappings n join kept.conversation_mappings o using (conversation_key)
        where n.paired_at is not null and o.paired_at is null""",
    "relay: blocked": """
        select 'public.conversation_mappings', n.conversation_key from public.conversation_mappings n
        where n.blocked_by = 'operator'""",
    "relay: event ids": """
        select 'public.inbound_messages', n.id::text
        from public.inbound_messages n join kept.inbound_messages o using (id)
        where n.source_event_id is distinct from o.source_event_id""",
    "relay: delivered": """
        select 'public.inbound_messages', n.id::text from public.inbound_messages n where n.lease is not null""",
    "relay: acked times": """
        select 'public.inbound_messages', n.id::text
        from public.inbound_messages n join kept.inbound_messages o using (id)
        where n.acked_at is distinct from o.acked_at""",
    "relay: used codes": """
        select 'public.pairing_codes', n.code from public.pairing_codes n join kept.pairing_codes o using (code)
        where n.used_at is distinct from o.used_at""",
    "notifications: templates": """
        select 'notification.templates', t.key from notification.templates t where t.retired_at is not null""",
    "notifications: attempts": """
        select 'notification.requests', n.id::text from notification.requests n join kept.requests o using (id)
        where n.attempt_count <> o.attempt_count""",
    "notifications: sent times": """
        select 'notification.requests', n.id::text from notification.requests n join kept.requests o using (id)
        where n.sent_at is distinct from o.sent_at""",
    "notifications: failed": """
        select 'notification.requests', n.id::text from notification.requests n where n.reason = 'exhausted'""",
    "notifications: suppressed": """
        select 'notification.requests', n.id::text from notification.requests n where n.reason = 'category_off'""",
}
"""The rows that a rule changed, told from the rows before (in `kept`) and after, not by what the rule looks for."""


@pytest.fixture(params=["specification", "differences", "supabase"])
async def database(request: pytest.FixtureRequest, server: Cluster) -> AsyncGenerator[str]:
    """A database with the specification's tables and rows in each of them, by the URL of its owner."""
    is_supabase = request.param == "supabase"
    url = await (supabase_database(server) if is_supabase else server.fresh_database())
    async with open_connection(url) as conn:
        if is_supabase:
            await conn.execute(ADD_ROLE)
        else:
            await run_file(conn, "seeds/before")
        for name in ("seeds/000", "seeds/001", "seeds/002", "existing/rows"):
            await run_file(conn, name)
        if request.param == "differences":
            await conn.execute(HARMLESS_DIFFERENCES)
    yield url
    await server.drop(url)


async def run_file(conn: Connection, name: str) -> None:
    await conn.execute((FOLDER / f"{name}.sql").read_text("utf-8"))


@pytest.fixture
def folder() -> Generator[Path]:
    with fresh_folder() as made:
        yield made


async def run_logged(url: str, *args: str, folder: Path) -> tuple[Any, list[str]]:
    """Run a command; return the document it prints and the statements it executes."""
    async with run_statement_log(url) as (log, logged_url):
        document = await asyncio.to_thread(pabal_json, *args, folder=folder, PABAL_DATABASE_URL=logged_url)
    return document, log.statements


def changing_statements(statements: Iterable[str], reads: set[str]) -> list[str]:
    """What `--yes` executes beyond reads, as the dry run prints it: migrations by name."""
    migrations = {migration.sql: f"-- migration {migration.file_name}" for migration in load_migrations()}
    changes: list[str] = []
    for statement in statements:
        text = re.sub(r"^(--.*\n)*", "", statement).strip().rstrip(";")
        if statement in migrations:
            changes.append(migrations[statement])
        elif text.lower() == "commit" and changes[-1] == "begin;":
            changes.pop()  # a transaction that only read
        elif text.lower() in {"begin", "commit"}:
            changes.append(f"{text.lower()};")
        elif (
            statement not in reads  # those of a read-only transaction
            and not text.startswith(("select ", "select\n", "set local lock_timeout "))
            and "pabal.schema_migrations" not in text  # the record of a migration
        ):
            changes.append(f"{statement};")
    return changes


async def test_the_dry_run_prints_the_statements_that_are_executed(database: str, folder: Path) -> None:
    dry, reads = await run_logged(database, "adopt", "--dry-run", folder=folder)
    _, statements = await run_logged(database, "adopt", "--yes", folder=folder)

    assert any("read only" in statement.lower() for statement in reads)
    assert dry["sql"] == changing_statements(statements, set(reads))


async def test_the_printed_text_has_the_same_statements(database: str, folder: Path) -> None:
    document = await asyncio.to_thread(pabal_json, "adopt", "--dry-run", folder=folder, PABAL_DATABASE_URL=database)
    result = await asyncio.to_thread(pabal, "adopt", "--dry-run", folder=folder, PABAL_DATABASE_URL=database)

    block = result.stdout.partition("\nSQL\n")[2]
    assert [line.removeprefix("  ") for line in block.splitlines()] == "\n".join(document["sql"]).splitlines()


async def test_each_rule_changes_the_rows_that_the_dry_run_counts(database: str, folder: Path) -> None:
    async with open_connection(database) as conn:
        await keep_rows(conn)
        dry = await asyncio.to_thread(pabal_json, "adopt", "--dry-run", folder=folder, PABAL_DATABASE_URL=database)
        done = await asyncio.to_thread(pabal_json, "adopt", "--yes", folder=folder, PABAL_DATABASE_URL=database)
        changed = {rule: {tuple(row) for row in await conn.fetch(query)} for rule, query in EFFECTS.items()}
        differing = await rows_that_differ(conn)
        added = await count_added_rows(conn)
        deliveries = await conn.fetchval("select count(*) from public.event_queue where parent_id is not null")

    rows = {f"{rule['group']}: {rule['rule']}": rule["rows"] for rule in dry["rules"]}
    assert rows == {rule: len(keys) for rule, keys in changed.items()}
    assert (dry["rules"], dry["rows"], dry["differences"]) == (done["rules"], done["rows"], done["differences"])
    assert differing <= set[tuple[str, str]]().union(*changed.values())
    assert added == {"public.event_queue": deliveries, "public.dead_letter_queue": rows["events: missing letters"]}


async def keep_rows(conn: Connection) -> None:
    """Copy the tables to `kept`, as they are before the adoption."""
    await conn.execute("create schema kept")
    for table in load_specification():
        await conn.execute(f"create table kept.{table.partition('.')[2]} as table {table}")


async def rows_that_differ(conn: Connection) -> set[tuple[str, str]]:
    """The rows with another value in a column they had before, by their table and key."""
    differing: set[tuple[str, str]] = set()
    for table, shape in load_specification().items():
        key, name = next(iter(shape.columns)), table.partition(".")[2]
        rows = await conn.fetch(
            f"select n.{key}::text from {table} n join kept.{name} o using ({key})"
            " where exists (select from jsonb_each(to_jsonb(o)) c where to_jsonb(n) -> c.key is distinct from c.value)"
        )
        differing |= {(table, row[0]) for row in rows}
    return differing


async def count_added_rows(conn: Connection) -> dict[str, int]:
    """How many rows the tables have more than before."""
    counts = {
        table: await conn.fetchval(
            f"select (select count(*) from {table}) - (select count(*) from kept.{table.partition('.')[2]})"
        )
        for table in load_specification()
    }
    return {table: count for table, count in counts.items() if count}
