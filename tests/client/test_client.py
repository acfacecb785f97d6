"""Both clients with a real hub: each test runs with the async and the sync one."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from client.connections import Connect, HubAddress, LossyProxy
from conftest import connection
from pabal.hub import DatabaseUrls, Hub
from pabal.tokens.revoke import revoke_service_tokens
from pabal_client import (
    AuthenticationError,
    ClientError,
    ConflictError,
    HubUnavailableError,
    NotFoundError,
    PayloadTooLargeError,
    PermissionDeniedError,
    ValidationFailedError,
)
from support.oauth_client import TESTER, register_oauth_service

pytestmark = pytest.mark.anyio

NUL = "\0"


async def test_an_event_goes_from_one_service_to_another(
    connect: Connect, shop: HubAddress, billing: HubAddress
) -> None:
    async with connect(shop) as seller, connect(billing) as payer:
        published = await seller.publish("order.placed", {"이름": "파발"}, target="billing", correlation_id="c-1")
        [event] = await payer.claim(wait=5.0)
        [end] = await payer.ack(event.receipt)
        story = await seller.get_event(published.id)

    assert (event.id, event.origin_id, event.attempt) == (published.id, published.id, 1)
    assert (event.event_type, event.source_service, event.payload) == ("order.placed", "shop", {"이름": "파발"})
    assert event.correlation_id == "c-1"
    assert end.held
    assert story["status"] == "completed"


async def test_a_receipt_can_be_settled_once(connect: Connect, shop: HubAddress, billing: HubAddress) -> None:
    async with connect(shop) as seller, connect(billing) as payer:
        published = await seller.publish("order.placed", target="billing")
        [event] = await payer.claim()
        [kept] = await payer.extend(event.receipt, lease=60)
        [first] = await payer.nack(event.receipt, error="no money", outcome="dead")
        [second] = await payer.ack(event.receipt)
        story = await seller.get_event(published.id)

    assert (kept.held, first.held, second.held) == (True, True, False)
    assert (story["status"], story["last_error"]) == ("failed", "no money")
    assert len(story["dead_letters"]) == 1


async def test_times_and_ids_are_serialized(connect: Connect, shop: HubAddress, billing: HubAddress) -> None:
    later, order = datetime.now(UTC) + timedelta(hours=1), uuid4()
    async with connect(shop) as seller, connect(billing) as payer:
        published = await seller.publish("order.placed", {"order": order}, target="billing", deliver_at=later)
        due_now = await payer.claim()
        story = await seller.get_event(published.id)

    assert due_now == []
    assert story["payload"] == {"order": str(order)}
    assert datetime.fromisoformat(story["next_retry_at"]) == later


async def test_an_event_can_be_cancelled(connect: Connect, shop: HubAddress, billing: HubAddress) -> None:
    async with connect(shop) as seller, connect(billing) as payer:
        published = await seller.publish("order.placed", target="billing")
        await seller.cancel(published.id)

        assert await payer.claim() == []
        with pytest.raises(ConflictError):
            await seller.cancel(published.id)


async def test_publish_many_keeps_the_order_and_an_invalid_event_fails_alone(
    connect: Connect, shop: HubAddress, billing: HubAddress
) -> None:
    events: list[dict[str, Any]] = [
        {"event_type": "a.b", "payload": {"n": n}, "target": "billing"} for n in range(1200)
    ]
    events[7]["event_type"] = "NOT A TYPE"
    events[1100]["payload"] = {"text": NUL}

    async with connect(shop) as seller, connect(billing) as payer:
        items = await seller.publish_many(events)
        claimed = [*await payer.claim(1000), *await payer.claim(1000)]

    assert [n for n, item in enumerate(items) if item.id is None] == [7, 1100]
    assert [type(items[n].error) for n in (7, 1100)] == [ValidationFailedError, ValidationFailedError]
    assert "event_type" in str(items[7].error)
    assert {event.id: event.payload["n"] for event in claimed} == {
        item.id: n for n, item in enumerate(items) if item.id
    }
    ids = [item.id for item in items if item.id]
    assert ids == sorted(ids), "recorded in another order"


async def test_publish_many_has_one_name_for_the_target(connect: Connect, shop: HubAddress) -> None:
    async with connect(shop) as seller:
        with pytest.raises(TypeError, match="an event with target_service; the option is target"):
            await seller.publish_many([{"event_type": "order.seen", "target_service": "billing"}])


async def test_publish_many_splits_large_batches(connect: Connect, shop: HubAddress) -> None:
    large = {"event_type": "a.b", "payload": {"text": "x" * 250_000}}
    huge = {"event_type": "a.b", "payload": {"text": "x" * 2_000_000}}

    async with connect(shop) as seller:
        items = await seller.publish_many([large] * 9 + [huge])
        nothing = await seller.publish_many([])

    assert [item.status for item in items] == [202] * 9 + [413]
    assert type(items[9].error) is PayloadTooLargeError
    assert nothing == []


async def test_an_api_error_has_status_code_and_detail(
    connect: Connect, hub: Hub, web: httpx2.AsyncClient, shop: HubAddress
) -> None:
    reader = await register_oauth_service(hub, web, "reader", "events:read")
    key = {"idempotency_key": "once"}
    async with connect(shop) as seller:
        with pytest.raises(ValidationFailedError) as invalid:
            await seller.publish("order.placed", priority=11)
        await seller.publish("order.placed", {"n": 1}, **key)
        with pytest.raises(ConflictError):
            await seller.publish("order.placed", {"n": 2}, **key)
        with pytest.raises(NotFoundError):
            await seller.get_event(uuid4())
        with pytest.raises(PayloadTooLargeError):
            await seller.publish("order.placed", {"text": "x" * 300_000})
        with pytest.raises(PermissionDeniedError):
            await seller.publish("order.placed", source="billing")
    async with connect(HubAddress(shop.url, reader.name, reader.secret)) as other:
        with pytest.raises(PermissionDeniedError):
            await other.claim()
    async with connect(HubAddress(shop.url, "shop", "wrong")) as stranger:
        with pytest.raises(AuthenticationError) as unknown:
            await stranger.claim()

    assert [mistake["field"] for mistake in invalid.value.mistakes] == ["priority"]
    assert (unknown.value.status, unknown.value.code) == (401, "invalid_client")


async def test_the_same_key_publishes_once(connect: Connect, shop: HubAddress) -> None:
    async with connect(shop) as seller:
        first = await seller.publish("order.placed", {"n": 1}, idempotency_key="once")
        second = await seller.publish("order.placed", {"n": 1}, idempotency_key="once")

    assert first.id == second.id


async def test_a_lost_response_publishes_once(
    connect: Connect, shop: HubAddress, billing: HubAddress, line: tuple[LossyProxy, str]
) -> None:
    between, address = line
    async with connect(HubAddress(address, shop.service, shop.secret)) as seller, connect(billing) as payer:
        await seller.publish("warm.up")
        between.lose = 2
        published = await seller.publish("order.placed", {"n": 1}, target="billing")
        claimed = await payer.claim()

    assert between.lose == 0
    assert [event.id for event in claimed] == [published.id]


async def test_a_revoked_token_is_renewed_and_the_caller_sees_nothing(
    connect: Connect, hub: Hub, database_urls: DatabaseUrls, shop: HubAddress
) -> None:
    async with connect(shop) as seller, connection(database_urls.main) as database:
        await seller.publish("order.placed")
        async with hub.transaction() as tx:
            await revoke_service_tokens(tx, "shop", TESTER)
        await asyncio.gather(*(seller.publish("order.placed") for _ in range(20)))
        issued = await database.fetchval("select count(*) from service_tokens where service_name = 'shop'")

    assert issued == 2, "twenty callers, one renewal"


async def test_secrets_are_not_in_reprs_errors_or_logs(
    connect: Connect, shop: HubAddress, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []
    async with connect(shop) as seller:
        await seller.publish("order.placed")
        texts.append(repr(vars(seller)) + repr(seller) + repr(vars(getattr(seller, "client", seller))))
        with pytest.raises(ClientError) as error:
            await seller.get_event("../nowhere")
        texts.append(repr(error.value) + str(error.value))
    for address, secret, kind in (
        ("http://127.0.0.1:1", shop.secret, HubUnavailableError),
        (shop.url, "wrong-secret", AuthenticationError),
    ):
        async with connect(HubAddress(address, "shop", secret)) as seller:
            with pytest.raises(kind) as error:
                await seller.publish("order.placed")
            texts.append(repr(error.value) + str(error.value))

    output = "".join(texts) + caplog.text
    assert "ConnectError" in output
    assert shop.url in output
    assert [value for value in (shop.secret, "wrong-secret", "eyJ", "pbr_") if value in output] == []
