"""Pushed events: the request, the outcome of each response, and changes of the subscription."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
import pytest
from standardwebhooks import Webhook

from outside.fake_network import FakeNetwork, Resolver
from pabal.core.errors import Invalid
from pabal.events.consume.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.events.consume.pull import Receipt, settle_claimed_events
from pabal.events.push.pusher import Pusher, PushResult
from pabal.events.subscriptions import (
    SubscriptionPatch,
    disable_subscription,
    rotate_subscription_secret,
    update_subscription,
)
from pabal.hub import DatabaseUrls, Hub
from pabal.keys.key import KeySet
from pabal.keys.keyring import KeyRing
from pabal.outside.http import HttpClient
from pabal.outside.ssrf import AllowedOrigins
from pabal.outside.webhook import post_webhook
from pabal.queue.outcome import Retry
from pabal.settings import Settings
from support.clusters import open_connection
from support.lane_under_test import Travel
from support.receiver import Receiver, Responder, hang, redirect_to, respond_with, run_receiver
from support.subscriptions import (
    ALL_ACCESS,
    TESTER,
    load_event,
    publish_test_event,
    reload_subscription,
    resume,
    run_workers,
    subscribe,
    wait_for_failures,
    wait_for_status,
)
from support.wait import wait_until

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def endpoint() -> AsyncGenerator[Receiver]:
    async with run_receiver() as server:
        yield server


async def claim(hub: Hub, service: str = "minu_build", limit: int = 10) -> list[ClaimedEvent]:
    async with hub.autocommit() as tx:
        return await LANE.claim(tx, limit, MINUTE, "tester", EventClaimFilter(service))


async def test_a_push_is_signed_and_has_the_fields_of_a_pulled_event(hub: Hub, endpoint: Receiver) -> None:
    _, secret = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    async with run_workers(hub):
        row = await publish_test_event(
            hub, "order.paid", payload={"이름": "파발"}, priority=3, traceparent=TRACE, correlation_id="c-1"
        )
        done = await wait_for_status(hub, row, "completed")
    [request] = endpoint.requests

    body = Webhook(secret).verify(request.body, dict(request.headers))
    assert body == {
        "id": str(row),
        "origin_id": str(row),
        "event_type": "order.paid",
        "source_service": "minu_find",
        "target_service": "minu_build",
        "payload": {"이름": "파발"},
        "priority": 3,
        "retry_count": 0,
        "max_retries": 7,
        "created_at": msgspec.to_builtins(done.created_at),
        "ordering_key": None,
        "correlation_id": "c-1",
        "traceparent": TRACE,
    }
    assert (request.method, request.headers["content-type"]) == ("POST", "application/json")
    assert (request.headers["webhook-id"], request.headers["traceparent"]) == (str(row), TRACE)
    assert done.processor_id is not None
    assert done.processor_id.startswith("push:")


async def test_a_repeated_delivery_keeps_its_id_and_uses_the_time_of_the_database(
    hub: Hub, database_urls: DatabaseUrls, endpoint: Receiver, travel: Travel
) -> None:
    await travel(timedelta(hours=3))
    await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    endpoint.script.append(respond_with(429, headers={"retry-after": "1"}))
    async with run_workers(hub):
        row = await publish_test_event(hub, "order.paid")
        await wait_for_status(hub, row, "completed")

    first, second = endpoint.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == str(row)
    assert (msgspec.json.decode(first.body)["retry_count"], msgspec.json.decode(second.body)["retry_count"]) == (0, 1)
    ahead = int(first.headers["webhook-timestamp"]) - datetime.now(UTC).timestamp()
    assert 10_700 < ahead < 10_900


@pytest.mark.parametrize(
    ("responder", "expected"),
    [
        (hang, Retry("no response within 1 s", None, "no_answer")),
        (respond_with(500, b"oh no"), Retry("HTTP 500: oh no", None, "http_500")),
        (respond_with(503, headers={"retry-after": "99999"}), Retry("HTTP 503", timedelta(hours=1), "http_503")),
        (respond_with(429, headers={"retry-after": "0"}), Retry("HTTP 429", timedelta(seconds=1), "http_429")),
    ],
    ids=["no response", "error", "long retry-after", "zero retry-after"],
)
async def test_a_failed_push_is_recorded_like_a_nack(
    hub: Hub, endpoint: Receiver, responder: Responder, expected: Retry
) -> None:
    await subscribe(hub, "minu_build", "order.*", url=endpoint.url, within=1)
    nacked = await publish_test_event(hub, "other.kind")
    [held] = await claim(hub)
    async with hub.transaction() as tx:
        receipt = Receipt(held.id, held.lease)
        assert await settle_claimed_events(tx, "minu_build", {receipt: Retry("no", timedelta(hours=1), "x")}) == {
            receipt
        }
    endpoint.responder = responder
    async with run_workers(hub):
        row = await publish_test_event(hub, "order.paid")
        failed = await wait_for_failures(hub, row)

    assert (failed.last_error, failed.error_code, failed.retry_count) == (expected.error, expected.code, 0)
    [pushed_failure], [nacked_failure] = (
        [*(failed.error_history or ())],
        [*((await load_event(hub, nacked)).error_history or ())],
    )
    assert msgspec.to_builtins(pushed_failure).keys() == msgspec.to_builtins(nacked_failure).keys()
    assert failed.next_retry_at is not None
    assert failed.processing_started_at is not None
    if expected.delay:
        waited = failed.next_retry_at - failed.processing_started_at
        assert expected.delay <= waited < expected.delay + timedelta(seconds=10)


async def test_a_redirect_is_not_followed(hub: Hub, endpoint: Receiver) -> None:
    await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    async with run_receiver() as other_endpoint, run_workers(hub):
        endpoint.responder = redirect_to(other_endpoint.url, 307)
        failed = await wait_for_failures(hub, await publish_test_event(hub, "order.paid"))

        assert other_endpoint.connections == 0
    assert failed.last_error == "HTTP 307: redirects are not followed"


async def test_a_410_of_a_former_url_does_not_disable_the_subscription(hub: Hub, endpoint: Receiver) -> None:
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    async with hub.transaction() as tx:
        gone = await disable_subscription(
            tx, subscription.id, "minu_build", "https://old.example/hook", "HTTP 410", TESTER
        )

    assert not gone
    assert (await reload_subscription(hub, subscription)).disabled_at is None


async def test_a_410_disables_the_subscription_and_counts_no_attempt(
    hub: Hub, database_urls: DatabaseUrls, endpoint: Receiver
) -> None:
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    endpoint.responder = respond_with(410, b"moved away")
    row = await publish_test_event(hub, "order.paid")
    async with run_workers(hub):

        async def is_disabled() -> bool:
            return (await reload_subscription(hub, subscription)).disabled_at is not None and (
                await load_event(hub, row)
            ).status == "pending"

        await wait_until(is_disabled)
        assert await hub.pusher.schedule() == []

    assert (await reload_subscription(hub, subscription)).disabled_reason == "HTTP 410: moved away"
    async with open_connection(database_urls.main) as conn:
        audit_rows = await conn.fetch(
            "select actor, action from pabal.audit_log where subject = $1 order by id", str(subscription.id)
        )
    assert [tuple(audit_row) for audit_row in audit_rows] == [
        ("tester", "subscription.added"),
        ("hub", "subscription.disabled"),
    ]
    [held] = await claim(hub)
    assert (held.id, held.attempt) == (row, 1)
    async with hub.transaction() as tx:
        await LANE.release(tx, [held])

    endpoint.responder = respond_with()
    await resume(hub, subscription)
    async with run_workers(hub):
        await wait_for_status(hub, row, "completed")


async def test_a_host_that_becomes_private_receives_nothing(hub: Hub) -> None:
    """The name is looked up again for each new connection."""
    network = FakeNetwork({})
    resolver = Resolver(["93.184.215.14"], ["10.0.0.1"])
    async with HttpClient(AllowedOrigins(), lookup=resolver, network=network) as outside:
        await outside.check_url("https://hook.example.org/")
        await subscribe(hub, "minu_build", "order.*", url="https://hook.example.org/")
        with pytest.raises(Invalid, match="url: resolves to an address that is not public"):
            await outside.check_url("https://hook.example.org/")
        async with run_workers(hub, Pusher(hub.db, hub.key_ring, partial(post_webhook, outside))):
            failed = await wait_for_failures(hub, await publish_test_event(hub, "order.paid"))

    assert (failed.last_error, failed.error_code) == (
        "not sent: url: resolves to an address that is not public",
        "not_sent",
    )
    assert network.connections == []


async def test_a_change_applies_to_the_next_event(hub: Hub, endpoint: Receiver) -> None:
    subscription, old = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    async with run_receiver() as other_endpoint, run_workers(hub):
        await wait_for_status(hub, await publish_test_event(hub, "order.paid"), "completed")
        async with hub.transaction() as tx:
            _, new = await rotate_subscription_secret(tx, hub.key_ring, subscription.id, ALL_ACCESS, TESTER)
            moved = SubscriptionPatch(url=other_endpoint.url, event_types=["cart.*"])
            await update_subscription(tx, subscription.id, ALL_ACCESS, moved, TESTER)
        unmatched = await publish_test_event(hub, "order.paid")
        await wait_for_status(hub, await publish_test_event(hub, "cart.filled"), "completed")

        [request] = other_endpoint.requests
        assert len(endpoint.requests) == 1
        for secret in (old, new):
            Webhook(secret).verify(request.body, dict(request.headers))
    assert (await load_event(hub, unmatched)).status == "pending"


async def test_a_day_later_only_the_new_secret_signs(hub: Hub, endpoint: Receiver, travel: Travel) -> None:
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    async with hub.transaction() as tx:
        await rotate_subscription_secret(tx, hub.key_ring, subscription.id, ALL_ACCESS, TESTER)
    async with run_workers(hub):
        await wait_for_status(hub, await publish_test_event(hub, "order.paid"), "completed")
        await travel(timedelta(hours=24))
        await wait_for_status(hub, await publish_test_event(hub, "order.paid"), "completed")

    signatures = [len(request.headers["webhook-signature"].split()) for request in endpoint.requests]
    assert signatures == [2, 1]


async def test_each_delivery_of_a_broadcast_has_its_own_retries_and_dead_letter(
    hub: Hub, database_urls: DatabaseUrls, endpoint: Receiver
) -> None:
    await subscribe(hub, "minu_frame", "order.*", url=endpoint.url)
    await subscribe(hub, "minu_keep", "order.*")
    async with run_receiver() as failing, run_workers(hub):
        failing.responder = respond_with(500)
        await subscribe(hub, "minu_build", "order.*", url=failing.url)
        parent = await publish_test_event(hub, "order.paid", None, max_retries=0)
        [held] = await claim(hub, "minu_keep")
        async with hub.transaction() as tx:
            await settle_claimed_events(tx, "minu_keep", {Receipt(held.id, held.lease): Retry("cannot")})

        async def all_ended() -> bool:
            async with open_connection(database_urls.main) as conn:
                return not await conn.fetchval(
                    "select exists (select from public.event_queue where processed_at is null)"
                )

        await wait_until(all_ended)

    async with open_connection(database_urls.main) as conn:
        rows = await conn.fetch("select target_service, status from public.event_queue where parent_id = $1", parent)
        dead_letters = await conn.fetch(
            "select e.target_service, l.error_message from public.dead_letter_queue l"
            " join public.event_queue e on e.id = l.original_event_id"
        )
    assert {tuple(row) for row in rows} == {
        ("minu_build", "failed"),
        ("minu_frame", "completed"),
        ("minu_keep", "failed"),
    }
    assert {tuple(row) for row in dead_letters} == {("minu_build", "HTTP 500"), ("minu_keep", "cannot")}


async def test_a_secret_that_cannot_be_decrypted_counts_no_attempt(hub: Hub, endpoint: Receiver) -> None:
    await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    row = await publish_test_event(hub, "order.paid")
    other_keys = KeyRing(KeySet.generate(datetime.now(UTC)))
    async with run_workers(hub, Pusher(hub.db, other_keys, partial(post_webhook, hub.http_client))):

        async def snoozed() -> bool:
            row_now = await load_event(hub, row)
            return row_now.next_retry_at is not None and row_now.status == "pending"

        await wait_until(snoozed)

    event_now = await load_event(hub, row)
    assert (event_now.retry_count, event_now.error_history) == (0, [])
    assert "no key decrypts" in (event_now.last_error or "")
    assert endpoint.requests == []


async def test_an_exception_in_send_is_a_failed_attempt(hub: Hub, endpoint: Receiver) -> None:
    await subscribe(hub, "minu_build", "order.*", url=endpoint.url)

    async def fail(*_: object, **__: object) -> PushResult:
        raise ZeroDivisionError("inside")

    async with run_workers(hub, Pusher(hub.db, hub.key_ring, fail)):
        failed = await wait_for_failures(hub, await publish_test_event(hub, "order.paid"))

    assert failed.last_error == "ZeroDivisionError: inside"
