"""The notifications API, as a service uses it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest

from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls, Hub
from support.clusters import open_connection
from support.notification_api import PATH, REQUEST, ApiService, register_service
from support.notifications import PAID, register_builtin_templates, sql
from support.server import serve_hub
from support.wait import wait_until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]


@pytest.fixture
async def hub(hub: Hub) -> Hub:
    return await register_builtin_templates(hub)


async def count_requests(database_urls: DatabaseUrls) -> int:
    return await sql(database_urls, "select count(*) from notification.requests")


# Requests


async def test_a_requested_notification_can_be_shown(shop: ApiService) -> None:
    requested = await shop.send(locale="ko", correlation_id="c1")

    assert (requested["state"], requested["reason"]) == ("pending", None)
    notification = await shop.call("GET", f"{PATH}/{requested['id']}")
    assert {name: notification[name] for name in REQUEST} == REQUEST
    assert (notification["source_service"], notification["requested_by"], notification["locale"]) == (
        "shop",
        "shop",
        "ko",
    )
    assert notification["decision"] == ["dm_enabled", "category_on", "address_healthy"]
    assert notification["attempts"] == []
    assert [(entry["kind"], entry["says"]) for entry in notification["trace"]] == [
        ("asked", "payment.succeeded for user_dm 100 requested by shop"),
        ("decided", "accepted for sending: dm_enabled, category_on, address_healthy"),
    ]


async def test_a_suppressed_notification_is_returned_with_its_reason(
    shop: ApiService, database_urls: DatabaseUrls
) -> None:
    await sql(database_urls, "insert into notification.people (discord_id, dm_enabled) values ('100', false)")

    requested = await shop.send()

    assert (requested["state"], requested["reason"]) == ("suppressed", "dm_disabled")


async def test_a_repeated_key_returns_the_first_and_other_content_is_a_conflict(
    shop: ApiService, database_urls: DatabaseUrls
) -> None:
    first = await shop.send(idempotency_key="k")

    assert (await shop.send(200, idempotency_key="k"))["id"] == first["id"]
    refused = await shop.send(409, idempotency_key="k", recipient_id="101")

    assert refused["code"] == "conflict"
    assert await count_requests(database_urls) == 1


async def test_a_hundred_concurrent_posts_create_one_notification(
    shop: ApiService, database_urls: DatabaseUrls
) -> None:
    responses = await asyncio.gather(
        *(shop._web.post(PATH, headers=shop.header, json=REQUEST | {"idempotency_key": "k"}) for _ in range(100))
    )

    assert sorted(response.status_code for response in responses) == [200] * 99 + [202]
    assert len({response.json()["id"] for response in responses}) == 1
    assert await count_requests(database_urls) == 1


INVALID_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"recipient_type": "email"}, "recipient_type"),
    ({"recipient_type": "guild_audit_channel"}, "recipient_type"),
    ({"recipient_id": "../x"}, "recipient_id"),
    ({"recipient_id": 100}, "recipient_id"),
    ({"template_key": "shop.gone"}, "template_key"),
    ({"payload": {"item": "x", "currency": "KRW"}}, "payload.amount"),
    ({"payload": PAID | {"amount": "12900"}}, "payload.amount"),
    ({"payload": PAID | {"item": "a\x00b"}}, "payload"),
    ({"payload": []}, "payload"),
    ({"guild_id": str(UUID(int=7))}, "guild_id"),
    ({"guild_id": "7"}, "guild_id"),
    ({"locale": "korean"}, "locale"),
    ({"locale": "fr"}, "locale"),
    ({"scheduled_at": "2030-01-01T00:00:00"}, "scheduled_at"),
    ({"scheduled_at": "9999-12-31T23:59:59-05:00"}, "scheduled_at"),
    ({"expires_at": "soon"}, "expires_at"),
    ({"idempotency_key": ""}, "idempotency_key"),
    ({"dedupe_key": "x" * 256}, "dedupe_key"),
    ({"incident": ""}, "incident"),
    ({"correlation_id": 7}, "correlation_id"),
    ({"urgent": True}, "urgent"),
]


async def test_an_invalid_field_is_reported(shop: ApiService, database_urls: DatabaseUrls) -> None:
    for values, field in INVALID_FIELDS:
        assert [name for name, _ in await shop.field_errors(**(REQUEST | values))] == [field], values
        assert await count_requests(database_urls) == 0, values


async def test_an_invalid_body_is_refused(shop: ApiService) -> None:
    for body in (b"", b"7", b"{", b"[", b'"x"', b"[{}", b"null", b"\xff"):
        assert (await shop.call("POST", status=400, content=body))["code"] == "invalid", body


async def test_a_list_returns_one_result_per_item(shop: ApiService, database_urls: DatabaseUrls) -> None:
    await shop.send(idempotency_key="used")
    body = [
        REQUEST | {"idempotency_key": "new"},
        REQUEST | {"idempotency_key": "used"},
        REQUEST | {"idempotency_key": "used", "recipient_id": "101"},
        REQUEST | {"payload": {}},
        REQUEST | {"template_key": "shop.gone"},
        7,
        REQUEST | {"payload": PAID | {"item": "\x00"}},
        REQUEST | {"recipient_id": "102"},
    ]

    results = await shop.call("POST", status=202, json=body)

    assert [result["status"] for result in results] == [202, 200, 409, 400, 400, 400, 400, 202]
    assert "payload.amount" in results[3]["detail"]
    assert results[0]["state"] == "pending"
    assert await count_requests(database_urls) == 3


@pytest.fixture
def limited_hub(hub: Hub) -> Hub:
    """A hub that accepts six notifications per service and minute."""
    return replace(hub, settings=hub.settings.model_copy(update={"notifications_per_service": 6}))


async def test_requests_are_limited_per_service_and_minute(
    limited_hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    async with serve_hub(limited_hub) as address, httpx2.AsyncClient(base_url=address) as web:
        shop, keep = [await register_service(limited_hub, web, name, "write") for name in ("shop", "keep")]
        await shop.call("POST", status=202, json=[REQUEST] * 4)
        await shop.send()
        refused = await web.post(PATH, headers=shop.header, json=[REQUEST] * 2)
        await shop.send()  # one was left within the limit
        await keep.send()
        # An invalid request is not counted.
        await shop.call("POST", status=400, json=REQUEST | {"recipient_type": "pigeon"})

        assert (refused.status_code, refused.json()["code"]) == (429, "too_many")
        wait = int(refused.headers["retry-after"])
        assert 5 <= wait <= 10
        assert await count_requests(database_urls) == 7
        await travel(timedelta(seconds=2 * wait))
        await shop.call("POST", status=202, json=[REQUEST] * 2)


async def test_a_list_larger_than_the_limit_uses_the_whole_limit(
    limited_hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    async with serve_hub(limited_hub) as address, httpx2.AsyncClient(base_url=address) as web:
        shop = await register_service(limited_hub, web, "shop", "write")
        await shop.call("POST", status=202, json=[REQUEST] * 20)
        await shop.call("POST", status=429, json=REQUEST)
        await travel(timedelta(seconds=60))
        await shop.call("POST", status=202, json=[REQUEST] * 20)

    assert await count_requests(database_urls) == 40


async def test_a_concurrently_deleted_guild_is_unavailable(shop: ApiService, database_urls: DatabaseUrls) -> None:
    guild = await sql(database_urls, "insert into guild.guilds default values returning id")
    async with open_connection(database_urls.direct or database_urls.main) as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("delete from guild.guilds where id = $1", guild)
        requesting = asyncio.create_task(shop.call("POST", status=503, json=REQUEST | {"guild_id": str(guild)}))
        waiting_query = (
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )

        async def is_waiting() -> bool:
            return await other.fetchval(waiting_query) == 1

        await wait_until(is_waiting)
        await transaction.commit()

    assert (await requesting)["code"] == "contended"
    assert await count_requests(database_urls) == 0


async def test_a_list_has_at_most_500_items(shop: ApiService, database_urls: DatabaseUrls) -> None:
    assert len(await shop.call("POST", status=202, json=[REQUEST] * 500)) == 500
    for body in ([], [REQUEST] * 501):
        refused = await shop.call("POST", status=400, json=body)
        assert refused["mistakes"] == [{"field": "body", "why": "must be a list of 1 to 500 notifications"}]
    assert await count_requests(database_urls) == 500


# Reads


async def test_notifications_of_another_service_are_not_found(
    shop: ApiService, admin: ApiService, hub: Hub, web: httpx2.AsyncClient
) -> None:
    other = await register_service(hub, web, "other", "write")
    notification_id = (await shop.send())["id"]

    for method, path in (("GET", f"{PATH}/{notification_id}"), ("POST", f"{PATH}/{notification_id}/cancel")):
        assert (await other.call(method, path, 404))["code"] == "not_found"
    assert (await other.call("GET"))["items"] == []
    assert (await other.call("GET", f"{PATH}?recipient=100"))["items"] == []
    assert [notification["id"] for notification in (await admin.call("GET"))["items"]] == [notification_id]
    assert [notification["id"] for notification in (await admin.call("GET", f"{PATH}?recipient=100"))["items"]] == [
        notification_id
    ]
    assert (await admin.call("GET", f"{PATH}/{new_id()}", 404))["code"] == "not_found"


async def test_pages_list_the_newest_first(shop: ApiService, admin: ApiService) -> None:
    ids = [(await shop.send(recipient_id=str(number % 2)))["id"] for number in range(7)]

    for service, query, expected in (
        (shop, "", ids),
        (admin, "", ids),
        (shop, "&recipient=1", ids[1::2]),
        (admin, "&recipient=1", ids[1::2]),
    ):
        listed: list[str] = []
        cursor = ""
        while True:
            page = await service.call("GET", f"{PATH}?limit=2{query}{cursor}")
            listed += [notification["id"] for notification in page["items"]]
            if page["cursor"] is None:
                break
            cursor = f"&cursor={page['cursor']}"
        assert listed == [*reversed(expected)]


async def test_a_list_is_filtered_by_state_and_template(shop: ApiService, database_urls: DatabaseUrls) -> None:
    await sql(database_urls, "insert into notification.people (discord_id, dm_enabled) values ('7', false)")
    pending, suppressed = (await shop.send())["id"], (await shop.send(recipient_id="7"))["id"]
    payload = {"headline": "Spring", "story": "x"}
    news = (
        await shop.send(
            recipient_id="7", recipient_type="dashboard_toast", template_key="marketing.news", payload=payload
        )
    )["id"]

    async def ids(query: str) -> set[str]:
        return {notification["id"] for notification in (await shop.call("GET", f"{PATH}?{query}"))["items"]}

    assert await ids("state=pending") == {pending, news}
    assert await ids("state=suppressed") == {suppressed}
    assert await ids("template=marketing.news") == {news}
    assert await ids("recipient=7") == {suppressed, news}
    assert await ids("recipient=7&state=pending&template=payment.succeeded") == set()
    assert (await shop.call("GET", f"{PATH}?state=gone", 400))["mistakes"][0]["field"] == "state"


INSERT_MANY = """
insert into notification.requests
    (id, recipient_type, recipient_id, template_key, payload, state, sent_at, source_service)
select pabal.uuid7(), 'user_dm', '1', 'payment.failed', '{}', 'sent', pabal.now(), 'shop'
from generate_series(1, 20000)
"""


async def test_rare_matches_are_found_page_by_page(
    shop: ApiService, admin: ApiService, database_urls: DatabaseUrls
) -> None:
    match = (await shop.send())["id"]
    await sql(database_urls, INSERT_MANY)

    for service in (shop, admin):
        cursor, page_count = "", 0
        while True:
            page = await service.call("GET", f"{PATH}?template=payment.succeeded{cursor}")
            page_count += 1
            if page["items"] or page["cursor"] is None:
                break
            cursor = f"&cursor={page['cursor']}"
        assert [notification["id"] for notification in page["items"]] == [match]
        assert page_count > 1, "one page does not scan all rows"


# Cancellation


async def test_a_cancelled_notification_is_not_sent(shop: ApiService, database_urls: DatabaseUrls) -> None:
    notification_id = (await shop.send())["id"]

    cancelled = await shop.call("POST", f"{PATH}/{notification_id}/cancel")

    assert (cancelled["state"], cancelled["reason"]) == ("suppressed", "cancelled")
    assert "suppressed" in (await shop.call("POST", f"{PATH}/{notification_id}/cancel", 409))["detail"]
    audit_query = "select actor || ' ' || action from pabal.audit_log where subject = $1"
    assert await sql(database_urls, audit_query, notification_id) == "shop notification.cancelled"


async def test_a_claimed_notification_cannot_be_cancelled(shop: ApiService, database_urls: DatabaseUrls) -> None:
    notification_id = (await shop.send())["id"]
    set_lease = "update notification.requests set lease = gen_random_uuid(), leased_until = pabal.now() + interval '{}'"
    await sql(database_urls, set_lease.format("1 minute"))

    assert "being sent" in (await shop.call("POST", f"{PATH}/{notification_id}/cancel", 409))["detail"]
    assert (await shop.call("GET", f"{PATH}/{notification_id}"))["state"] == "pending"

    await sql(database_urls, set_lease.format("-1 minute"))
    assert (await shop.call("POST", f"{PATH}/{notification_id}/cancel"))["state"] == "suppressed"


async def test_a_reader_cannot_request_notifications(hub: Hub, web: httpx2.AsyncClient) -> None:
    viewer = await register_service(hub, web, "viewer", "notifications:read")

    assert (await viewer.send(403))["code"] == "insufficient_scope"
    assert (await viewer.call("GET"))["items"] == []
