"""An event that cannot be sent harms neither its receiver's circuit breaker nor other events."""

import asyncio
import errno
import socket
import threading
from collections.abc import AsyncGenerator
from datetime import timedelta
from functools import partial
from typing import Any

import httpcore2
import pytest

from outside.fake_network import FakeNetwork, Resolver
from pabal.events.push.circuit_breaker import FAILURE_THRESHOLD, FIRST_OPEN_DURATION
from pabal.events.push.pusher import Pusher
from pabal.events.subscriptions import webhook_secret_location
from pabal.hub import DatabaseUrls, Hub
from pabal.keys.envelope import encrypt_envelope
from pabal.outside.dns import RESOLVER_THREADS
from pabal.outside.http import MAX_CONNECTIONS, HttpClient, NotSent, NotSentCause
from pabal.outside.ssrf import AllowedOrigins
from pabal.outside.webhook import post_webhook
from pabal.queue.outcome import Unsent, UnsentScope
from pabal.settings import Settings
from support.clusters import open_connection
from support.lane_under_test import Travel
from support.receiver import Receiver, respond_after, respond_with, run_receiver
from support.subscriptions import (
    load_event,
    publish_test_event,
    reload_subscription,
    run_workers,
    subscribe,
    wait_for_failures,
    wait_for_status,
)
from support.wait import wait_until

pytestmark = pytest.mark.anyio

POISON_COUNT = 12
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def endpoint() -> AsyncGenerator[Receiver]:
    async with run_receiver() as server:
        yield server


@pytest.mark.parametrize("traceparent", [TRACE + "\n", "한글", "a\r\nx-injected: 1", "\u20ac", "x" * 5000])
async def test_an_event_with_an_unusable_traceparent_is_pushed_without_it(
    hub: Hub, database_urls: DatabaseUrls, endpoint: Receiver, traceparent: str
) -> None:
    """Events may come from plain SQL, so the sender relies on no check of the table."""
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    rows = [await publish_test_event(hub, "order.paid", traceparent=TRACE) for _ in range(POISON_COUNT)]
    async with open_connection(database_urls.main) as conn:
        await conn.execute("update public.event_queue set traceparent = $1", traceparent)
    async with run_workers(hub):
        for row in rows:
            await wait_for_status(hub, row, "completed")

    assert not [request for request in endpoint.requests if "traceparent" in request.headers]
    assert not [request for request in endpoint.requests if "x-injected" in request.headers]
    assert (await reload_subscription(hub, subscription)).failures == 0


def with_bad_header(hub: Hub) -> Any:
    """A sender that adds an invalid header to poisoned events, as a future header could."""

    async def send(url: str, *arguments: Any, body: bytes, **options: Any) -> Any:
        if b'"poison"' not in body:
            return await post_webhook(hub.http_client, url, *arguments, body=body, **options)
        sent = await hub.http_client.post(url, body, {"x-bad": "a\nb"}, time_limit=timedelta(seconds=5))
        assert isinstance(sent, NotSent)
        assert sent.cause is NotSentCause.REQUEST
        return Unsent(sent.error, "not_sent", UnsentScope.ROW)

    return send


async def test_an_event_that_can_never_be_sent_becomes_a_dead_letter_alone(
    hub: Hub, database_urls: DatabaseUrls, endpoint: Receiver
) -> None:
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    poisoned = [
        await publish_test_event(hub, "order.paid", payload={"kind": "poison"}, priority=1) for _ in range(POISON_COUNT)
    ]
    healthy = await publish_test_event(hub, "order.paid")
    async with run_workers(hub, Pusher(hub.db, hub.key_ring, with_bad_header(hub))):
        await wait_for_status(hub, healthy, "completed")
        for row in poisoned:
            await wait_for_status(hub, row, "failed")

    subscription_now = await reload_subscription(hub, subscription)
    assert (subscription_now.failures, subscription_now.open_until) == (0, None)
    async with open_connection(database_urls.main) as conn:
        letters = await conn.fetch("select distinct error_message, error_code from public.dead_letter_queue")
    assert [tuple(letter) for letter in letters] == [("the request headers are not valid HTTP", "not_sent")]


async def test_a_poisoned_probe_makes_way_for_the_next_event_at_once(
    hub: Hub, endpoint: Receiver, travel: Travel
) -> None:
    """The breaker is open for a true reason. Poisoned events die as probes; the first good one closes it."""
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    endpoint.responder = respond_with(503, headers={"retry-after": "3600"})
    async with run_workers(hub, Pusher(hub.db, hub.key_ring, with_bad_header(hub))):
        for row in [await publish_test_event(hub, "order.paid") for _ in range(FAILURE_THRESHOLD)]:
            await wait_for_failures(hub, row)
        poisoned = [
            await publish_test_event(hub, "order.paid", payload={"kind": "poison"}, priority=1)
            for _ in range(POISON_COUNT)
        ]
        healthy = await publish_test_event(hub, "order.paid", priority=9)
        endpoint.responder = respond_with()
        await travel(FIRST_OPEN_DURATION)
        for row in poisoned:
            await wait_for_status(hub, row, "failed")
        await wait_for_status(hub, healthy, "completed")

    subscription_now = await reload_subscription(hub, subscription)
    assert (subscription_now.failures, subscription_now.open_until) == (0, None)


async def test_each_probe_is_another_event(hub: Hub, endpoint: Receiver, travel: Travel) -> None:
    """One event that the receiver always refuses does not keep the breaker open for the others."""
    await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    endpoint.responder = respond_with(500)
    async with run_workers(hub):
        refused = await publish_test_event(hub, "order.paid", priority=1, max_retries=10)
        for row in [await publish_test_event(hub, "order.paid", priority=1) for _ in range(FAILURE_THRESHOLD - 1)]:
            await wait_for_failures(hub, row)
        await wait_for_failures(hub, refused)
    others = [await publish_test_event(hub, "order.late", priority=5) for _ in range(3)]
    endpoint.requests.clear()
    async with run_workers(hub):
        for probes in range(1, len(others) + 1):
            await travel(timedelta(minutes=10))  # the failed events are due again as well
            await endpoint.wait_for_requests(probes)
            await until_settled(hub, others, probes)

    probed = {request.headers["webhook-id"] for request in endpoint.requests}
    assert probed == {str(row) for row in others}


async def until_settled(hub: Hub, rows: list[Any], count: int) -> None:
    async def is_settled() -> bool:
        events = [await load_event(hub, row) for row in rows]
        return sum(len(row.error_history or ()) for row in events) == count and all(
            row.status == "pending" for row in events
        )

    await wait_until(is_settled)


async def test_a_refused_url_does_not_count_against_the_receiver_and_is_not_retried_for_ever(hub: Hub) -> None:
    network, resolver = FakeNetwork({}), Resolver(*[["10.0.0.1"]] * 100)
    async with HttpClient(AllowedOrigins(), lookup=resolver, network=network) as outside:
        subscription, _ = await subscribe(hub, "minu_build", "order.*", url="https://hook.example.org/")
        rows = [await publish_test_event(hub, "order.paid", max_retries=0) for _ in range(FAILURE_THRESHOLD + 1)]
        async with run_workers(hub, Pusher(hub.db, hub.key_ring, partial(post_webhook, outside))):
            for row in rows:
                failed = await wait_for_status(hub, row, "failed")
                assert failed.last_error == "not sent: url: resolves to an address that is not public"

    subscription_now = await reload_subscription(hub, subscription)
    assert (subscription_now.failures, subscription_now.open_until) == (0, None)


async def test_a_hub_without_file_descriptors_blames_no_receiver_and_spends_no_attempt(hub: Hub) -> None:
    class ExhaustedNetwork(httpcore2.AsyncNetworkBackend):
        async def connect_tcp(self, *_: Any, **__: Any) -> Any:
            raise httpcore2.ConnectError from OSError(errno.EMFILE, "Too many open files")

    async with HttpClient(
        AllowedOrigins(), lookup=Resolver(*[["93.184.215.14"]] * 100), network=ExhaustedNetwork()
    ) as outside:
        subscription, _ = await subscribe(hub, "minu_build", "order.*", url="https://hook.example.org/")
        rows = [await publish_test_event(hub, "order.paid") for _ in range(FAILURE_THRESHOLD + 1)]
        async with run_workers(hub, Pusher(hub.db, hub.key_ring, partial(post_webhook, outside))):

            async def all_snoozed() -> bool:
                events = [await load_event(hub, row) for row in rows]
                return all(row.next_retry_at is not None and row.status == "pending" for row in events)

            await wait_until(all_snoozed)

    for row in rows:
        event_now = await load_event(hub, row)
        assert (event_now.retry_count, event_now.error_history) == (0, [])
    assert (await reload_subscription(hub, subscription)).failures == 0


async def test_waiting_for_a_connection_of_the_pool_is_no_failure_of_the_receiver(endpoint: Receiver) -> None:
    release = asyncio.Event()
    endpoint.responder = respond_after(release)
    async with HttpClient(AllowedOrigins.of(["http://127.0.0.1"])) as outside, asyncio.TaskGroup() as group:
        for _ in range(MAX_CONNECTIONS):
            group.create_task(outside.post(endpoint.url, b"{}", {}, time_limit=timedelta(minutes=1)))
        await endpoint.wait_for_requests(MAX_CONNECTIONS)
        sent = await outside.post(endpoint.url, b"{}", {}, time_limit=timedelta(seconds=0.05))
        release.set()

    assert sent == NotSent("no free connection within 0.05 s", NotSentCause.CLIENT)


@pytest.mark.parametrize("secret", ["whsec_!", "", "whsec_한"])
async def test_a_secret_that_cannot_sign_is_a_fault_of_the_target(hub: Hub, endpoint: Receiver, secret: str) -> None:
    async with HttpClient(AllowedOrigins.of(["http://127.0.0.1"])) as outside:
        sent = await post_webhook(
            outside,
            endpoint.url,
            [secret],
            message_id="1",
            sent_at=(await subscribe(hub, "minu_build", "order.*"))[0].created_at,
            body=b"{}",
            time_limit=timedelta(seconds=5),
        )

    assert sent == Unsent("the signing secret is not valid", "secret_invalid", UnsentScope.TARGET)


async def test_events_for_a_secret_that_cannot_sign_become_dead_letters(
    hub: Hub, database_urls: DatabaseUrls, endpoint: Receiver
) -> None:
    """After the normal attempts, so that operators see them; they waited for ever before."""
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    location = webhook_secret_location(subscription.id)
    secret = encrypt_envelope(hub.key_ring, "whsec_!", location)
    async with open_connection(database_urls.main) as conn:
        await conn.execute("update pabal.subscriptions set secret = $1 where id = $2", secret, subscription.id)
        async with run_workers(hub):
            await wait_for_status(hub, await publish_test_event(hub, "order.paid", max_retries=0), "failed")
        letters = await conn.fetch("select error_message, error_code from public.dead_letter_queue")

    assert [tuple(letter) for letter in letters] == [("the signing secret is not valid", "secret_invalid")]
    assert endpoint.requests == []
    assert (await reload_subscription(hub, subscription)).failures == 0


async def test_silent_names_of_some_receivers_are_not_blamed_on_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """All lookup threads wait for name servers that do not respond."""
    release, started = threading.Event(), threading.Semaphore(0)

    def silent_getaddrinfo(*_: Any, **__: Any) -> Any:
        started.release()
        release.wait()
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", silent_getaddrinfo)
    async with HttpClient(AllowedOrigins()) as outside, asyncio.TaskGroup() as group:
        for number in range(RESOLVER_THREADS):
            url = f"https://a{number}.silent.example/"
            group.create_task(outside.post(url, b"{}", {}, time_limit=timedelta(seconds=1)))
        for _ in range(RESOLVER_THREADS):
            await asyncio.to_thread(started.acquire)
        sent = await outside.post("https://hook.example.org/", b"{}", {}, time_limit=timedelta(minutes=1))
        release.set()

    assert sent == NotSent("the hub has no free lookup thread, socket or memory", NotSentCause.CLIENT)
