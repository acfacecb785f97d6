"""The subscription endpoints, as a service uses them."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest
from standardwebhooks import Webhook

from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls, Hub
from pabal.settings import Settings
from support.clusters import open_connection
from support.oauth_client import RegisteredService, bearer, register_oauth_service
from support.receiver import Receiver, respond_with, run_receiver
from support.server import serve_hub

pytestmark = pytest.mark.anyio

PATH = "/v1/subscriptions"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def endpoint() -> AsyncGenerator[Receiver]:
    async with run_receiver() as server:
        yield server


class SubscriptionClient:
    """A client of the subscription endpoints with the token of a service."""

    def __init__(self, enrolled: RegisteredService, token: str) -> None:
        self.name = enrolled.name
        self._web = enrolled.web
        self._header = bearer(token)

    async def call(self, method: str, path: str = "", status: int = 200, **options: Any) -> Any:
        response = await self._web.request(method, f"{PATH}{path}", headers=self._header, **options)
        assert response.status_code == status, response.text
        return response.json() if response.content else None

    async def field_errors(self, method: str, path: str = "", **body: Any) -> list[tuple[str, str]]:
        problem = await self.call(method, path, 400, json=body)
        return [(error["field"], error["why"]) for error in problem["mistakes"]]


async def register_client(hub: Hub, web: httpx2.AsyncClient, name: str, *permissions: str) -> SubscriptionClient:
    enrolled = await register_oauth_service(hub, web, name, *permissions)
    return SubscriptionClient(enrolled, (await enrolled.tokens())["access_token"])


@pytest.fixture
async def shop(hub: Hub, web: httpx2.AsyncClient) -> SubscriptionClient:
    return await register_client(hub, web, "shop", "write")


async def test_the_lifecycle_of_a_subscription(shop: SubscriptionClient, endpoint: Receiver) -> None:
    added = await shop.call(
        "POST", status=201, json={"event_types": ["order.*"], "url": endpoint.url, "timeout_seconds": 3}
    )
    path = f"/{added['id']}"
    shown = await shop.call("GET", path)

    secret = added.pop("secret")
    assert secret.startswith("whsec_")
    assert shown == added
    assert (shown["service_name"], shown["mode"], shown["event_types"]) == ("shop", "push", ["order.*"])
    assert (shown["url"], shown["timeout_seconds"], shown["paused_at"]) == (endpoint.url, 3, None)

    changed = await shop.call("PATCH", path, json={"event_types": ["cart.*"], "description": "bills"})
    assert (changed["event_types"], changed["description"], changed["url"]) == (["cart.*"], "bills", endpoint.url)
    assert (await shop.call("PATCH", path, json={"description": None}))["description"] is None
    assert (await shop.call("PATCH", path, json={}))["event_types"] == ["cart.*"]

    paused = await shop.call("POST", f"{path}/pause")
    assert paused["paused_at"] is not None
    assert (await shop.call("POST", f"{path}/pause"))["paused_at"] == paused["paused_at"]
    assert (await shop.call("POST", f"{path}/resume"))["paused_at"] is None

    rotated = await shop.call("POST", f"{path}/rotate-secret")
    assert rotated["secret"] not in {None, secret}
    assert rotated["previous_secret_until"] is not None
    assert "secret" not in await shop.call("GET", path)

    await shop.call("DELETE", path, 204)
    await shop.call("GET", path, 404)
    assert await shop.call("GET") == {"items": [], "cursor": None}


@pytest.mark.parametrize("url", ["http://127.0.0.2:9000/events", "https://127.0.0.2/events"])
async def test_an_address_that_is_not_allowed_names_the_setting(
    shop: SubscriptionClient, endpoint: Receiver, url: str
) -> None:
    created = await shop.call("POST", status=201, json={"event_types": ["order.*"], "url": endpoint.url})

    errors = [
        await shop.field_errors("POST", event_types=["order.*"], url=url),
        await shop.field_errors("PATCH", f"/{created['id']}", url=url),
    ]

    for [(field, why)] in errors:
        assert field == "url"
        assert "To allow it, add its origin to PABAL_CALLBACK_ALLOW, such as http://127.0.0.1:9000" in why


async def test_a_test_push_is_sent_at_once_and_returns_its_result(shop: SubscriptionClient, endpoint: Receiver) -> None:
    added = await shop.call("POST", status=201, json={"event_types": ["order.*"], "url": endpoint.url})
    path = f"/{added['id']}"
    await shop.call("POST", f"{path}/pause")

    assert await shop.call("POST", f"{path}/test") == {"delivered": True, "error": None, "error_code": None}
    [request] = endpoint.requests
    event = Webhook(added["secret"]).verify(request.body, dict(request.headers))
    assert (event["event_type"], event["source_service"], event["target_service"]) == ("pabal.test", "hub", "shop")
    assert event["id"] == event["origin_id"] == request.headers["webhook-id"]

    endpoint.responder = respond_with(500, b"oh no")
    assert await shop.call("POST", f"{path}/test") == {
        "delivered": False,
        "error": "HTTP 500: oh no",
        "error_code": "http_500",
    }
    endpoint.responder = respond_with(410)
    assert (await shop.call("POST", f"{path}/test"))["error"] == "HTTP 410"
    shown = await shop.call("GET", path)
    assert (shown["failures"], shown["disabled_at"]) == (0, None)


async def test_each_subscription_allows_ten_test_pushes_a_minute(
    shop: SubscriptionClient, endpoint: Receiver, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    added = [await shop.call("POST", status=201, json={"event_types": ["*"], "url": endpoint.url}) for _ in range(2)]
    first, second = (f"/{item['id']}/test" for item in added)
    for _ in range(10):
        await shop.call("POST", first)

    problem = await shop.call("POST", first, 429)

    assert problem["detail"].startswith("too many tests of this subscription; try again in ")
    assert len(endpoint.requests) == 10
    assert (await shop.call("POST", second))["delivered"]
    await travel(timedelta(seconds=6))
    assert (await shop.call("POST", first))["delivered"]


async def test_a_test_push_with_an_undecryptable_secret_says_to_rotate_it(
    shop: SubscriptionClient, endpoint: Receiver, database_urls: DatabaseUrls
) -> None:
    added = await shop.call("POST", status=201, json={"event_types": ["*"], "url": endpoint.url})
    assert database_urls.direct
    async with open_connection(database_urls.direct) as owner:
        await owner.execute("update pabal.subscriptions set secret = replace(secret, 'v1.', 'v1.lost-')")

    problem = await shop.call("POST", f"/{added['id']}/test", 409)

    assert problem["detail"].endswith("Rotate the secret")
    assert endpoint.requests == []
    await shop.call("POST", f"/{added['id']}/rotate-secret")
    assert (await shop.call("POST", f"/{added['id']}/test"))["delivered"]


async def test_push_actions_on_a_pull_subscription_return_409(shop: SubscriptionClient) -> None:
    added = await shop.call("POST", status=201, json={"event_types": ["*"]})

    assert (added["mode"], added["url"], added["secret"]) == ("pull", None, None)
    for action, detail in {
        "pause": "A pull subscription cannot be paused: stop pulling instead",
        "resume": "A pull subscription cannot be resumed: pull instead",
        "rotate-secret": "A pull subscription has no secret",
        "test": "Only a push subscription can be tested",
    }.items():
        assert (await shop.call("POST", f"/{added['id']}/{action}", 409))["detail"] == detail


FORBIDDEN_URLS = (
    "https://10.0.0.1/",
    "https://169.254.169.254/latest/meta-data",
    "https://[::1]/",
    "https://localhost/",
    "http://example.org/",
    "https://user:word@example.org/",
    "ftp://example.org/",
    "https://2130706433/",
)


async def test_a_forbidden_url_is_refused(shop: SubscriptionClient, endpoint: Receiver) -> None:
    added = await shop.call("POST", status=201, json={"event_types": ["*"], "url": endpoint.url})

    for url in FORBIDDEN_URLS:
        for errors in (
            await shop.field_errors("POST", event_types=["*"], url=url),
            await shop.field_errors("PATCH", f"/{added['id']}", url=url),
        ):
            assert [field for field, _ in errors] == ["url"], url
            assert url not in errors[0][1]
        assert len((await shop.call("GET"))["items"]) == 1, url
        assert (await shop.call("GET", f"/{added['id']}"))["url"] == endpoint.url, url


INVALID_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({}, "event_types"),
    ({"event_types": []}, "event_types"),
    ({"event_types": ["Order"]}, "event_types[0]"),
    ({"event_types": ["a."]}, "event_types[0]"),
    ({"event_types": ["*"] * 51}, "event_types"),
    ({"event_types": ["*"], "timeout_seconds": 61}, "timeout_seconds"),
    ({"event_types": ["*"], "timeout_seconds": 0}, "timeout_seconds"),
    ({"event_types": ["*"], "url": ""}, "url"),
    ({"event_types": ["*"], "description": ""}, "description"),
    ({"event_types": ["*"], "mode": "rule"}, "mode"),
    ({"event_types": ["*"], "secret": "whsec_mine"}, "secret"),
]


async def test_an_invalid_field_is_named(shop: SubscriptionClient) -> None:
    for body, field in INVALID_FIELDS:
        assert [name for name, _ in await shop.field_errors("POST", **body)] == [field], body


async def test_a_subscription_of_another_service_is_not_found(
    hub: Hub, web: httpx2.AsyncClient, shop: SubscriptionClient, endpoint: Receiver
) -> None:
    added = await shop.call("POST", status=201, json={"event_types": ["*"], "url": endpoint.url})
    other = await register_client(hub, web, "other", "write")
    existing = f"/{added['id']}"
    unknown = f"/{new_id()}"

    for method, path in [
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        *(("POST", f"/{action}") for action in ("pause", "resume", "test", "rotate-secret")),
    ]:
        options: dict[str, Any] = {"json": {}} if method == "PATCH" else {}
        theirs = await other.call(method, existing + path, 404, **options)
        missing = await other.call(method, unknown + path, 404, **options)
        assert theirs["detail"].replace(existing[1:], "") == missing["detail"].replace(unknown[1:], "")
    assert endpoint.requests == []
    assert (await other.call("GET"))["items"] == []
    assert (await other.call("GET", "?service=shop"))["items"] == []
    problem = await other.call("POST", status=403, json={"event_types": ["*"], "service_name": "shop"})
    assert problem["detail"] == "service_name: the token belongs to other"


async def test_an_admin_sees_and_manages_all_subscriptions(
    hub: Hub, web: httpx2.AsyncClient, shop: SubscriptionClient, endpoint: Receiver
) -> None:
    added = await shop.call("POST", status=201, json={"event_types": ["*"], "url": endpoint.url})
    admin = await register_client(hub, web, "keeper", "events:consume", "hub:admin")

    created = await admin.call("POST", status=201, json={"event_types": ["cart.*"], "service_name": "shop"})
    assert (await admin.call("POST", f"/{added['id']}/pause"))["paused_at"] is not None
    assert [item["id"] for item in (await admin.call("GET", "?service=shop"))["items"]] == [added["id"], created["id"]]
    assert len((await shop.call("GET"))["items"]) == 2
    assert await admin.field_errors("POST", event_types=["*"], service_name="nobody") == [
        ("service_name", "No such service: nobody")
    ]


async def test_subscriptions_are_listed_in_pages(shop: SubscriptionClient) -> None:
    expected = [(await shop.call("POST", status=201, json={"event_types": [f"t{n}"]}))["id"] for n in range(5)]
    ids: list[UUID] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = await shop.call("GET", params=query)
        ids += [item["id"] for item in page["items"]]
        if page["cursor"] is None:
            break
        query["cursor"] = page["cursor"]

    assert ids == expected


async def test_the_number_of_subscriptions_per_service_is_a_setting(hub: Hub) -> None:
    limited_hub = replace(hub, settings=hub.settings.model_copy(update={"subscriptions_per_service": 2}))
    async with serve_hub(limited_hub) as address, httpx2.AsyncClient(base_url=address) as web:
        shop, keep = [await register_client(limited_hub, web, name, "write") for name in ("shop", "keep")]
        for _ in range(2):
            await shop.call("POST", status=201, json={"event_types": ["order.*"]})
        refused = await shop.call("POST", status=409, json={"event_types": ["order.*"]})
        await keep.call("POST", status=201, json={"event_types": ["order.*"]})

    assert refused["detail"] == "shop already has 2 subscriptions. Remove one first"
