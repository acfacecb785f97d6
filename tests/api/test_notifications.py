"""The doors of notifications, as a service uses them."""

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
from support.clusters import connected
from support.notification_api import DOOR, ONE, Service, come
from support.notifications import PAID, registered, sql
from support.server import serving
from support.wait import until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]


@pytest.fixture
async def hub(hub: Hub) -> Hub:
    return await registered(hub)


async def count(database_urls: DatabaseUrls) -> int:
    return await sql(database_urls, "select count(*) from notification.requests")


# Asking


async def test_what_was_asked_for_can_be_looked_at(shop: Service) -> None:
    asked = await shop.send(locale="ko", correlation_id="c1")

    assert (asked["state"], asked["reason"]) == ("pending", None)
    shown = await shop.ask("GET", f"{DOOR}/{asked['id']}")
    assert {name: shown[name] for name in ONE} == ONE
    assert (shown["source_service"], shown["requested_by"], shown["locale"]) == ("shop", "shop", "ko")
    assert shown["decision"] == ["dm_enabled", "category_on", "address_healthy"]
    assert shown["attempts"] == []
    assert [(each["kind"], each["says"]) for each in shown["trace"]] == [
        ("asked", "payment.succeeded for user_dm 100 asked for by shop"),
        ("decided", "to be sent: dm_enabled, category_on, address_healthy"),
    ]


async def test_what_nobody_wants_is_answered_with_the_reason(shop: Service, database_urls: DatabaseUrls) -> None:
    await sql(database_urls, "insert into notification.people (discord_id, dm_enabled) values ('100', false)")

    asked = await shop.send()

    assert (asked["state"], asked["reason"]) == ("suppressed", "dm_disabled")


async def test_a_key_is_answered_with_the_first_and_other_content_is_a_conflict(
    shop: Service, database_urls: DatabaseUrls
) -> None:
    first = await shop.send(idempotency_key="k")

    assert (await shop.send(200, idempotency_key="k"))["id"] == first["id"]
    refused = await shop.send(409, idempotency_key="k", recipient_id="101")

    assert refused["code"] == "conflict"
    assert await count(database_urls) == 1


async def test_a_hundred_that_post_the_same_at_once_make_one(shop: Service, database_urls: DatabaseUrls) -> None:
    answers = await asyncio.gather(
        *(shop._web.post(DOOR, headers=shop.header, json=ONE | {"idempotency_key": "k"}) for _ in range(100))
    )

    assert sorted(answer.status_code for answer in answers) == [200] * 99 + [202]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert await count(database_urls) == 1


@pytest.mark.parametrize(
    ("said", "field"),
    [
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
        ({"scheduled_at": "2030-01-01T00:00:00"}, "scheduled_at"),
        ({"scheduled_at": "9999-12-31T23:59:59-05:00"}, "scheduled_at"),
        ({"expires_at": "soon"}, "expires_at"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"dedupe_key": "x" * 256}, "dedupe_key"),
        ({"incident": ""}, "incident"),
        ({"correlation_id": 7}, "correlation_id"),
        ({"urgent": True}, "urgent"),
    ],
)
async def test_a_field_that_is_wrong_is_named(
    shop: Service, database_urls: DatabaseUrls, said: dict[str, Any], field: str
) -> None:
    assert [name for name, _ in await shop.mistakes(**(ONE | said))] == [field]
    assert await count(database_urls) == 0


@pytest.mark.parametrize("body", [b"", b"7", b"{", b"[", b'"x"', b"[{}", b"null", b"\xff"])
async def test_a_body_that_is_no_notification_is_refused(shop: Service, body: bytes) -> None:
    assert (await shop.ask("POST", status=400, content=body))["code"] == "invalid"


async def test_of_many_each_is_told_what_became_of_it(shop: Service, database_urls: DatabaseUrls) -> None:
    await shop.send(idempotency_key="used")
    many = [
        ONE | {"idempotency_key": "new"},
        ONE | {"idempotency_key": "used"},
        ONE | {"idempotency_key": "used", "recipient_id": "101"},
        ONE | {"payload": {}},
        ONE | {"template_key": "shop.gone"},
        7,
        ONE | {"payload": PAID | {"item": "\x00"}},
        ONE | {"recipient_id": "102"},
    ]

    results = await shop.ask("POST", status=202, json=many)

    assert [each["status"] for each in results] == [202, 200, 409, 400, 400, 400, 400, 202]
    assert "payload.amount" in results[3]["detail"]
    assert results[0]["state"] == "pending"
    assert await count(database_urls) == 3


@pytest.fixture
def measured(hub: Hub) -> Hub:
    """A hub at whose door a service may ask for six in a minute."""
    return replace(hub, settings=hub.settings.model_copy(update={"notifications_per_service": 6}))


async def test_a_service_may_ask_for_so_many_in_a_minute(
    measured: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    async with serving(measured) as address, httpx2.AsyncClient(base_url=address) as web:
        shop, keep = [await come(measured, web, name, "write") for name in ("shop", "keep")]
        await shop.ask("POST", status=202, json=[ONE] * 4)
        await shop.send()
        refused = await web.post(DOOR, headers=shop.header, json=[ONE] * 2)
        await shop.send()  # there was room for one
        await keep.send()
        await shop.ask("POST", status=400, json=ONE | {"recipient_type": "pigeon"})  # is not counted

        assert (refused.status_code, refused.json()["code"]) == (429, "too_many")
        wait = int(refused.headers["retry-after"])
        assert 5 <= wait <= 10
        assert await count(database_urls) == 7
        await travel(timedelta(seconds=2 * wait))
        await shop.ask("POST", status=202, json=[ONE] * 2)


async def test_more_than_a_minutes_worth_at_once_is_a_minutes_worth(
    measured: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    async with serving(measured) as address, httpx2.AsyncClient(base_url=address) as web:
        shop = await come(measured, web, "shop", "write")
        await shop.ask("POST", status=202, json=[ONE] * 20)
        await shop.ask("POST", status=429, json=ONE)
        await travel(timedelta(seconds=60))
        await shop.ask("POST", status=202, json=[ONE] * 20)

    assert await count(database_urls) == 40


async def test_a_guild_that_goes_away_this_moment_is_no_fault_of_ours(
    shop: Service, database_urls: DatabaseUrls
) -> None:
    guild = await sql(database_urls, "insert into guild.guilds default values returning id")
    async with connected(database_urls.direct or database_urls.main) as other:
        work = other.transaction()
        await work.start()
        await other.execute("delete from guild.guilds where id = $1", guild)
        asking = asyncio.create_task(shop.ask("POST", status=503, json=ONE | {"guild_id": str(guild)}))
        waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"

        async def is_waiting() -> bool:
            return await other.fetchval(waits) == 1

        await until(is_waiting)
        await work.commit()

    assert (await asking)["code"] == "contended"
    assert await count(database_urls) == 0


async def test_many_are_at_most_five_hundred(shop: Service, database_urls: DatabaseUrls) -> None:
    assert len(await shop.ask("POST", status=202, json=[ONE] * 500)) == 500
    for wrong in ([], [ONE] * 501):
        refused = await shop.ask("POST", status=400, json=wrong)
        assert refused["mistakes"] == [{"field": "body", "why": "must be a list of 1 to 500 notifications"}]
    assert await count(database_urls) == 500


# Looking


async def test_somebody_elses_is_not_there(shop: Service, admin: Service, hub: Hub, web: httpx2.AsyncClient) -> None:
    other = await come(hub, web, "other", "write")
    row = (await shop.send())["id"]

    for method, path in (("GET", f"{DOOR}/{row}"), ("POST", f"{DOOR}/{row}/cancel")):
        assert (await other.ask(method, path, 404))["code"] == "not_found"
    assert (await other.ask("GET"))["items"] == []
    assert (await other.ask("GET", f"{DOOR}?recipient=100"))["items"] == []
    assert [each["id"] for each in (await admin.ask("GET"))["items"]] == [row]
    assert [each["id"] for each in (await admin.ask("GET", f"{DOOR}?recipient=100"))["items"]] == [row]
    assert (await admin.ask("GET", f"{DOOR}/{new_id()}", 404))["code"] == "not_found"


async def test_a_list_is_read_page_by_page_the_newest_first(shop: Service, admin: Service) -> None:
    made = [(await shop.send(recipient_id=str(number % 2)))["id"] for number in range(7)]

    for who, query, expected in (
        (shop, "", made),
        (admin, "", made),
        (shop, "&recipient=1", made[1::2]),
        (admin, "&recipient=1", made[1::2]),
    ):
        seen: list[str] = []
        cursor = ""
        while True:
            page = await who.ask("GET", f"{DOOR}?limit=2{query}{cursor}")
            seen += [each["id"] for each in page["items"]]
            if page["cursor"] is None:
                break
            cursor = f"&cursor={page['cursor']}"
        assert seen == [*reversed(expected)]


async def test_a_list_is_chosen_by_state_and_template(shop: Service, database_urls: DatabaseUrls) -> None:
    await sql(database_urls, "insert into notification.people (discord_id, dm_enabled) values ('7', false)")
    waiting, quiet = (await shop.send())["id"], (await shop.send(recipient_id="7"))["id"]
    payload = {"headline": "Spring", "story": "x"}
    news = (
        await shop.send(
            recipient_id="7", recipient_type="dashboard_toast", template_key="marketing.news", payload=payload
        )
    )["id"]

    async def ids(query: str) -> set[str]:
        return {each["id"] for each in (await shop.ask("GET", f"{DOOR}?{query}"))["items"]}

    assert await ids("state=pending") == {waiting, news}
    assert await ids("state=suppressed") == {quiet}
    assert await ids("template=marketing.news") == {news}
    assert await ids("recipient=7") == {quiet, news}
    assert await ids("recipient=7&state=pending&template=payment.succeeded") == set()
    assert (await shop.ask("GET", f"{DOOR}?state=gone", 400))["mistakes"][0]["field"] == "state"


CROWD = """
insert into notification.requests
    (id, recipient_type, recipient_id, template_key, payload, state, sent_at, source_service)
select pabal.uuid7(), 'user_dm', '1', 'payment.failed', '{}', 'sent', pabal.now(), 'shop'
from generate_series(1, 20000)
"""


async def test_what_is_rare_is_looked_for_page_by_page_and_found(
    shop: Service, admin: Service, database_urls: DatabaseUrls
) -> None:
    rare = (await shop.send())["id"]
    await sql(database_urls, CROWD)

    for who in (shop, admin):
        cursor, looks = "", 0
        while True:
            page = await who.ask("GET", f"{DOOR}?template=payment.succeeded{cursor}")
            looks += 1
            if page["items"] or page["cursor"] is None:
                break
            cursor = f"&cursor={page['cursor']}"
        assert [each["id"] for each in page["items"]] == [rare]
        assert looks > 1, "no look goes through all of them"


# Calling off


async def test_what_is_called_off_is_not_sent(shop: Service, database_urls: DatabaseUrls) -> None:
    row = (await shop.send())["id"]

    gone = await shop.ask("POST", f"{DOOR}/{row}/cancel")

    assert (gone["state"], gone["reason"]) == ("suppressed", "cancelled")
    assert "suppressed" in (await shop.ask("POST", f"{DOOR}/{row}/cancel", 409))["detail"]
    deed = "select actor || ' ' || action from pabal.audit_log where subject = $1"
    assert await sql(database_urls, deed, row) == "shop notification.cancelled"


async def test_what_is_being_sent_cannot_be_called_off(shop: Service, database_urls: DatabaseUrls) -> None:
    row = (await shop.send())["id"]
    held = "update notification.requests set lease = gen_random_uuid(), leased_until = pabal.now() + interval '{}'"
    await sql(database_urls, held.format("1 minute"))

    assert "being sent" in (await shop.ask("POST", f"{DOOR}/{row}/cancel", 409))["detail"]
    assert (await shop.ask("GET", f"{DOOR}/{row}"))["state"] == "pending"

    await sql(database_urls, held.format("-1 minute"))
    assert (await shop.ask("POST", f"{DOOR}/{row}/cancel"))["state"] == "suppressed"


async def test_who_may_only_look_asks_for_nothing(hub: Hub, web: httpx2.AsyncClient) -> None:
    viewer = await come(hub, web, "viewer", "notifications:read")

    assert (await viewer.send(403))["code"] == "insufficient_scope"
    assert (await viewer.ask("GET"))["items"] == []
