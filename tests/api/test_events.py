"""The event endpoints: validation, visibility, lists and permissions."""

from typing import Any
from uuid import uuid4

import httpx2
import pytest

from pabal.events.dead_letters.dead_letters import resolve_dead_letter
from pabal.events.publish.publish import MAX_EVENT_PAYLOAD_BYTES
from pabal.hub import Hub
from pabal.web.request import NUL_MESSAGE
from support.clusters import Connection
from support.event_api import Service, connect_service
from support.failed_events import MINA
from support.oauth_client import bearer

pytestmark = pytest.mark.anyio

COUNT = "select count(*) from public.event_queue where source_service <> 'hub'"


@pytest.fixture
async def shop(hub: Hub, web: httpx2.AsyncClient) -> Service:
    return await connect_service(hub, web, "shop")


WRONG: tuple[tuple[str, Any], ...] = (
    ("event_type", ""),
    ("event_type", "Order.Paid"),
    ("event_type", "order..paid"),
    ("event_type", "order.paid\n"),
    ("event_type", "order.*"),
    ("event_type", "o" * 129),
    ("event_type", 7),
    ("event_type", None),
    ("source_service", "Not A Name"),
    ("target_service", "nobody"),
    ("target_service", "Not A Name"),
    ("target_service", 7),
    ("payload", []),
    ("payload", "text"),
    ("payload", None),
    ("priority", 0),
    ("priority", 11),
    ("priority", "urgent"),
    ("priority", 1.5),
    ("priority", True),
    ("max_retries", -1),
    ("max_retries", 101),
    ("max_retries", "3"),
    ("deliver_at", "tomorrow"),
    ("deliver_at", "2030-01-01T00:00:00"),
    ("deliver_at", 0),
    ("deliver_at", "0001-01-01T00:00:00+14:00"),
    ("expires_at", "2030-02-30T00:00:00Z"),
    ("expires_at", "9999-12-31T23:59:59-14:00"),
    ("idempotency_key", ""),
    ("idempotency_key", "k" * 256),
    ("ordering_key", ""),
    ("ordering_key", "k" * 256),
    ("correlation_id", ""),
    ("correlation_id", "k" * 256),
    ("traceparent", "00-0-0-00"),
    ("surprise", 1),
)


async def test_an_invalid_field_is_named(shop: Service, owner: Connection) -> None:
    for field, value in WRONG:
        request: dict[str, Any] = {"event_type": "order.paid", "target_service": "shop", field: value}
        assert (field, value, await shop.invalid_fields(**request)) == (field, value, [field])
    assert await shop.invalid_fields() == ["event_type"]

    assert await owner.fetchval(COUNT) == 0


UNREADABLE = {
    "nothing": b"",
    "not an object": b"[]",
    "truncated": b'{"event_type": "order.paid"',
    "two values": b'{"event_type": "order.paid"} {}',
    "NUL": rb'{"event_type": "order.paid", "payload": {"n": "\u0000"}}',
    "a raw NUL": b'{"event_type": "order.paid", "payload": {"n": "\0"}}',
    "a lone surrogate": rb'{"event_type": "order.paid", "payload": {"n": "\ud800"}}',
    "half a pair": rb'{"event_type": "order.paid", "payload": {"n": "\ud800 and so on"}}',
    "a lone surrogate in a key": rb'{"event_type": "order.paid", "payload": {"\udc00": 1}}',
    "not UTF-8": b'{"event_type": "order.paid", "payload": {"n": "\xff"}}',
    "not UTF-8 in a key": b'{"event_type": "order.paid", "payload": {"\xff": 1}}',
    "beyond numbers": b'{"event_type": "order.paid", "payload": {"n": 1e400}}',
    "beyond digits": b'{"event_type": "order.paid", "payload": {"n": ' + b"1" * 5000 + b"}}",
    "not a number": b'{"event_type": "order.paid", "payload": {"n": NaN}}',
    "nested too deeply": b'{"event_type": "order.paid", "payload": ' + b'{"n":' * 5000 + b"1" + b"}" * 5001,
}


async def test_an_unreadable_body_is_refused(shop: Service, owner: Connection) -> None:
    for name, content in UNREADABLE.items():
        problem = await shop.call("POST", "events", status=400, content=content)
        assert (name, problem["mistakes"][0]["field"]) == (
            name,
            "payload" if "beyond" in name or "UTF" in name or name == "NUL" else "body",
        )

    assert await owner.fetchval(COUNT) == 0


async def test_an_unreadable_item_of_a_batch_fails_alone(shop: Service, owner: Connection) -> None:
    bad = [UNREADABLE["not UTF-8"], UNREADABLE["beyond numbers"], b'{"event_type": "\xff"}']
    content = b'{"events": [%s]}' % b",".join([b'{"event_type": "order.sent"}', *bad, b'{"event_type": "order.sent"}'])

    results = (await shop.call("POST", "events/batch", content=content))["results"]

    assert [result["status"] for result in results] == [202, 400, 400, 400, 202]
    assert [result["detail"].partition(":")[0] for result in results[1:4]] == ["payload", "payload", "event"]
    assert await owner.fetchval(COUNT) == 2


async def test_an_item_with_nul_fails_alone_and_names_its_field(shop: Service, owner: Connection) -> None:
    good = b'{"event_type": "order.sent", "payload": {"path": "C:\\\\u0000"}}'
    bad = [
        rb'{"event_type": "order.sent", "payload": {"deep": [{"n": "a\u0000b"}]}}',
        rb'{"event_type": "order.sent", "payload": {"\u0000": 1}}',
        rb'{"event_type": "order.sent", "ordering_key": "\u0000"}',
        rb'{"event_type": "order.sent", "\u0000": 1}',
        rb'"\u0000"',
    ]
    content = b'{"events": [%s]}' % b",".join([good, *bad, good])

    results = (await shop.call("POST", "events/batch", content=content))["results"]

    assert [result["status"] for result in results] == [202, 400, 400, 400, 400, 400, 202]
    fields = ["payload", "payload", "ordering_key", "event", "event"]
    assert [result["detail"] for result in results[1:6]] == [f"{field}: {NUL_MESSAGE}" for field in fields]
    assert await owner.fetchval(COUNT) == 2


async def test_unusual_valid_json_is_stored_unchanged(shop: Service) -> None:
    """The last of duplicate keys counts, as in PostgreSQL; depth and digits are kept."""
    deep = b'{"n":' * 64 + b"1" + b"}" * 64
    digits = b'{"n": 12345678901234567890123, "n": 12345678901234567890124, "\xed\x95\x9c": "\\ud83d\\udc0e"}'
    content = b'{"events": [{"event_type": "no", "event_type": "a.deep", "target_service": "shop", "payload": %s}, '
    content += b'{"event_type": "a.digits", "target_service": "shop", "payload": %s}]}'
    await shop.call("POST", "events/batch", content=content % (deep, digits))

    first, second = sorted(await shop.claim(), key=lambda event: event["event_type"])

    assert first["event_type"] == "a.deep"
    assert second["payload"] == {"n": 12345678901234567890124, "한": "🐎"}
    assert str(first["payload"]).count("n") == 64
    assert len((await shop.call("GET", "events"))["items"]) == 2


async def test_a_payload_has_at_most_256_kibibytes(shop: Service, owner: Connection) -> None:
    max_text = MAX_EVENT_PAYLOAD_BYTES - len(b'{"n": ""}')
    body = '{"event_type": "order.paid", "payload": {"n": "%s"}}'

    await shop.call("POST", "events", status=202, content=body % ("x" * max_text))
    problem = await shop.call("POST", "events", status=413, content=body % ("x" * (max_text + 1)))

    assert (problem["code"], MAX_EVENT_PAYLOAD_BYTES) == ("too_large", 262_144)
    assert await owner.fetchval(COUNT) == 1


async def test_a_service_cannot_publish_as_another_source(shop: Service, owner: Connection) -> None:
    await shop.publish(source_service="shop")
    problem = await shop.publish(source_service="minu_find", status=403)

    assert problem["code"] == "forbidden"
    assert problem["detail"].startswith("source_service")
    assert await owner.fetchval(COUNT) == 1


async def test_a_priority_may_be_a_name(shop: Service) -> None:
    for word, number in (("critical", 1), ("high", 3), ("normal", 5), ("low", 7)):
        event = await shop.publish(priority=word)
        assert (await shop.get_event(event["id"]))["priority"] == number


async def test_an_event_is_visible_to_source_targets_and_admins(
    hub: Hub, web: httpx2.AsyncClient, shop: Service
) -> None:
    target, receiver, stranger = [await connect_service(hub, web, name) for name in ("target", "receiver", "stranger")]
    admin = await connect_service(hub, web, "admin", "hub:admin", "write")
    await web.post("/v1/subscriptions", json={"event_types": ["order.*"]}, headers=receiver.headers)
    await web.post("/v1/subscriptions", json={"event_types": ["order.sent"]}, headers=target.headers)
    targeted = (await shop.publish(target_service="target"))["id"]
    broadcast = (await shop.publish("order.sent"))["id"]

    statuses = {
        service.name: [
            (await web.get(f"/v1/queue/events/{row}", headers=service.headers)).status_code
            for row in (targeted, broadcast)
        ]
        for service in (shop, target, receiver, stranger, admin)
    }
    assert statuses == {
        "shop": [200, 200],
        "target": [200, 200],
        "receiver": [404, 200],
        "stranger": [404, 404],
        "admin": [200, 200],
    }
    deliveries = {
        service.name: {item["target_service"] for item in (await service.get_event(broadcast))["deliveries"]}
        for service in (shop, receiver, admin)
    }
    assert deliveries == {"shop": {"target", "receiver"}, "receiver": {"receiver"}, "admin": {"target", "receiver"}}
    listed = {
        service.name: sorted(item["target_service"] or "" for item in (await service.call("GET", "events"))["items"])
        for service in (target, receiver, stranger)
    }
    assert listed == {"target": ["target", "target"], "receiver": ["receiver"], "stranger": []}
    await stranger.get_event(str(uuid4()), status=404)
    assert (await stranger.call("GET", "events/7", status=400))["mistakes"][0]["field"] == "id"


async def test_the_trace_shows_resolution_notes_only_to_admins(
    hub: Hub, web: httpx2.AsyncClient, shop: Service, owner: Connection
) -> None:
    admin = await connect_service(hub, web, "admin", "write", "hub:admin")
    event = (await shop.publish(target_service="shop"))["id"]
    await shop.nack((await shop.claim(limit=1))[0], outcome="dead", error="no such order")
    letter = await owner.fetchval("select id from dead_letter_queue")
    async with hub.transaction() as tx:
        await resolve_dead_letter(tx, letter, MINA, "between us")

    service_view, admin_view = await shop.get_event(event), await admin.get_event(event)

    died = f"moved to the dead letters: no such order; dead letter {letter}"
    assert [(entry["kind"], entry["says"]) for entry in service_view["trace"]] == [
        ("published", "order.paid published by shop for shop"),
        ("failed", "attempt 1 by pull:shop failed: no such order"),
        ("died", died),
        ("resolved", "dead letter resolved by operator:mina"),
    ]
    assert admin_view["trace"][-1]["says"] == "dead letter resolved by operator:mina: between us"
    assert [entry["at"] for entry in service_view["trace"]] == sorted(entry["at"] for entry in service_view["trace"])


async def test_a_list_has_filters_and_pages(shop: Service) -> None:
    types = [f"order.n{number % 2}" for number in range(5)]
    await shop.batch(*({"event_type": item, "target_service": "shop"} for item in types), {"event_type": "order_n0"})
    claimed = (await shop.claim(limit=1))[0]
    await shop.nack(claimed, outcome="dead")

    async def listed(**query: Any) -> list[str]:
        return [item["event_type"] for item in (await shop.call("GET", "events", params=query))["items"]]

    assert await listed() == ["order_n0", *types[::-1]]
    assert await listed(type="order.*") == types[::-1]
    assert await listed(type="order_n0") == ["order_n0"]
    assert await listed(type="*n1") == ["order.n1", "order.n1"]
    assert await listed(status="failed") == [claimed["event_type"]]
    assert await listed(target="shop", status="completed") == []
    assert await listed(source="shop", type="%") == []
    ids: list[str] = []
    page = await shop.call("GET", "events", params={"limit": 4})
    while True:
        ids += [item["id"] for item in page["items"]]
        if page["cursor"] is None:
            break
        page = await shop.call("GET", "events", params={"limit": 4, "cursor": page["cursor"]})
    assert len(ids) == len({*ids}) == 6
    for wrong in ({"status": "lost"}, {"limit": 0}, {"limit": 101}, {"cursor": "x"}, {"surprise": "1"}):
        problem = await shop.call("GET", "events", status=400, params=wrong)
        assert [item["field"] for item in problem["mistakes"]] == [*wrong]


INSERT_MANY = """
insert into public.event_queue (id, event_type, source_service, target_service, status, created_at)
select pabal.uuid7(), 'order.paid', s, t, 'cancelled', pabal.now()
from unnest('{shop,target}'::text[]) s, unnest('{shop,target}'::text[]) t, generate_series(1, 10000)
where s <> t
"""


async def test_a_rare_event_is_found_after_several_empty_pages(
    hub: Hub, web: httpx2.AsyncClient, shop: Service, owner: Connection
) -> None:
    target = await connect_service(hub, web, "target", "events:read")
    admin = await connect_service(hub, web, "admin", "hub:admin", "events:read")
    rare = (await shop.publish("cart.lost", target_service="target"))["id"]
    await owner.execute(INSERT_MANY)

    for service in (shop, target, admin):
        query, pages = {"type": "cart.lost"}, 0
        while True:
            page = await service.call("GET", "events", params=query)
            pages += 1
            if page["items"] or page["cursor"] is None:
                break
            query |= {"cursor": page["cursor"]}
        assert [item["id"] for item in page["items"]] == [rare]
        assert pages > 1, "a page must not scan all rows"


async def test_each_endpoint_requires_its_permission(hub: Hub, web: httpx2.AsyncClient) -> None:
    reader = await connect_service(hub, web, "reader", "events:read")

    await reader.call("GET", "events")
    for method, path in (("POST", "events"), ("POST", "events/batch"), ("POST", "claim"), ("POST", "ack")):
        problem = await reader.call(method, path, status=403, json={})
        assert problem["code"] == "insufficient_scope"
    assert (await web.get("/v1/queue/events", headers=bearer("nonsense"))).status_code == 401
