"""Services: secrets shown once, token families and subscriptions."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest

from pabal.core.actor import Actor
from pabal.core.errors import InvalidClient
from pabal.db.queries import parse_queries
from pabal.events.subscriptions import SubscriptionDraft, add_subscription, disable_subscription
from pabal.hub import DatabaseUrls, Hub
from pabal.tokens import explain
from pabal.tokens.issue import authenticate_client
from pabal.tokens.permission import Permission
from pabal.tokens.services import add_service, count_live_families, list_live_secrets, list_service_summaries
from support.dump import dump_database
from support.operator import HOSTILE, SignedInOperator, is_escaped
from support.subscriptions import reload_subscription, subscribe
from tokens.token_operations import add_shop, is_valid_token, issue_pair, refresh_pair

pytestmark = pytest.mark.anyio

SECRET = re.compile(r"pbs_[\w-]{43}")
URL = "https://hooks.example.org/T0/B0/a-secret-of-somebody"
NOBODY = "00000000-0000-0000-0000-000000000000"
Travel = Callable[[timedelta], Awaitable[None]]

ENTRIES, FAIL, MANY = parse_queries("""
-- name: entries
select action from pabal.audit_log where actor = 'operator:the-admin' and action not like 'operator.%' order by id
-- name: fail
update pabal.subscriptions set failures = :failures, open_until = pabal.now() + :rest::interval where id = :id
-- name: many
insert into public.token_families (service_name, expires_at)
select 'shop', pabal.now() + interval '1 day' + make_interval(secs => n) from generate_series(1, :count::integer) n
""")


async def list_audit_entries(hub: Hub) -> list[str]:
    async with hub.autocommit() as tx:
        return await tx.column(ENTRIES)


async def can_sign_in(hub: Hub, secret: str, name: str = "shop") -> bool:
    try:
        async with hub.autocommit() as tx:
            await authenticate_client(tx, name, secret, Actor(name, "192.0.2.1"))
    except InvalidClient:
        return False
    return True


async def newest_secret(hub: Hub, name: str = "shop") -> str:
    async with hub.autocommit() as tx:
        return str((await list_live_secrets(tx, name))[0].id)


async def live_families(hub: Hub, name: str = "shop") -> int:
    async with hub.autocommit() as tx:
        return await count_live_families(tx, name)


async def test_the_list_shows_permissions_and_last_use(
    hub: Hub, admin: SignedInOperator, viewer: SignedInOperator
) -> None:
    await issue_pair(hub, await add_shop(hub, permissions=("read", "events:publish")))
    await add_shop(hub, "quiet", permissions=("hub:admin",))

    async with hub.autocommit() as tx:
        every = {service_summary.name: service_summary for service_summary in await list_service_summaries(tx)}
    page = await viewer.get("/console/services")

    assert (every["shop"].live_secret_count, every["shop"].live_family_count, every["quiet"].live_family_count) == (
        1,
        1,
        0,
    )
    assert every["shop"].last_token_at is not None
    assert every["quiet"].last_token_at is None
    assert page.status_code == 200
    assert "events:publish" in page.text
    assert "never" in page.text
    assert 'name="permission"' not in page.text
    form = (await admin.get("/console/services")).text
    assert [permission for permission in Permission if f'name="permission" value="{permission}"' not in form] == []


async def test_services_are_paginated_and_token_families_counted_up_to_a_limit(
    hub: Hub, admin: SignedInOperator
) -> None:
    for n in range(52):
        await add_shop(hub, f"service_{n:02}")
    first = await admin.get("/console/services")
    [cursor] = re.findall(r'href="/console/services\?cursor=(\w+)" rel="next"', first.text)
    second = await admin.get(f"/console/services?cursor={cursor}")

    names = [re.findall(r"data-row>(service_\d+)<", page.text) for page in (first, second)]
    assert sorted(names[0] + names[1]) == [f"service_{n:02}" for n in range(52)]
    assert 'rel="next"' not in second.text

    await add_shop(hub)
    async with hub.autocommit() as tx:
        await tx.run(MANY, count=explain.MAX_COUNTED_FAMILIES + 20)
    assert "1,000+" in (await admin.get("/console/services?cursor=service_99")).text
    assert "1,000+" in (await admin.get("/console/services/shop")).text
    assert "1,020 tokens of" in (await admin.post("/console/services/shop/revoke")).text


async def test_the_secret_of_a_new_service_works_and_is_shown_once(
    hub: Hub,
    database_urls: DatabaseUrls,
    admin: SignedInOperator,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    form: dict[str, Any] = {"name": "shop", "description": "sells", "permission": ["events:read", "events:publish"]}

    response = await admin.post("/console/services", **form)
    [secret] = set(SECRET.findall(response.text))
    again = await admin.post("/console/services", **form)
    rotated = await admin.post("/console/services/shop/rotate", overlap="7d", newest=await newest_secret(hub))
    [second] = set(SECRET.findall(rotated.text))

    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"
    assert response.text.count(secret) == 1
    assert (again.status_code, SECRET.findall(again.text)) == (409, [])
    assert "Service shop already exists" in again.text
    assert await can_sign_in(hub, secret)
    assert await can_sign_in(hub, second)
    pages = [await admin.get(path) for path in ("/console/services", "/console/services/shop", "/console/audit")]
    shown = capsys.readouterr()
    texts = [*(page.text for page in pages), shown.out, shown.err, *(f"{r.__dict__}" for r in caplog.records)]
    texts += [str(reply.headers.raw) for reply in (response, again, rotated, *pages)]
    texts += [(await dump_database(database_urls)).decode()]
    assert "request answered" in shown.out + shown.err
    for value in (secret, second):
        assert not [text for text in texts if value.removeprefix("pbs_") in text]
    assert await list_audit_entries(hub) == ["service.added", "service.secret_rotated", "service.secret_rotated"]


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"name": "Shop!", "permission": "events:read"}, "name: must be 2 to 63 lower-case letters"),
        ({"name": "shop"}, "permission: is required"),
        ({"name": "shop", "permission": "everything"}, "is not a permission"),
        ({"name": "shop", "permission": "events:read", "description": "a\nb"}, "description: must be one line"),
        ({"name": "shop", "permission": "events:read", "description": "x" * 501}, "description: must be one line"),
    ],
)
async def test_an_invalid_service_shows_the_form_with_its_error(
    hub: Hub, admin: SignedInOperator, form: dict[str, str], says: str
) -> None:
    response = await admin.post("/console/services", **form)

    assert response.status_code == 400
    assert says in response.text
    assert f'name="name" value="{form["name"]}"' in response.text
    assert await list_audit_entries(hub) == []


async def test_two_concurrent_rotations_create_one_secret(hub: Hub, admin: SignedInOperator) -> None:
    await add_shop(hub)
    form = {"overlap": "7d", "newest": await newest_secret(hub)}

    responses = await asyncio.gather(*(admin.post("/console/services/shop/rotate", **form) for _ in range(6)))

    shown = [secret for response in responses for secret in {*SECRET.findall(response.text)}]
    assert len(shown) == 1
    assert sorted(response.status_code for response in responses) == [200] + [303] * 5
    assert await can_sign_in(hub, shown[0])
    assert await list_audit_entries(hub) == ["service.secret_rotated"]


async def test_the_overlap_is_selectable_and_immediate_revocation_requires_confirmation(
    hub: Hub, admin: SignedInOperator, travel: Travel
) -> None:
    first = await add_shop(hub)
    rotated = await admin.post("/console/services/shop/rotate", overlap="1h", newest=await newest_secret(hub))
    [second] = {*SECRET.findall(rotated.text)}
    await travel(timedelta(minutes=59))
    form = {"overlap": "0", "newest": await newest_secret(hub)}
    confirmation = await admin.post("/console/services/shop/rotate", **form)
    assert "2 active secrets are revoked immediately." in confirmation.text
    assert await can_sign_in(hub, first)
    await travel(timedelta(minutes=1))
    assert not await can_sign_in(hub, first)

    assert await can_sign_in(hub, second)
    done = await admin.post("/console/services/shop/rotate", **form, count=2)  # one secret is left and is revoked
    [third] = {*SECRET.findall(done.text)}
    assert not await can_sign_in(hub, second)
    assert await can_sign_in(hub, third)
    wrong = await admin.post("/console/services/shop/rotate", overlap="-1d", newest=await newest_secret(hub))
    assert wrong.status_code == 400


async def test_a_service_is_disabled_and_enabled(hub: Hub, admin: SignedInOperator) -> None:
    secret = await add_shop(hub)
    await issue_pair(hub, secret)

    confirmation = await admin.post("/console/services/shop/disable")
    assert "will be disabled. Its secrets and" in confirmation.text
    assert "1 active token are rejected" in confirmation.text
    assert await can_sign_in(hub, secret)
    await issue_pair(hub, secret)  # a new sign-in must not block the action
    assert (await admin.post("/console/services/shop/disable", count=1)).status_code == 303
    assert not await can_sign_in(hub, secret)
    assert "Disabled" in (await admin.get("/console/services/shop")).text
    assert (await admin.post("/console/services/shop/enable")).status_code == 303
    assert await can_sign_in(hub, secret)
    assert await list_audit_entries(hub) == ["service.disabled", "service.enabled"]


async def test_the_hub_service_cannot_be_disabled(hub: Hub, admin: SignedInOperator) -> None:
    response = await admin.post("/console/services/hub/disable", count=0)

    assert response.status_code == 409
    assert "own service cannot be disabled" in response.text
    assert "/disable" not in (await admin.get("/console/services/hub")).text


async def test_the_hub_service_gets_no_secret(hub: Hub, admin: SignedInOperator) -> None:
    response = await admin.post("/console/services/hub/rotate", overlap="7d", newest="none")

    assert response.status_code == 409
    assert "own service has no secret" in response.text
    assert not SECRET.findall(response.text)
    assert "/rotate" not in (await admin.get("/console/services/hub")).text


async def test_one_token_family_is_revoked_or_all_with_the_exact_count(hub: Hub, admin: SignedInOperator) -> None:
    secret = await add_shop(hub)
    pairs = [await issue_pair(hub, secret) for _ in range(4)]
    await refresh_pair(hub, pairs[0].refresh_token)
    page = await admin.get("/console/services/shop")
    assert "\N{MULTIPLICATION SIGN}1" in page.text
    assert page.text.count("never") == 3

    one = f"/console/services/shop/families/{pairs[0].family_id}/revoke"
    assert "1 token of “shop” will be revoked." in (await admin.post(one)).text
    assert await live_families(hub) == 4
    assert (await admin.post(one, count=1)).status_code == 303
    assert (await admin.post(one, count=1)).status_code == 404
    assert await live_families(hub) == 3

    every = "/console/services/shop/revoke"
    assert "3 tokens of “shop” will be revoked." in (await admin.post(every)).text
    late = await issue_pair(hub, secret)
    assert (await admin.post(every, count=3)).status_code == 303, "another one came meanwhile, and ends too"
    assert await live_families(hub) == 0
    assert not await is_valid_token(hub, late.access_token)
    assert await list_audit_entries(hub) == ["token.revoked"] * 5


async def test_token_families_are_paginated(hub: Hub, admin: SignedInOperator) -> None:
    await add_shop(hub)
    async with hub.autocommit() as tx:
        await tx.run(MANY, count=45)
    ids: list[str] = []
    path = "/console/services/shop"
    while path:
        page = await admin.get(path)
        ids += re.findall(r"/families/([0-9a-f-]{36})/revoke", page.text)
        more = re.search(r'href="([^"]+)" rel="next"', page.text)
        path = more[1].replace("&amp;", "&") if more else ""

    assert len(ids) == len({*ids}) == 45


async def test_a_subscription_shows_its_state_and_can_be_paused(hub: Hub, admin: SignedInOperator) -> None:
    await add_shop(hub)
    await add_shop(hub, "mail")
    push, _ = await subscribe(hub, "shop", "order.*", url=URL)
    pull, _ = await subscribe(hub, "shop", "refund.made")
    home = f"/console/services/shop/subscriptions/{push.id}"
    page = (await admin.get("/console/services/shop")).text
    assert f"{home}/pause" in page
    assert f"{pull.id}/pause" not in page
    assert URL in page

    assert (await admin.post(f"{home}/pause")).status_code == 303
    assert (await reload_subscription(hub, push)).paused_at is not None
    assert "Paused" in (await admin.get("/console/services/shop")).text
    assert (await admin.post(f"{home}/resume")).status_code == 303
    assert (await reload_subscription(hub, push)).paused_at is None
    for rest, says in ((timedelta(minutes=5), "Suspended (repeated failures)"), (timedelta(), "Probing")):
        async with hub.autocommit() as tx:
            await tx.run(FAIL, id=push.id, failures=6, rest=rest)
        page = (await admin.get("/console/services/shop")).text
        assert says in page
        assert "6 failures in a row" in page
    async with hub.transaction() as tx:
        await disable_subscription(tx, push.id, "shop", URL, f"answered 410: {HOSTILE}", Actor("hub"))
    given_up = await admin.get("/console/services/shop")
    assert "is-auto_disabled" in given_up.text
    assert is_escaped(given_up)

    elsewhere = f"/console/services/mail/subscriptions/{push.id}/resume"
    assert (await admin.post(elsewhere)).status_code == 404
    assert (await reload_subscription(hub, push)).disabled_at is not None
    assert (await admin.post(f"/console/services/shop/subscriptions/{pull.id}/pause")).status_code == 409
    assert await list_audit_entries(hub) == ["subscription.paused", "subscription.resumed"]


async def test_a_viewer_sees_only_the_host_of_a_url_and_no_buttons(hub: Hub, viewer: SignedInOperator) -> None:
    await issue_pair(hub, await add_shop(hub))
    await subscribe(hub, "shop", "order.*", url=URL)

    page = (await viewer.get("/console/services/shop")).text

    assert "https://hooks.example.org/•••" in page
    assert "a-secret-of-somebody" not in page
    assert re.findall(r'action="/console/services[^"]*"', page) == []


@pytest.mark.parametrize(
    "path",
    [
        *("", "/shop/rotate", "/shop/disable", "/shop/enable", "/shop/revoke", "/shop/families/{f}/revoke"),
        *("/shop/subscriptions/{s}/pause", "/shop/subscriptions/{s}/resume"),
    ],
)
async def test_viewers_and_forged_forms_change_nothing(
    hub: Hub, database_urls: DatabaseUrls, admin: SignedInOperator, viewer: SignedInOperator, path: str
) -> None:
    pair = await issue_pair(hub, await add_shop(hub))
    push, _ = await subscribe(hub, "shop", "order.*", url=URL)
    url = f"/console/services{path}".format(f=pair.family_id, s=push.id)
    form = {
        "name": "more",
        "permission": "events:read",
        "count": "1",
        "overlap": "0",
        "newest": await newest_secret(hub),
    }
    before = await dump_database(database_urls)

    responses = [await viewer.post(url, **form), await admin.post(url, **form | {"csrf_token": "0" * 64})]

    assert [response.status_code for response in responses] == [403, 403]
    assert without_keys(await dump_database(database_urls)) == without_keys(before)


def without_keys(dump: bytes) -> bytes:
    """Remove the random key that pg_dump writes into every dump."""
    return re.sub(rb"\\(un)?restrict \w+", b"", dump)


@pytest.mark.parametrize(
    "path",
    ["nobody", "..%2faudit", "shop/families/" + NOBODY + "/revoke", "shop/subscriptions/" + NOBODY + "/pause"],
)
async def test_a_missing_service_is_not_found(hub: Hub, admin: SignedInOperator, path: str) -> None:
    await add_shop(hub)

    page, done = await admin.get(f"/console/services/{path}"), await admin.post(f"/console/services/{path}", count=1)

    assert page.status_code in {404, 405}
    assert done.status_code in {404, 405}


async def test_a_family_of_another_service_is_not_found(hub: Hub, admin: SignedInOperator) -> None:
    pair = await issue_pair(hub, await add_shop(hub))
    await add_shop(hub, "mail")

    response = await admin.post(f"/console/services/mail/families/{pair.family_id}/revoke", count=1)

    assert response.status_code == 404
    assert await live_families(hub) == 1


async def test_hostile_values_are_escaped(hub: Hub, admin: SignedInOperator) -> None:
    async with hub.transaction() as tx:
        await add_service(tx, "shop", ["read"], Actor(HOSTILE), description=HOSTILE)
        draft = SubscriptionDraft("shop", ["order.*"], f"https://example.org/{HOSTILE}", HOSTILE)
        await add_subscription(tx, hub.key_ring, draft, Actor("tester"))

    pages = [await admin.get(path) for path in ("/console/services", "/console/services/shop", "/console/audit")]
    pages.append(await admin.post("/console/services", name=HOSTILE, description=HOSTILE, permission=HOSTILE))
    pages.append(await admin.get(f"/console/services?{urlencode({'cursor': HOSTILE})}"))

    assert [page.status_code for page in pages] == [200, 200, 200, 400, 200]
    for page in pages:
        assert is_escaped(page)
        assert "{{7*7}}" in page.text or page is pages[-1]
