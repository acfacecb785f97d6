"""The dead letter endpoints, for operators and for services with their own dead letters."""

from typing import Any

import httpx2
import pytest

from pabal.api import dead_letters
from pabal.core.ids import new_id
from pabal.hub import Hub
from support.failed_events import EventQueue
from support.oauth_client import bearer, register_oauth_service

pytestmark = pytest.mark.anyio


@pytest.fixture
async def admin(hub: Hub, web: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """A client with the token of an admin service."""
    service = await register_oauth_service(hub, web, "warden", "hub:admin")
    web.headers.update(bearer((await service.tokens())["access_token"]))
    return web


async def test_dead_letters_are_listed_in_pages(admin: httpx2.AsyncClient, event_queue: EventQueue) -> None:
    letters = {await event_queue.find_dead_letter(event) for event in await event_queue.insert_failed(5)}
    ids: list[str] = []
    cursor: str | None = None
    while True:
        page = (
            await admin.get("/v1/dead-letters", params={"limit": 2} | ({"cursor": cursor} if cursor else {}))
        ).json()
        ids += [item["id"] for item in page["items"]]
        cursor = page["cursor"]
        if cursor is None:
            break

    assert sorted(ids) == sorted(map(str, letters))


async def test_a_dead_letter_has_payload_envelope_and_errors(
    admin: httpx2.AsyncClient, event_queue: EventQueue
) -> None:
    event, letter = await event_queue.publish_failed(payload=b'{"n": 1}', why="boom", correlation_id="c1")

    [item] = (await admin.get("/v1/dead-letters")).json()["items"]
    detail = (await admin.get(f"/v1/dead-letters/{letter}")).json()

    assert item.items() <= detail.items()
    assert detail["original_payload"] == {"n": 1}
    assert detail["original_envelope"]["correlation_id"] == "c1"
    assert [entry["error"] for entry in detail["error_history"]] == ["boom"]
    assert (item["original_event_id"], item["event_id"], item["death"]) == (str(event), str(event), 1)
    assert "original_payload" not in item


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({}, 3),
        ({"type": "order.*"}, 2),
        ({"source": "minu_keep"}, 1),
        ({"target": "minu_find"}, 1),
        ({"signature": "boom <n>"}, 2),
        ({"error_code": "net"}, 1),
        ({"state": "resolved"}, 0),
        ({"state": "all"}, 3),
        ({"since": "2020-01-01T00:00:00Z"}, 3),
        ({"until": "2020-01-01T00:00:00Z"}, 0),
    ],
)
async def test_lists_groups_and_replays_have_the_same_filters(
    admin: httpx2.AsyncClient, event_queue: EventQueue, query: dict[str, str], count: int
) -> None:
    await event_queue.insert_failed(2)
    await event_queue.insert_failed(
        1, "timed out", event_type="bill.paid", source="minu_keep", target="minu_find", code="net"
    )

    listed = (await admin.get("/v1/dead-letters", params=query)).json()["items"]
    groups = (await admin.get("/v1/dead-letters/groups", params=query)).json()

    assert len(listed) == count
    assert sum(group["count"] for group in groups["items"]) == count
    assert groups["cursor"] is None
    if "state" not in query:
        assert (await admin.post("/v1/dead-letters/replay", json=query)).json() == {"replayed": count}


async def test_the_example_of_a_group_can_be_fetched(admin: httpx2.AsyncClient, event_queue: EventQueue) -> None:
    await event_queue.insert_failed(3, "order %s not found")

    [group] = (await admin.get("/v1/dead-letters/groups")).json()["items"]
    example = (await admin.get(f"/v1/dead-letters/{group['example']}")).json()

    assert (group["signature"], group["count"], group["event_types"]) == ("order <n> not found", 3, ["order.paid"])
    assert example["signature"] == group["signature"]


async def test_a_dead_letter_is_replayed_once_and_names_the_caller(
    admin: httpx2.AsyncClient, event_queue: EventQueue
) -> None:
    event, letter = await event_queue.publish_failed()

    first = await admin.post(f"/v1/dead-letters/{letter}/replay")
    second = await admin.post(f"/v1/dead-letters/{letter}/replay")

    assert (first.status_code, first.json()) == (200, {"id": str(letter), "event_id": str(event)})
    assert (second.status_code, second.json()["code"]) == (409, "conflict")
    assert "already replayed by warden" in second.json()["detail"]
    assert [entry.id for entry in await event_queue.claim()] == [event]
    assert await event_queue.audit_entries(letter) == [("warden", "dead_letter.replayed", str(letter))]


async def test_a_dead_letter_is_resolved_once_with_a_note(admin: httpx2.AsyncClient, event_queue: EventQueue) -> None:
    _, letter = await event_queue.publish_failed()

    first = await admin.post(f"/v1/dead-letters/{letter}/resolve", json={"note": "the shop was closed"})
    second = await admin.post(f"/v1/dead-letters/{letter}/resolve", json={"note": "again"})

    resolved = first.json()
    assert (resolved["resolution_notes"], resolved["resolved_by_actor"]) == ("the shop was closed", "warden")
    assert (resolved["resolved_by"], resolved["replay_count"]) == (None, 0)
    assert second.status_code == 409
    assert (await admin.get("/v1/dead-letters")).json()["items"] == []
    assert await event_queue.audit_entries(letter) == [("warden", "dead_letter.resolved", str(letter))]


async def test_a_limited_replay_starts_with_the_oldest(admin: httpx2.AsyncClient, event_queue: EventQueue) -> None:
    old, _ = await event_queue.publish_failed()
    await event_queue.publish_failed()

    assert (await admin.post("/v1/dead-letters/replay", json={"limit": 1})).json() == {"replayed": 1}
    assert [entry.id for entry in await event_queue.claim()] == [old]
    assert (await admin.post("/v1/dead-letters/replay")).json() == {"replayed": 1}


UNKNOWN_ID = new_id()
INVALID: list[tuple[str, str, dict[str, Any], str]] = [
    ("GET", "/v1/dead-letters", {"params": {"state": "open"}}, "state"),
    ("GET", "/v1/dead-letters", {"params": {"since": "yesterday"}}, "since"),
    ("GET", "/v1/dead-letters", {"params": {"since": "1577836800"}}, "since"),
    ("GET", "/v1/dead-letters", {"params": {"since": "0001-01-01T00:00:00+14:00"}}, "since"),
    ("GET", "/v1/dead-letters/groups", {"params": {"until": "9.5e-258"}}, "until"),
    ("GET", "/v1/dead-letters/groups", {"params": {"until": "9999-12-31T23:59:59-14:00"}}, "until"),
    ("GET", "/v1/dead-letters", {"params": {"until": "2020-01-01T00:00:00"}}, "until"),
    ("GET", "/v1/dead-letters", {"params": {"cursor": "x"}}, "cursor"),
    ("GET", "/v1/dead-letters", {"params": {"limit": "101"}}, "limit"),
    ("GET", "/v1/dead-letters", {"params": {"status": "failed"}}, "status"),
    ("GET", "/v1/dead-letters/groups", {"params": {"state": "open"}}, "state"),
    ("GET", "/v1/dead-letters/groups", {"params": {"cursor": "x"}}, "cursor"),
    ("GET", "/v1/dead-letters/x", {}, "id"),
    ("POST", "/v1/dead-letters/x/replay", {}, "id"),
    ("POST", "/v1/dead-letters/x/resolve", {"json": {"note": "x"}}, "id"),
    ("POST", f"/v1/dead-letters/{UNKNOWN_ID}/resolve", {"json": {}}, "note"),
    ("POST", f"/v1/dead-letters/{UNKNOWN_ID}/resolve", {"json": {"note": ""}}, "note"),
    ("POST", f"/v1/dead-letters/{UNKNOWN_ID}/resolve", {"json": {"note": "x" * 2001}}, "note"),
    ("POST", f"/v1/dead-letters/{UNKNOWN_ID}/resolve", {"json": {"note": "x", "by": "me"}}, "by"),
    ("POST", "/v1/dead-letters/replay", {"json": {"limit": 0}}, "limit"),
    ("POST", "/v1/dead-letters/replay", {"json": {"type": 1}}, "type"),
    ("POST", "/v1/dead-letters/replay", {"json": {"since": "2020-01-01T00:00:00"}}, "since"),
    ("POST", "/v1/dead-letters/replay", {"json": {"since": "9999-12-31T23:59:59-14:00"}}, "since"),
    ("POST", "/v1/dead-letters/replay", {"json": {"ids": []}}, "ids"),
]


async def test_an_invalid_request_names_its_field_and_replays_nothing(
    admin: httpx2.AsyncClient, event_queue: EventQueue
) -> None:
    await event_queue.insert_failed(1)

    for method, path, request, field in INVALID:
        response = await admin.request(method, path, **request)

        assert (path, request, response.status_code) == (path, request, 400)
        assert [error["field"] for error in response.json()["mistakes"]] == [field]
    assert len((await admin.get("/v1/dead-letters")).json()["items"]) == 1


@pytest.mark.parametrize("action", ["", "/replay", "/resolve"])
async def test_an_unknown_dead_letter_is_not_found(admin: httpx2.AsyncClient, action: str) -> None:
    body: dict[str, Any] = {"json": {"note": "x"}} if action == "/resolve" else {}

    response = await admin.request("POST" if action else "GET", f"/v1/dead-letters/{new_id()}{action}", **body)

    assert (response.status_code, response.json()["code"]) == (404, "not_found")


async def test_groups_and_resolving_require_the_admin_permission(
    hub: Hub, web: httpx2.AsyncClient, event_queue: EventQueue
) -> None:
    _, letter = await event_queue.publish_failed()
    token = (await (await register_oauth_service(hub, web, "shop", "write", "tokens:admin")).tokens())["access_token"]
    protected = [route for route in dead_letters.ROUTES if not route.or_admin]

    assert [route.path for route in protected] == ["/v1/dead-letters/groups", "/v1/dead-letters/{id}/resolve"]
    for route in protected:
        response = await web.request(route.method, route.path.replace("{id}", str(letter)), headers=bearer(token))

        assert (route.path, response.status_code) == (route.path, 403)
        assert 'scope="hub:admin"' in response.headers["www-authenticate"]
    assert await event_queue.audit_entries(letter) == []


async def service_headers(hub: Hub, web: httpx2.AsyncClient, name: str, *permissions: str) -> dict[str, str]:
    return bearer((await (await register_oauth_service(hub, web, name, *permissions)).tokens())["access_token"])


async def test_a_service_sees_the_dead_letters_sent_to_it_and_by_it(
    hub: Hub, web: httpx2.AsyncClient, event_queue: EventQueue
) -> None:
    shop = await service_headers(hub, web, "shop", "events:consume", "events:publish")
    consumer = await service_headers(hub, web, "reader", "events:consume")
    to_shop, from_shop, to_itself, other, to_reader = [
        str(await event_queue.find_dead_letter(event))
        for source, target in (
            ("minu_find", "shop"),
            ("shop", "minu_build"),
            ("shop", "shop"),
            ("minu_find", "minu_build"),
            ("reader", "reader"),
        )
        for event in await event_queue.insert_failed(1, source=source, target=target)
    ]

    async def visible(headers: dict[str, str], **query: Any) -> list[str]:
        page = (await web.get("/v1/dead-letters", headers=headers, params=query)).json()
        return [item["id"] for item in page["items"]]

    assert await visible(shop) == [to_itself, from_shop, to_shop]
    assert await visible(shop, target="minu_build") == [from_shop]
    assert await visible(consumer) == [to_reader]
    assert await visible(shop, state="resolved") == []
    pages = [await web.get(f"/v1/dead-letters/{letter}", headers=shop) for letter in (to_shop, from_shop, other)]
    assert [page.status_code for page in pages] == [200, 200, 404]


async def test_a_service_replays_only_what_was_sent_to_it(
    hub: Hub, web: httpx2.AsyncClient, event_queue: EventQueue
) -> None:
    shop = await service_headers(hub, web, "shop", "events:consume", "events:publish")
    [mine] = await event_queue.insert_failed(1, target="shop")
    [sent] = await event_queue.insert_failed(1, source="shop")
    [other] = await event_queue.insert_failed(1)
    letters = [await event_queue.find_dead_letter(event) for event in (mine, sent, other)]

    statuses = [(await web.post(f"/v1/dead-letters/{letter}/replay", headers=shop)).status_code for letter in letters]
    foreign = await web.post("/v1/dead-letters/replay", headers=shop, json={"target": "minu_build"})
    await event_queue.insert_failed(2, target="shop")
    bulk = await web.post("/v1/dead-letters/replay", headers=shop, json={})

    assert statuses == [200, 403, 404]
    assert (await event_queue.load_event(mine))["status"] == "pending"
    assert (foreign.json()["replayed"], bulk.json()["replayed"]) == (0, 2)
    assert [(await event_queue.load_event(event))["status"] for event in (sent, other)] == ["failed", "failed"]


async def test_a_publisher_alone_cannot_replay(hub: Hub, web: httpx2.AsyncClient, event_queue: EventQueue) -> None:
    publisher = await service_headers(hub, web, "shop", "events:publish")
    [sent] = await event_queue.insert_failed(1, source="shop")
    letter = await event_queue.find_dead_letter(sent)

    responses = [
        await web.get(f"/v1/dead-letters/{letter}", headers=publisher),
        await web.post(f"/v1/dead-letters/{letter}/replay", headers=publisher),
        await web.post(f"/v1/dead-letters/{letter}/resolve", headers=publisher, json={"note": "done"}),
    ]

    assert [response.status_code for response in responses] == [200, 403, 403]
