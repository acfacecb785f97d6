"""Services in the console: who there is, secrets that are shown once, tokens and subscriptions that end or rest."""

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
from pabal.tokens import inspect
from pabal.tokens.issue import authenticate_client
from pabal.tokens.permission import Permission
from pabal.tokens.services import add_service, count_live_families, list_live_secrets, list_service_summaries
from support.dump import dumped
from support.operator import HOSTILE, Signed, unharmed
from support.subscriptions import seen, subscribe
from tokens.asking import added, is_good, refreshed, signed_in

pytestmark = pytest.mark.anyio

SECRET = re.compile(r"pbs_[\w-]{43}")
URL = "https://hooks.example.org/T0/B0/a-secret-of-somebody"
NOBODY = "00000000-0000-0000-0000-000000000000"
Travel = Callable[[timedelta], Awaitable[None]]

DEEDS, FAIL, MANY = parse_queries("""
-- name: deeds
select action from pabal.audit_log where actor = 'operator:the-admin' and action not like 'operator.%' order by id
-- name: fail
update pabal.subscriptions set failures = :failures, open_until = pabal.now() + :rest::interval where id = :id
-- name: many
insert into public.token_families (service_name, expires_at)
select 'shop', pabal.now() + interval '1 day' + make_interval(secs => n) from generate_series(1, :count::integer) n
""")


async def deeds(hub: Hub) -> list[str]:
    async with hub.autocommit() as tx:
        return await tx.column(DEEDS)


async def comes_in(hub: Hub, secret: str, name: str = "shop") -> bool:
    try:
        async with hub.autocommit() as tx:
            await authenticate_client(tx, name, secret, Actor(name, "192.0.2.1"))
    except InvalidClient:
        return False
    return True


async def newest(hub: Hub, name: str = "shop") -> str:
    async with hub.autocommit() as tx:
        return str((await list_live_secrets(tx, name))[0].id)


async def live(hub: Hub, name: str = "shop") -> int:
    async with hub.autocommit() as tx:
        return await count_live_families(tx, name)


async def test_the_list_says_what_each_may_and_when_it_last_came(hub: Hub, admin: Signed, viewer: Signed) -> None:
    await signed_in(hub, await added(hub, permissions=("read", "events:publish")))
    await added(hub, "quiet", permissions=("hub:admin",))

    async with hub.autocommit() as tx:
        every = {each.name: each for each in await list_service_summaries(tx)}
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
    assert [each for each in Permission if f'name="permission" value="{each}"' not in form] == []


async def test_services_are_listed_page_by_page_and_families_are_counted_so_far(hub: Hub, admin: Signed) -> None:
    for n in range(52):
        await added(hub, f"service_{n:02}")
    first = await admin.get("/console/services")
    [cursor] = re.findall(r'href="/console/services\?cursor=(\w+)" rel="next"', first.text)
    second = await admin.get(f"/console/services?cursor={cursor}")

    names = [re.findall(r"data-row>(service_\d+)<", page.text) for page in (first, second)]
    assert sorted(names[0] + names[1]) == [f"service_{n:02}" for n in range(52)]
    assert 'rel="next"' not in second.text

    await added(hub)
    async with hub.autocommit() as tx:
        await tx.run(MANY, count=inspect.MAX_COUNTED_FAMILIES + 20)
    assert "1,000+" in (await admin.get("/console/services?cursor=service_99")).text
    assert "1,000+" in (await admin.get("/console/services/shop")).text
    assert "1,020 tokens of" in (await admin.post("/console/services/shop/revoke")).text


async def test_the_secret_of_a_new_service_works_and_is_shown_once(
    hub: Hub,
    database_urls: DatabaseUrls,
    admin: Signed,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    form: dict[str, Any] = {"name": "shop", "description": "sells", "permission": ["events:read", "events:publish"]}

    answer = await admin.post("/console/services", **form)
    [secret] = set(SECRET.findall(answer.text))
    again = await admin.post("/console/services", **form)
    rotated = await admin.post("/console/services/shop/rotate", overlap="7d", newest=await newest(hub))
    [second] = set(SECRET.findall(rotated.text))

    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert answer.text.count(secret) == 1
    assert (again.status_code, SECRET.findall(again.text)) == (409, [])
    assert "Service shop already exists" in again.text
    assert await comes_in(hub, secret)
    assert await comes_in(hub, second)
    pages = [await admin.get(path) for path in ("/console/services", "/console/services/shop", "/console/audit")]
    shown = capsys.readouterr()
    told = [*(page.text for page in pages), shown.out, shown.err, *(f"{r.__dict__}" for r in caplog.records)]
    told += [str(each.headers.raw) for each in (answer, again, rotated, *pages)]
    told += [(await dumped(database_urls)).decode()]
    assert "request answered" in shown.out + shown.err
    for each in (secret, second):
        assert not [text for text in told if each.removeprefix("pbs_") in text]
    assert await deeds(hub) == ["service.added", "service.secret_rotated", "service.secret_rotated"]


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
async def test_what_is_wrong_with_a_new_service_is_said_beside_the_form(
    hub: Hub, admin: Signed, form: dict[str, str], says: str
) -> None:
    answer = await admin.post("/console/services", **form)

    assert answer.status_code == 400
    assert says in answer.text
    assert f'name="name" value="{form["name"]}"' in answer.text
    assert await deeds(hub) == []


async def test_two_who_rotate_at_once_make_one_new_secret(hub: Hub, admin: Signed) -> None:
    await added(hub)
    form = {"overlap": "7d", "newest": await newest(hub)}

    answers = await asyncio.gather(*(admin.post("/console/services/shop/rotate", **form) for _ in range(6)))

    shown = [secret for answer in answers for secret in {*SECRET.findall(answer.text)}]
    assert len(shown) == 1
    assert sorted(answer.status_code for answer in answers) == [200] + [303] * 5
    assert await comes_in(hub, shown[0])
    assert await deeds(hub) == ["service.secret_rotated"]


async def test_the_overlap_is_as_chosen_and_ending_secrets_at_once_asks_first(
    hub: Hub, admin: Signed, travel: Travel
) -> None:
    first = await added(hub)
    rotated = await admin.post("/console/services/shop/rotate", overlap="1h", newest=await newest(hub))
    [second] = {*SECRET.findall(rotated.text)}
    await travel(timedelta(minutes=59))
    form = {"overlap": "0", "newest": await newest(hub)}
    asked = await admin.post("/console/services/shop/rotate", **form)
    assert "2 active secrets are revoked immediately." in asked.text
    assert await comes_in(hub, first)
    await travel(timedelta(minutes=1))
    assert not await comes_in(hub, first)

    assert await comes_in(hub, second)
    done = await admin.post("/console/services/shop/rotate", **form, count=2)  # they are one by now, and it ends
    [third] = {*SECRET.findall(done.text)}
    assert not await comes_in(hub, second)
    assert await comes_in(hub, third)
    wrong = await admin.post("/console/services/shop/rotate", overlap="-1d", newest=await newest(hub))
    assert wrong.status_code == 400


async def test_a_service_is_kept_out_and_let_in_again(hub: Hub, admin: Signed) -> None:
    secret = await added(hub)
    await signed_in(hub, secret)

    asked = await admin.post("/console/services/shop/disable")
    assert "will be disabled. Its secrets and" in asked.text
    assert "1 active token are rejected" in asked.text
    assert await comes_in(hub, secret)
    await signed_in(hub, secret)  # whoever has the secret cannot keep it from being done by coming in once more
    assert (await admin.post("/console/services/shop/disable", count=1)).status_code == 303
    assert not await comes_in(hub, secret)
    assert "Disabled" in (await admin.get("/console/services/shop")).text
    assert (await admin.post("/console/services/shop/enable")).status_code == 303
    assert await comes_in(hub, secret)
    assert await deeds(hub) == ["service.disabled", "service.enabled"]


async def test_the_hub_cannot_be_kept_out(hub: Hub, admin: Signed) -> None:
    answer = await admin.post("/console/services/hub/disable", count=0)

    assert answer.status_code == 409
    assert "own service cannot be disabled" in answer.text
    assert "/disable" not in (await admin.get("/console/services/hub")).text


async def test_nobody_gets_a_secret_to_speak_in_the_name_of_the_hub(hub: Hub, admin: Signed) -> None:
    answer = await admin.post("/console/services/hub/rotate", overlap="7d", newest="none")

    assert answer.status_code == 409
    assert "own service has no secret" in answer.text
    assert not SECRET.findall(answer.text)
    assert "/rotate" not in (await admin.get("/console/services/hub")).text


async def test_one_family_ends_or_all_of_them_after_the_exact_number(hub: Hub, admin: Signed) -> None:
    secret = await added(hub)
    pairs = [await signed_in(hub, secret) for _ in range(4)]
    await refreshed(hub, pairs[0].refresh_token)
    page = await admin.get("/console/services/shop")
    assert "\N{MULTIPLICATION SIGN}1" in page.text
    assert page.text.count("never") == 3

    one = f"/console/services/shop/families/{pairs[0].family_id}/revoke"
    assert "1 token of “shop” will be revoked." in (await admin.post(one)).text
    assert await live(hub) == 4
    assert (await admin.post(one, count=1)).status_code == 303
    assert (await admin.post(one, count=1)).status_code == 404
    assert await live(hub) == 3

    every = "/console/services/shop/revoke"
    assert "3 tokens of “shop” will be revoked." in (await admin.post(every)).text
    late = await signed_in(hub, secret)
    assert (await admin.post(every, count=3)).status_code == 303, "another one came meanwhile, and ends too"
    assert await live(hub) == 0
    assert not await is_good(hub, late.access_token)
    assert await deeds(hub) == ["token.revoked"] * 5


async def test_families_are_listed_page_by_page(hub: Hub, admin: Signed) -> None:
    await added(hub)
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


async def test_a_subscription_says_how_it_stands_and_rests_when_told(hub: Hub, admin: Signed) -> None:
    await added(hub)
    await added(hub, "mail")
    push, _ = await subscribe(hub, "shop", "order.*", url=URL)
    pull, _ = await subscribe(hub, "shop", "refund.made")
    home = f"/console/services/shop/subscriptions/{push.id}"
    page = (await admin.get("/console/services/shop")).text
    assert f"{home}/pause" in page
    assert f"{pull.id}/pause" not in page
    assert URL in page

    assert (await admin.post(f"{home}/pause")).status_code == 303
    assert (await seen(hub, push)).paused_at is not None
    assert "Paused" in (await admin.get("/console/services/shop")).text
    assert (await admin.post(f"{home}/resume")).status_code == 303
    assert (await seen(hub, push)).paused_at is None
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
    assert unharmed(given_up)

    elsewhere = f"/console/services/mail/subscriptions/{push.id}/resume"
    assert (await admin.post(elsewhere)).status_code == 404
    assert (await seen(hub, push)).disabled_at is not None
    assert (await admin.post(f"/console/services/shop/subscriptions/{pull.id}/pause")).status_code == 409
    assert await deeds(hub) == ["subscription.paused", "subscription.resumed"]


async def test_a_viewer_sees_the_host_of_an_address_and_no_button(hub: Hub, viewer: Signed) -> None:
    await signed_in(hub, await added(hub))
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
async def test_a_viewer_and_a_form_of_somebody_else_change_nothing(
    hub: Hub, database_urls: DatabaseUrls, admin: Signed, viewer: Signed, path: str
) -> None:
    pair = await signed_in(hub, await added(hub))
    push, _ = await subscribe(hub, "shop", "order.*", url=URL)
    where = f"/console/services{path}".format(f=pair.family_id, s=push.id)
    form = {"name": "more", "permission": "events:read", "count": "1", "overlap": "0", "newest": await newest(hub)}
    before = await dumped(database_urls)

    answers = [await viewer.post(where, **form), await admin.post(where, **form | {"csrf_token": "0" * 64})]

    assert [answer.status_code for answer in answers] == [403, 403]
    assert without_keys(await dumped(database_urls)) == without_keys(before)


def without_keys(dump: bytes) -> bytes:
    """A dump without the line that is another in each: pg_dump's own key."""
    return re.sub(rb"\\(un)?restrict \w+", b"", dump)


@pytest.mark.parametrize(
    "path",
    ["nobody", "..%2faudit", "shop/families/" + NOBODY + "/revoke", "shop/subscriptions/" + NOBODY + "/pause"],
)
async def test_what_is_not_there_is_not_found(hub: Hub, admin: Signed, path: str) -> None:
    await added(hub)

    looked, done = await admin.get(f"/console/services/{path}"), await admin.post(f"/console/services/{path}", count=1)

    assert looked.status_code in {404, 405}
    assert done.status_code in {404, 405}


async def test_a_family_of_another_service_is_not_found(hub: Hub, admin: Signed) -> None:
    pair = await signed_in(hub, await added(hub))
    await added(hub, "mail")

    answer = await admin.post(f"/console/services/mail/families/{pair.family_id}/revoke", count=1)

    assert answer.status_code == 404
    assert await live(hub) == 1


async def test_hostile_words_stay_words(hub: Hub, admin: Signed) -> None:
    async with hub.transaction() as tx:
        await add_service(tx, "shop", ["read"], Actor(HOSTILE), description=HOSTILE)
        draft = SubscriptionDraft("shop", ["order.*"], f"https://example.org/{HOSTILE}", HOSTILE)
        await add_subscription(tx, hub.key_ring, draft, Actor("tester"))

    pages = [await admin.get(path) for path in ("/console/services", "/console/services/shop", "/console/audit")]
    pages.append(await admin.post("/console/services", name=HOSTILE, description=HOSTILE, permission=HOSTILE))
    pages.append(await admin.get(f"/console/services?{urlencode({'cursor': HOSTILE})}"))

    assert [page.status_code for page in pages] == [200, 200, 200, 400, 200]
    for page in pages:
        assert unharmed(page)
        assert "{{7*7}}" in page.text or page is pages[-1]
