"""What one event costs an idle hub: which workers wake up, and the statements they execute."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from time import monotonic

import pytest

import pabal_client as client
from pabal.db.doorbell.channels import NOTIFY_CHANNEL
from pabal.db.doorbell.load_polling import IDLE_POLLING_INTERVAL
from pabal.db.doorbell.notify import NOTIFY_QUERY
from pabal.events.consume.fair_claims import Q as FAIR_CLAIMS
from pabal.events.consume.lane import LANE
from pabal.events.publish.publish import EventDraft
from pabal.events.publish.publish import Q as PUBLISH
from pabal.events.push.due_services import POLLED_SCAN_INTERVAL
from pabal.events.push.due_services import Q as DUE_SERVICES
from pabal.events.push.targets import Q as TARGETS
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.hub_workers import build_workers
from pabal.queue.worker import Worker
from pabal.settings import Settings
from support.clusters import Connection
from support.handler_app import build_handlers
from support.receiver import run_receiver
from support.statement_log import StatementLog, run_statement_log
from support.subscriptions import pause as pause_subscription
from support.subscriptions import publish_test_event, resume, subscribe, wait_for_status
from support.wait import wait_until

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
EVENTS = 20
POLLS = 30
FROM_START = 5
"""Statements of the first rounds, which may still run on a busy machine."""
STATEMENTS = {
    LANE.q.claim.sql: "claim",
    LANE.q.settle_done.sql: "settle",
    LANE.q.revive.sql: "revive",
    FAIR_CLAIMS.has_rules.sql: "rules",
    DUE_SERVICES.scan_services.sql: "scan",
    TARGETS.list_active_push_subscriptions.sql: "push subscriptions",
    TARGETS.list_push_targets.sql: "push targets",
}
"""The statements of the event workers."""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def statement_log(database_urls: DatabaseUrls) -> AsyncGenerator[tuple[StatementLog, DatabaseUrls]]:
    async with run_statement_log(database_urls.main) as (log, url):
        yield log, DatabaseUrls(url, database_urls.direct)


def names(log: StatementLog) -> list[str]:
    return [STATEMENTS[text] for text in log.statements if text in STATEMENTS]


@asynccontextmanager
async def run_idle_workers(hub: Hub, *event_types: str) -> AsyncGenerator[list[client.Event]]:
    """Run the workers of a hub, with a handler for minu_build; they poll once an hour, so that only wakeups count."""
    handled: list[client.Event] = []
    program = client.App("minu_build")

    @program.on(*event_types)
    async def handle(event: client.Event) -> None:
        handled.append(event)

    handlers = build_handlers(program)
    async with hub.transaction() as tx:
        await handlers.subscribe_services(tx)
    workers = [worker for worker in build_workers(hub, handlers) if isinstance(worker, Worker)]
    for worker in workers:
        worker.config = replace(worker.config, poll_interval=HOUR)
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        await wait_until(lambda: hub.doorbell.listening)
        yield handled
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*tasks)


async def publish_first_event(hub: Hub, worker_hub: Hub, service: str) -> None:
    """Publish an event, and wait until the push worker knows that the service has no push subscription."""
    row = await publish_test_event(hub, "order.paid", service)
    await wait_until(lambda: service in worker_hub.pusher.due_services._without_push)
    if service == "minu_build":
        await wait_for_status(hub, row, "completed")


async def test_an_idle_event_costs_another_process_one_claim_and_one_settle(
    hub: Hub, settings: Settings, statement_log: tuple[StatementLog, DatabaseUrls]
) -> None:
    log, urls = statement_log
    async with open_hub(settings, urls) as worker_hub, run_idle_workers(worker_hub, "order.*"):
        await publish_first_event(hub, worker_hub, "minu_build")
        log.statements.clear()
        for _ in range(EVENTS):
            await wait_for_status(hub, await publish_test_event(hub, "order.paid"), "completed")

        assert len(names(log)) <= 2 * EVENTS + FROM_START
        assert names(log).count("settle") == EVENTS


async def test_an_event_of_another_service_wakes_no_worker(
    hub: Hub, settings: Settings, statement_log: tuple[StatementLog, DatabaseUrls]
) -> None:
    log, urls = statement_log
    async with open_hub(settings, urls) as worker_hub, run_idle_workers(worker_hub, "order.*"):
        await publish_first_event(hub, worker_hub, "minu_keep")
        await publish_first_event(hub, worker_hub, "minu_build")
        log.statements.clear()
        for _ in range(EVENTS):
            await publish_test_event(hub, "order.paid", "minu_keep")
        await wait_for_status(hub, await publish_test_event(hub, "order.paid"), "completed")

        assert len(names(log)) <= 2 + FROM_START


async def test_an_event_published_with_sql_wakes_the_worker_of_its_service_only(
    hub: Hub, owner: Connection, settings: Settings, statement_log: tuple[StatementLog, DatabaseUrls]
) -> None:
    log, urls = statement_log
    publish = "select pabal.publish('hub', 'order.paid', target => $1)"
    async with open_hub(settings, urls) as worker_hub, run_idle_workers(worker_hub, "order.*"):
        await publish_first_event(hub, worker_hub, "minu_keep")
        await publish_first_event(hub, worker_hub, "minu_build")
        log.statements.clear()
        for _ in range(EVENTS):
            await owner.execute(publish, "minu_keep")
            await wait_for_status(hub, await owner.fetchval(publish, "minu_build"), "completed")

        assert len(names(log)) <= 2 * EVENTS + FROM_START
        assert names(log).count("settle") == EVENTS


async def test_an_idle_publisher_notifies_in_the_statement_of_the_event(
    hub: Hub, settings: Settings, statement_log: tuple[StatementLog, DatabaseUrls]
) -> None:
    log, urls = statement_log
    draft = EventDraft("minu_find", "order.paid", target="minu_build")
    async with open_hub(settings, urls) as publishing_hub, run_idle_workers(hub, "order.*") as handled:
        for number in range(1, EVENTS + 1):
            await wait_until(lambda: publishing_hub.doorbell.can_notify_at_commit)
            await publishing_hub.publisher.put(draft)
            await wait_until(lambda: len(handled) == number)  # noqa: B023 awaited in this round

        assert log.statements.count(PUBLISH.insert_events.sql) == EVENTS
        assert NOTIFY_QUERY.sql not in log.statements


async def test_publishers_at_once_notify_after_their_commit_and_for_every_service(
    hub: Hub, settings: Settings, database_urls: DatabaseUrls
) -> None:
    services = ["minu_keep", "minu_build"] * EVENTS
    async with open_hub(settings, database_urls) as publishing_hub, run_idle_workers(hub, "order.*") as handled:
        drafts = [EventDraft("minu_find", "order.paid", target=service) for service in services]
        await asyncio.gather(*map(publishing_hub.publisher.put, drafts))

        await wait_until(lambda: len(handled) == EVENTS)


async def test_an_idle_publisher_wakes_the_worker_of_its_own_process(hub: Hub) -> None:
    async with run_idle_workers(hub, "order.*") as handled:
        await hub.publisher.put(EventDraft("minu_find", "order.paid", target="minu_build"))

        await wait_until(lambda: len(handled) == 1)


async def test_an_event_that_was_not_recorded_notifies_no_process(hub: Hub, owner: Connection) -> None:
    heard: list[str] = []

    def hear(_connection: object, _pid: int, _channel: str, payload: object) -> None:
        heard.append(str(payload))

    await owner.add_listener(NOTIFY_CHANNEL, hear)
    draft = EventDraft("minu_find", "order.paid", target="minu_build", idempotency_key="k")
    for _ in range(2):
        await wait_until(lambda: hub.doorbell.can_notify_at_commit)
        await hub.publisher.put(draft)
    await owner.execute(f"select pg_notify('{NOTIFY_CHANNEL}', 'mark')")
    await wait_until(lambda: "mark" in heard)

    assert len([payload for payload in heard if "events/minu_build" in payload]) == 1


async def test_a_process_with_nothing_to_do_polls_seldom_under_load(
    hub: Hub, owner: Connection, settings: Settings, statement_log: tuple[StatementLog, DatabaseUrls]
) -> None:
    """It claims for its handlers, does not ask for rules where there are none, and scans less often."""
    log, urls = statement_log
    await owner.execute(
        "select setval('pabal.polling_until', (extract(epoch from clock_timestamp()) * 1000)::bigint + 55000)"
    )
    async with open_hub(settings, urls) as worker_hub, run_idle_workers(worker_hub, "order.*"):
        polling = worker_hub.doorbell.load_polling
        await wait_until(lambda: polling.is_polling and polling.is_idle)
        log.statements.clear()
        started = monotonic()
        await wait_until(lambda: names(log).count("claim") >= POLLS)
        seconds = monotonic() - started

        assert names(log).count("rules") == 0
        assert names(log).count("claim") <= seconds / IDLE_POLLING_INTERVAL + FROM_START
        assert names(log).count("scan") <= seconds / POLLED_SCAN_INTERVAL + FROM_START
        assert len(names(log)) <= 100 * seconds + FROM_START

        await owner.fetchval("select pabal.publish('hub', 'order.paid', target => 'minu_build')")
        await wait_until(lambda: not polling.is_idle)


async def test_a_pushed_event_is_found_by_its_wakeup(
    hub: Hub, settings: Settings, statement_log: tuple[StatementLog, DatabaseUrls]
) -> None:
    """Without a scan of the services; and a subscription that is added, paused or resumed counts at once."""
    log, urls = statement_log
    async with (
        run_receiver() as receiver,
        open_hub(settings, urls) as worker_hub,
        run_idle_workers(worker_hub, "never"),
    ):
        row = await publish_test_event(hub, "order.paid", "minu_keep")
        subscription, _ = await subscribe(hub, "minu_keep", "order.*", url=receiver.url)
        await wait_for_status(hub, row, "completed")
        await pause_subscription(hub, subscription)
        row = await publish_test_event(hub, "order.paid", "minu_keep")
        await resume(hub, subscription)
        await wait_for_status(hub, row, "completed")
        log.statements.clear()
        for _ in range(EVENTS):
            await wait_for_status(hub, await publish_test_event(hub, "order.paid", "minu_keep"), "completed")

        assert len(names(log)) <= 4 * EVENTS + FROM_START
        assert names(log).count("push targets") == EVENTS


async def test_an_event_that_a_rule_matches_wakes_the_rules_worker(
    hub: Hub, owner: Connection, settings: Settings, database_urls: DatabaseUrls
) -> None:
    await owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types) values ('hub', 'rule', '{order.*}')"
    )
    async with open_hub(settings, database_urls) as worker_hub, run_idle_workers(worker_hub, "never"):
        await publish_test_event(hub, "order.paid", "minu_keep")

        async def is_applied() -> bool:
            status = await owner.fetchval("select status from public.event_queue where target_service = 'hub'")
            return status == "completed"

        await wait_until(is_applied)
