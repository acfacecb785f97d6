"""The doors of subscriptions, as a service uses them."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest
from standardwebhooks import Webhook

from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls, Hub
from pabal.settings import Settings
from support.clusters import connected
from support.oauth_client import Enrolled, bearer, enrol
from support.receiver import Receiver, answers, receiver

pytestmark = pytest.mark.anyio

DOOR = "/v1/subscriptions"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def there() -> AsyncGenerator[Receiver]:
    async with receiver() as one:
        yield one


class Service:
    """A service at the doors, with its token."""

    def __init__(self, minu: Enrolled, token: str) -> None:
        self.name = minu.name
        self._web = minu.web
        self._header = bearer(token)

    async def ask(self, method: str, path: str = "", status: int = 200, **how: Any) -> Any:
        answer = await self._web.request(method, f"{DOOR}{path}", headers=self._header, **how)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    async def mistakes(self, method: str, path: str = "", **brought: Any) -> list[tuple[str, str]]:
        refused = await self.ask(method, path, 400, json=brought)
        return [(each["field"], each["why"]) for each in refused["mistakes"]]


async def come(hub: Hub, web: httpx2.AsyncClient, name: str, *permissions: str) -> Service:
    minu = await enrol(hub, web, name, *permissions)
    return Service(minu, (await minu.tokens())["access_token"])


@pytest.fixture
async def shop(hub: Hub, web: httpx2.AsyncClient) -> Service:
    return await come(hub, web, "shop", "write")


async def test_a_life(shop: Service, there: Receiver) -> None:
    added = await shop.ask(
        "POST", status=201, json={"event_types": ["order.*"], "url": there.url, "timeout_seconds": 3}
    )
    one = f"/{added['id']}"
    shown = await shop.ask("GET", one)

    secret = added.pop("secret")
    assert secret.startswith("whsec_")
    assert shown == added
    assert (shown["service_name"], shown["mode"], shown["event_types"]) == ("shop", "push", ["order.*"])
    assert (shown["url"], shown["timeout_seconds"], shown["paused_at"]) == (there.url, 3, None)

    changed = await shop.ask("PATCH", one, json={"event_types": ["cart.*"], "description": "bills"})
    assert (changed["event_types"], changed["description"], changed["url"]) == (["cart.*"], "bills", there.url)
    assert (await shop.ask("PATCH", one, json={"description": None}))["description"] is None
    assert (await shop.ask("PATCH", one, json={}))["event_types"] == ["cart.*"]

    paused = await shop.ask("POST", f"{one}/pause")
    assert paused["paused_at"] is not None
    assert (await shop.ask("POST", f"{one}/pause"))["paused_at"] == paused["paused_at"]
    assert (await shop.ask("POST", f"{one}/resume"))["paused_at"] is None

    rotated = await shop.ask("POST", f"{one}/rotate-secret")
    assert rotated["secret"] not in {None, secret}
    assert rotated["previous_secret_until"] is not None
    assert "secret" not in await shop.ask("GET", one)

    await shop.ask("DELETE", one, 204)
    await shop.ask("GET", one, 404)
    assert await shop.ask("GET") == {"items": [], "cursor": None}


async def test_a_test_goes_out_at_once_and_says_what_came_back(shop: Service, there: Receiver) -> None:
    added = await shop.ask("POST", status=201, json={"event_types": ["order.*"], "url": there.url})
    one = f"/{added['id']}"
    await shop.ask("POST", f"{one}/pause")

    assert await shop.ask("POST", f"{one}/test") == {"delivered": True, "error": None, "error_code": None}
    [request] = there.requests
    told = Webhook(added["secret"]).verify(request.body, dict(request.headers))
    assert (told["event_type"], told["source_service"], told["target_service"]) == ("pabal.test", "hub", "shop")
    assert told["id"] == told["origin_id"] == request.headers["webhook-id"]

    there.mood = answers(500, b"oh no")
    assert await shop.ask("POST", f"{one}/test") == {
        "delivered": False,
        "error": "HTTP 500: oh no",
        "error_code": "http_500",
    }
    there.mood = answers(410)
    assert (await shop.ask("POST", f"{one}/test"))["error"] == "HTTP 410"
    shown = await shop.ask("GET", one)
    assert (shown["failures"], shown["disabled_at"]) == (0, None)


async def test_tests_are_ten_a_minute_for_each_subscription(
    shop: Service, there: Receiver, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    added = [await shop.ask("POST", status=201, json={"event_types": ["*"], "url": there.url}) for _ in range(2)]
    one, other = (f"/{each['id']}/test" for each in added)
    for _ in range(10):
        await shop.ask("POST", one)

    refused = await shop.ask("POST", one, 429)

    assert refused["detail"].startswith("too many tests of this subscription; try again in ")
    assert len(there.requests) == 10
    assert (await shop.ask("POST", other))["delivered"]
    await travel(timedelta(seconds=6))
    assert (await shop.ask("POST", one))["delivered"]


async def test_a_test_push_with_an_undecryptable_secret_says_to_rotate_it(
    shop: Service, there: Receiver, database_urls: DatabaseUrls
) -> None:
    added = await shop.ask("POST", status=201, json={"event_types": ["*"], "url": there.url})
    assert database_urls.direct
    async with connected(database_urls.direct) as owner:
        await owner.execute("update pabal.subscriptions set secret = replace(secret, 'v1.', 'v1.lost-')")

    refused = await shop.ask("POST", f"/{added['id']}/test", 409)

    assert refused["detail"].endswith("Rotate the secret")
    assert there.requests == []
    await shop.ask("POST", f"/{added['id']}/rotate-secret")
    assert (await shop.ask("POST", f"/{added['id']}/test"))["delivered"]


async def test_push_actions_on_a_pull_subscription_return_409(shop: Service) -> None:
    added = await shop.ask("POST", status=201, json={"event_types": ["*"]})

    assert (added["mode"], added["url"], added["secret"]) == ("pull", None, None)
    for deed, told in {
        "pause": "A pull subscription cannot be paused: stop pulling instead",
        "resume": "A pull subscription cannot be resumed: pull instead",
        "rotate-secret": "A pull subscription has no secret",
        "test": "Only a push subscription can be tested",
    }.items():
        assert (await shop.ask("POST", f"/{added['id']}/{deed}", 409))["detail"] == told


@pytest.mark.parametrize(
    "url",
    [
        "https://10.0.0.1/",
        "https://169.254.169.254/latest/meta-data",
        "https://[::1]/",
        "https://localhost/",
        "http://example.org/",
        "https://user:word@example.org/",
        "ftp://example.org/",
        "https://2130706433/",
    ],
)
async def test_an_address_we_would_not_go_to_is_refused_by_its_field(shop: Service, there: Receiver, url: str) -> None:
    added = await shop.ask("POST", status=201, json={"event_types": ["*"], "url": there.url})

    for made in (
        await shop.mistakes("POST", event_types=["*"], url=url),
        await shop.mistakes("PATCH", f"/{added['id']}", url=url),
    ):
        [(field, why)] = made
        assert field == "url"
        assert url not in why
    assert len((await shop.ask("GET"))["items"]) == 1
    assert (await shop.ask("GET", f"/{added['id']}"))["url"] == there.url


@pytest.mark.parametrize(
    ("brought", "field"),
    [
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
    ],
)
async def test_a_mistake_is_named(shop: Service, brought: dict[str, Any], field: str) -> None:
    assert [each for each, _ in await shop.mistakes("POST", **brought)] == [field]


async def test_a_subscription_of_another_service_is_not_found(
    hub: Hub, web: httpx2.AsyncClient, shop: Service, there: Receiver
) -> None:
    added = await shop.ask("POST", status=201, json={"event_types": ["*"], "url": there.url})
    other = await come(hub, web, "other", "write")
    one = f"/{added['id']}"
    nobodys = f"/{new_id()}"

    for method, path in [
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        *(("POST", f"/{deed}") for deed in ("pause", "resume", "test", "rotate-secret")),
    ]:
        how: dict[str, Any] = {"json": {}} if method == "PATCH" else {}
        theirs = await other.ask(method, one + path, 404, **how)
        missing = await other.ask(method, nobodys + path, 404, **how)
        assert theirs["detail"].replace(one[1:], "") == missing["detail"].replace(nobodys[1:], "")
    assert there.requests == []
    assert (await other.ask("GET"))["items"] == []
    assert (await other.ask("GET", "?service=shop"))["items"] == []
    refused = await other.ask("POST", status=403, json={"event_types": ["*"], "service_name": "shop"})
    assert refused["detail"] == "service_name: the token belongs to other"


async def test_who_looks_after_the_hub_sees_all_and_acts_for_others(
    hub: Hub, web: httpx2.AsyncClient, shop: Service, there: Receiver
) -> None:
    added = await shop.ask("POST", status=201, json={"event_types": ["*"], "url": there.url})
    keeper = await come(hub, web, "keeper", "events:consume", "hub:admin")

    made = await keeper.ask("POST", status=201, json={"event_types": ["cart.*"], "service_name": "shop"})
    assert (await keeper.ask("POST", f"/{added['id']}/pause"))["paused_at"] is not None
    assert [each["id"] for each in (await keeper.ask("GET", "?service=shop"))["items"]] == [added["id"], made["id"]]
    assert len((await shop.ask("GET"))["items"]) == 2
    assert await keeper.mistakes("POST", event_types=["*"], service_name="nobody") == [
        ("service_name", "No such service: nobody")
    ]


async def test_a_list_comes_in_pages(shop: Service) -> None:
    made = [(await shop.ask("POST", status=201, json={"event_types": [f"t{n}"]}))["id"] for n in range(5)]
    found: list[UUID] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = await shop.ask("GET", params=query)
        found += [each["id"] for each in page["items"]]
        if page["cursor"] is None:
            break
        query["cursor"] = page["cursor"]

    assert found == made
