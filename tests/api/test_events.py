"""The event doors: what they refuse and by which field, who sees what, and that nothing is half-done."""

from typing import Any
from uuid import uuid4

import httpx2
import pytest

from pabal.events.dead_letters import resolve_dead_letter
from pabal.events.publish import MAX_EVENT_PAYLOAD_BYTES
from pabal.hub import Hub
from pabal.web.request import NUL_MESSAGE
from support.clusters import Connection
from support.event_api import Service, come
from support.failed_events import MINA
from support.oauth_client import bearer

pytestmark = pytest.mark.anyio

COUNT = "select count(*) from public.event_queue where source_service <> 'hub'"


@pytest.fixture
async def shop(hub: Hub, web: httpx2.AsyncClient) -> Service:
    return await come(hub, web, "shop")


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


async def test_every_field_that_is_wrong_is_named(shop: Service, owner: Connection) -> None:
    for field, value in WRONG:
        brought: dict[str, Any] = {"event_type": "order.paid", "target_service": "shop", field: value}
        assert (field, value, await shop.mistakes(**brought)) == (field, value, [field])
    assert await shop.mistakes() == ["event_type"]

    assert await owner.fetchval(COUNT) == 0


UNREADABLE = {
    "nothing": b"",
    "not an object": b"[]",
    "half of it": b'{"event_type": "order.paid"',
    "two": b'{"event_type": "order.paid"} {}',
    "NUL": rb'{"event_type": "order.paid", "payload": {"n": "\u0000"}}',
    "a raw NUL": b'{"event_type": "order.paid", "payload": {"n": "\0"}}',
    "a lone surrogate": rb'{"event_type": "order.paid", "payload": {"n": "\ud800"}}',
    "half a pair": rb'{"event_type": "order.paid", "payload": {"n": "\ud800 and so on"}}',
    "a lone surrogate in a key": rb'{"event_type": "order.paid", "payload": {"\udc00": 1}}',
    "not UTF-8": b'{"event_type": "order.paid", "payload": {"n": "\xff"}}',
    "not UTF-8 in a key": b'{"event_type": "order.paid", "payload": {"\xff": 1}}',
    "beyond numbers": b'{"event_type": "order.paid", "payload": {"n": 1e400}}',
    "beyond digits": b'{"event_type": "order.paid", "payload": {"n": ' + b"1" * 5000 + b"}}",
    "no number": b'{"event_type": "order.paid", "payload": {"n": NaN}}',
    "nested to the skies": b'{"event_type": "order.paid", "payload": ' + b'{"n":' * 5000 + b"1" + b"}" * 5001,
}


async def test_what_cannot_be_read_back_is_not_taken(shop: Service, owner: Connection) -> None:
    for name, content in UNREADABLE.items():
        refused = await shop.ask("POST", "events", status=400, content=content)
        assert (name, refused["mistakes"][0]["field"]) == (
            name,
            "payload" if "beyond" in name or "UTF" in name or name == "NUL" else "body",
        )

    assert await owner.fetchval(COUNT) == 0


async def test_what_one_of_a_batch_carries_is_its_own_affair(shop: Service, owner: Connection) -> None:
    bad = [UNREADABLE["not UTF-8"], UNREADABLE["beyond numbers"], b'{"event_type": "\xff"}']
    content = b'{"events": [%s]}' % b",".join([b'{"event_type": "order.sent"}', *bad, b'{"event_type": "order.sent"}'])

    results = (await shop.ask("POST", "events/batch", content=content))["results"]

    assert [each["status"] for each in results] == [202, 400, 400, 400, 202]
    assert [each["detail"].partition(":")[0] for each in results[1:4]] == ["payload", "payload", "event"]
    assert await owner.fetchval(COUNT) == 2


async def test_a_nul_in_one_of_a_batch_is_named_there_and_the_others_are_recorded(
    shop: Service, owner: Connection
) -> None:
    good = b'{"event_type": "order.sent", "payload": {"path": "C:\\\\u0000"}}'
    bad = [
        rb'{"event_type": "order.sent", "payload": {"deep": [{"n": "a\u0000b"}]}}',
        rb'{"event_type": "order.sent", "payload": {"\u0000": 1}}',
        rb'{"event_type": "order.sent", "ordering_key": "\u0000"}',
        rb'{"event_type": "order.sent", "\u0000": 1}',
        rb'"\u0000"',
    ]
    content = b'{"events": [%s]}' % b",".join([good, *bad, good])

    results = (await shop.ask("POST", "events/batch", content=content))["results"]

    assert [each["status"] for each in results] == [202, 400, 400, 400, 400, 400, 202]
    fields = ["payload", "payload", "ordering_key", "event", "event"]
    assert [each["detail"] for each in results[1:6]] == [f"{field}: {NUL_MESSAGE}" for field in fields]
    assert await owner.fetchval(COUNT) == 2


async def test_odd_but_good_json_arrives_as_it_was_meant(shop: Service) -> None:
    """A key given twice counts as PostgreSQL counts it: the last time. Depth and digits come back whole."""
    deep = b'{"n":' * 400 + b"1" + b"}" * 400
    digits = b'{"n": 12345678901234567890123, "n": 12345678901234567890124, "\xed\x95\x9c": "\\ud83d\\udc0e"}'
    content = b'{"events": [{"event_type": "no", "event_type": "a.deep", "target_service": "shop", "payload": %s}, '
    content += b'{"event_type": "a.digits", "target_service": "shop", "payload": %s}]}'
    await shop.ask("POST", "events/batch", content=content % (deep, digits))

    first, second = sorted(await shop.claim(), key=lambda event: event["event_type"])

    assert first["event_type"] == "a.deep"
    assert second["payload"] == {"n": 12345678901234567890124, "한": "🐎"}
    assert str(first["payload"]).count("n") == 400
    assert len((await shop.ask("GET", "events"))["items"]) == 2


async def test_a_payload_has_256_kibibytes_and_not_one_more(shop: Service, owner: Connection) -> None:
    room = MAX_EVENT_PAYLOAD_BYTES - len(b'{"n": ""}')
    body = '{"event_type": "order.paid", "payload": {"n": "%s"}}'

    await shop.ask("POST", "events", status=202, content=body % ("x" * room))
    refused = await shop.ask("POST", "events", status=413, content=body % ("x" * (room + 1)))

    assert (refused["code"], MAX_EVENT_PAYLOAD_BYTES) == ("too_large", 262_144)
    assert await owner.fetchval(COUNT) == 1


async def test_nobody_speaks_for_somebody_else(shop: Service, owner: Connection) -> None:
    await shop.publish(source_service="shop")
    refused = await shop.publish(source_service="minu_find", status=403)

    assert refused["code"] == "forbidden"
    assert refused["detail"].startswith("source_service")
    assert await owner.fetchval(COUNT) == 1


async def test_a_priority_may_be_a_word(shop: Service) -> None:
    for word, number in (("critical", 1), ("high", 3), ("normal", 5), ("low", 7)):
        event = await shop.publish(priority=word)
        assert (await shop.show(event["id"]))["priority"] == number


async def test_an_event_is_seen_by_those_it_concerns(hub: Hub, web: httpx2.AsyncClient, shop: Service) -> None:
    target, receiver, stranger = [await come(hub, web, name) for name in ("target", "receiver", "stranger")]
    admin = await come(hub, web, "admin", "hub:admin", "write")
    await web.post("/v1/subscriptions", json={"event_types": ["order.*"]}, headers=receiver.headers)
    await web.post("/v1/subscriptions", json={"event_types": ["order.sent"]}, headers=target.headers)
    one = (await shop.publish(target_service="target"))["id"]
    to_all = (await shop.publish("order.sent"))["id"]

    seen = {
        who.name: [(await web.get(f"/v1/queue/events/{row}", headers=who.headers)).status_code for row in (one, to_all)]
        for who in (shop, target, receiver, stranger, admin)
    }
    assert seen == {
        "shop": [200, 200],
        "target": [200, 200],
        "receiver": [404, 200],
        "stranger": [404, 404],
        "admin": [200, 200],
    }
    told = {
        who.name: {each["target_service"] for each in (await who.show(to_all))["deliveries"]}
        for who in (shop, receiver, admin)
    }
    assert told == {"shop": {"target", "receiver"}, "receiver": {"receiver"}, "admin": {"target", "receiver"}}
    listed = {
        who.name: sorted(each["target_service"] or "" for each in (await who.ask("GET", "events"))["items"])
        for who in (target, receiver, stranger)
    }
    assert listed == {"target": ["target", "target"], "receiver": ["receiver"], "stranger": []}
    await stranger.show(str(uuid4()), status=404)
    assert (await stranger.ask("GET", "events/7", status=400))["mistakes"][0]["field"] == "id"


async def test_an_event_tells_its_story_but_an_operators_note_only_to_operators(
    hub: Hub, web: httpx2.AsyncClient, shop: Service, owner: Connection
) -> None:
    admin = await come(hub, web, "admin", "write", "hub:admin")
    event = (await shop.publish(target_service="shop"))["id"]
    await shop.nack((await shop.claim(limit=1))[0], outcome="dead", error="no such order")
    letter = await owner.fetchval("select id from dead_letter_queue")
    async with hub.transaction() as tx:
        await resolve_dead_letter(tx, letter, MINA, "between us")

    told, whole = await shop.show(event), await admin.show(event)

    died = f"moved to the dead letters: no such order; dead letter {letter}"
    assert [(each["kind"], each["says"]) for each in told["trace"]] == [
        ("published", "order.paid published by shop for shop"),
        ("failed", "attempt 1 by pull:shop failed: no such order"),
        ("died", died),
        ("resolved", "dead letter resolved by operator:mina"),
    ]
    assert whole["trace"][-1]["says"] == "dead letter resolved by operator:mina: between us"
    assert [each["at"] for each in told["trace"]] == sorted(each["at"] for each in told["trace"])


async def test_a_list_is_filtered_and_comes_in_pages(shop: Service) -> None:
    types = [f"order.n{number % 2}" for number in range(5)]
    await shop.batch(*({"event_type": each, "target_service": "shop"} for each in types), {"event_type": "order_n0"})
    claimed = (await shop.claim(limit=1))[0]
    await shop.nack(claimed, outcome="dead")

    async def listed(**query: Any) -> list[str]:
        return [each["event_type"] for each in (await shop.ask("GET", "events", params=query))["items"]]

    assert await listed() == ["order_n0", *types[::-1]]
    assert await listed(type="order.*") == types[::-1]
    assert await listed(type="order_n0") == ["order_n0"]
    assert await listed(type="*n1") == ["order.n1", "order.n1"]
    assert await listed(status="failed") == [claimed["event_type"]]
    assert await listed(target="shop", status="completed") == []
    assert await listed(source="shop", type="%") == []
    seen: list[str] = []
    page = await shop.ask("GET", "events", params={"limit": 4})
    while True:
        seen += [each["id"] for each in page["items"]]
        if page["cursor"] is None:
            break
        page = await shop.ask("GET", "events", params={"limit": 4, "cursor": page["cursor"]})
    assert len(seen) == len({*seen}) == 6
    for wrong in ({"status": "lost"}, {"limit": 0}, {"limit": 101}, {"cursor": "x"}, {"surprise": "1"}):
        refused = await shop.ask("GET", "events", status=400, params=wrong)
        assert [each["field"] for each in refused["mistakes"]] == [*wrong]


CROWD = """
insert into public.event_queue (id, event_type, source_service, target_service, status, created_at)
select pabal.uuid7(), 'order.paid', s, t, 'cancelled', pabal.now()
from unnest('{shop,target}'::text[]) s, unnest('{shop,target}'::text[]) t, generate_series(1, 10000)
where s <> t
"""


async def test_what_is_rare_is_looked_for_page_by_page_and_found(
    hub: Hub, web: httpx2.AsyncClient, shop: Service, owner: Connection
) -> None:
    target = await come(hub, web, "target", "events:read")
    admin = await come(hub, web, "admin", "hub:admin", "events:read")
    rare = (await shop.publish("cart.lost", target_service="target"))["id"]
    await owner.execute(CROWD)

    for who in (shop, target, admin):
        query, looks = {"type": "cart.lost"}, 0
        while True:
            page = await who.ask("GET", "events", params=query)
            looks += 1
            if page["items"] or page["cursor"] is None:
                break
            query |= {"cursor": page["cursor"]}
        assert [each["id"] for each in page["items"]] == [rare]
        assert looks > 1, "no look goes through all of them"


async def test_each_door_asks_for_its_own_permission(hub: Hub, web: httpx2.AsyncClient) -> None:
    reader = await come(hub, web, "reader", "events:read")

    await reader.ask("GET", "events")
    for method, path in (("POST", "events"), ("POST", "events/batch"), ("POST", "claim"), ("POST", "ack")):
        refused = await reader.ask(method, path, status=403, json={})
        assert refused["code"] == "insufficient_scope"
    assert (await web.get("/v1/queue/events", headers=bearer("nonsense"))).status_code == 401
