"""List pages stay fast with a million events."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import httpx2
import pytest

from pabal.console.access.guards import Page
from pabal.console.routes import PAGES
from pabal.db import embedded
from pabal.hub import DatabaseUrls, open_hub
from pabal.operators.operators import Role
from pabal.settings import Settings
from support.clusters import Connection, open_connection
from support.databases import url_with_database
from support.operator import SignedInOperator, sign_in
from support.pabal_process import PROCESS_TIMEOUT
from support.server import serve_hub

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

EVENT_COUNT = 1_000_000
MAX_CPU_SECONDS = 0.1
"""CPU seconds that a page may use in the hub and its database backends. Waiting for the CPU does not count."""
TRIES = 3
"""Attempts, of which the fastest counts: the first one has to plan its queries."""
NO_LISTS = {"/console/live", "/console/health", "/console/relay/conversation", "/console/notifications/person"}
"""A stream, the doctor, which opens its own connections, and pages that need a key."""
PATHS = sorted({page.path for page in PAGES if isinstance(page, Page) and "{" not in page.path} - NO_LISTS)
NARROWED = (
    "/console/events?status=completed",
    "/console/events?status=failed",
    "/console/events?type=order.*",
    "/console/events?type=nothing.like_it",
    "/console/events?source=minu_find",
    "/console/events?source=minu_keep",
    "/console/events?target=minu_build",
    "/console/events?target=minu_keep",
    "/console/dead?state=resolved",
    "/console/dead/letters?target=minu_build",
    "/console/notifications?state=sent",
    "/console/notifications?state=failed",
    "/console/notifications?recipient=7",
    "/console/notifications?template=payment.succeeded",
    "/console/audit?actor=operator:mina",
    "/console/audit?action=token",
    "/console/audit?subject=7",
)

FILL = f"""
set maintenance_work_mem = '256MB';
set session_replication_role = replica;  -- past triggers and foreign keys: only that the rows are there matters
create temp table shelved as  -- an index is built in a third of the time it takes to grow
select schemaname || '.' || indexname as name, indexdef from pg_indexes
where tablename in ('event_queue', 'event_due') and indexname not in (select conname from pg_constraint);
do $$ declare idx record; begin for idx in table shelved loop execute 'drop index ' || idx.name; end loop; end $$;
insert into public.event_queue
    (id, event_type, source_service, target_service, payload, status, created_at, processing_started_at, processed_at)
select ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'order.paid', 'minu_find', 'minu_build',
       '{{"order": 7}}', 'completed', now() - n * interval '1 second', now(), now()
from generate_series(1, {EVENT_COUNT}) n;
insert into pabal.event_due (id, service, priority, due_at, seq, is_retry, event_type)
select id, target_service, priority, created_at, seq, false, event_type from public.event_queue;
do $$ declare idx record; begin for idx in table shelved loop execute idx.indexdef; end loop; end $$;

insert into public.dead_letter_queue
    (event_id, original_event_id, origin_id, death, original_event_type, original_source_service,
     original_target_service, original_payload, error_message, failed_at, resolved_at, resolved_by_actor)
select e.id, e.id, e.id, 1, e.event_type, e.source_service, e.target_service, e.payload, 'boom ' || e.row % 7,
       e.created_at, case when e.row % 10 > 0 then now() end, case when e.row % 10 > 0 then 'operator:mina' end
from (select *, row_number() over () as row from public.event_queue order by id limit {EVENT_COUNT} / 50) e;
insert into notification.templates (key, category, texts, checksum)
values ('payment.succeeded', 'payment', '{{}}', 'x');
insert into notification.requests
    (id, recipient_type, recipient_id, template_key, payload, state, sent_at, ended_at, scheduled_at, created_at)
select pabal.uuid7(), 'dashboard_toast', (n % 1000)::text, 'payment.succeeded', '{{}}', 'sent', now(), now(), now(),
       now() - n * interval '1 second'
from generate_series(1, {EVENT_COUNT} / 10) n;
insert into public.accounts (id, openclaw_user_id) values ('00000000-0000-7000-9000-000000000001', 'busy');
insert into public.inbound_messages
    (account_id, conversation_key, kakao_payload, normalized, source_event_id, status, acked_at, ended_at, reason,
     created_at)
select '00000000-0000-7000-9000-000000000001', 'bot:user', '{{}}', '{{}}', n::text, 'ACKED', now(), now(), 'acked',
       now() - n * interval '1 second'
from generate_series(1, {EVENT_COUNT} / 10) n;
insert into pabal.audit_log (actor, action, subject, at)
select 'operator:mina', 'dead_letter.resolved', n::text, now() - n * interval '1 second'
from generate_series(1, {EVENT_COUNT} / 10) n;
reset session_replication_role;
analyze;
"""


BACKENDS = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


@dataclass(frozen=True, slots=True)
class Reader:
    """A signed-in operator, with the CPU time used so far."""

    signed: SignedInOperator
    owner: Connection

    async def work(self) -> float:
        """Return the CPU seconds of the hub and its database backends."""
        pids = [row["pid"] for row in await self.owner.fetch(BACKENDS)]
        return process_time() + sum(map(cpu_seconds, pids))


def cpu_seconds(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


@pytest.fixture(scope="module")
async def reader(
    postgres: embedded.ServerAddress, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Reader]:
    """An operator of a hub with a million events, filled once per module."""
    async with open_connection(postgres.owner_url) as server:
        await server.execute(f"create database million template {template_database}")
        await server.execute(
            "alter database million set max_parallel_workers_per_gather = 0"
        )  # so that backends account for all work
        database_urls = DatabaseUrls(
            url_with_database(postgres.hub_url, "million"), url_with_database(postgres.owner_url, "million")
        )
        settings = Settings(_env_file=None, data_dir=tmp_path_factory.mktemp("million"))  # pyright: ignore[reportCallIssue]
        async with open_connection(url_with_database(postgres.owner_url, "million")) as owner:
            await owner.execute(FILL)
            async with (
                open_hub(settings, database_urls) as hub,
                serve_hub(hub) as address,
                httpx2.AsyncClient(base_url=address, timeout=PROCESS_TIMEOUT) as web,
            ):
                yield Reader(await sign_in(hub, web, Role.ADMIN), owner)
        await server.execute("drop database million with (force)")


@pytest.mark.parametrize("path", [*PATHS, *NARROWED])
async def test_list_pages_stay_within_their_cpu_limit(reader: Reader, path: str) -> None:
    took: list[float] = []
    while len(took) < TRIES and min(took, default=MAX_CPU_SECONDS) >= MAX_CPU_SECONDS:
        before = await reader.work()
        page = await reader.signed.get(path)
        took.append(await reader.work() - before)
        assert page.status_code == 200, page.text

    assert min(took) < MAX_CPU_SECONDS
