"""The people API: limits on tokens, export and erasure."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import httpx2
import pytest

from pabal.api.people import PERSON_TOKENS_PER_SERVICE, TOKENS_PER_PERSON
from pabal.audit.pseudonym import person_pseudonym
from pabal.hub import DatabaseUrls, Hub
from pabal.limits import consume_rate_limit
from pabal.tokens.permission import Permission
from support.dump import dump_database
from support.inbox import JUN, MINA, Inbox
from support.oauth_client import bearer, register_oauth_service

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]


async def service_header(hub: Hub, web: httpx2.AsyncClient, name: str, *permissions: Permission) -> dict[str, str]:
    return bearer((await (await register_oauth_service(hub, web, name, *permissions)).tokens())["access_token"])


@pytest.fixture
async def admin(hub: Hub, web: httpx2.AsyncClient) -> dict[str, str]:
    return await service_header(hub, web, "office", Permission.ADMIN)


@pytest.fixture
async def shop(hub: Hub, web: httpx2.AsyncClient) -> dict[str, str]:
    return await service_header(hub, web, "shop", Permission.ISSUE_PERSON_TOKENS, Permission.WRITE_PEOPLE)


async def test_a_person_is_exported(
    inbox: Inbox, admin: dict[str, str], shop: dict[str, str], web: httpx2.AsyncClient
) -> None:
    toast = await inbox.insert_toast(MINA, body="for Mina alone")
    await inbox.insert_toast(JUN)
    await web.put(f"/v1/preferences/{MINA}", headers=shop, json={"dm_enabled": False})

    response = await web.get(f"/v1/people/{MINA}/export", headers=admin)

    document = response.json()
    assert response.status_code == 200
    assert [row["id"] for row in document["requests"]] == [str(toast)]
    assert [row["body"] for row in document["toasts"]] == ["for Mina alone"]
    assert document["person"]["dm_enabled"] is False
    assert JUN not in response.text
    export_entry = await inbox.db.fetchrow(
        "select actor, subject from pabal.audit_log where action = 'person.exported'"
    )
    assert export_entry is not None
    assert tuple(export_entry) == ("office", person_pseudonym(MINA))


async def test_only_the_person_is_erased(
    inbox: Inbox, admin: dict[str, str], shop: dict[str, str], web: httpx2.AsyncClient, database_urls: DatabaseUrls
) -> None:
    await inbox.insert_toast(MINA)
    await inbox.insert_toast(JUN)
    await web.put(f"/v1/preferences/{MINA}", headers=shop, json={"dm_enabled": False})
    assert (await web.post(f"/v1/people/{MINA}/token", headers=shop)).status_code == 201
    assert MINA.encode() in await dump_database(database_urls)

    erased = await web.delete(f"/v1/people/{MINA}", headers=admin)
    repeated = await web.delete(f"/v1/people/{MINA}", headers=admin)

    assert (erased.status_code, erased.json()) == (200, {"requests": 1, "toasts": 1, "others": 2})
    assert (repeated.status_code, repeated.json()["detail"]) == (404, "No such person")
    dump = await dump_database(database_urls)
    assert MINA.encode() not in dump
    assert JUN.encode() in dump
    entries = await inbox.db.fetch("select actor, subject from pabal.audit_log where action = 'person.erased'")
    assert [tuple(entry) for entry in entries] == [("office", person_pseudonym(MINA))]


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/people/{}/export"), ("DELETE", "/v1/people/{}")])
async def test_export_and_erase_require_admin(
    inbox: Inbox, shop: dict[str, str], web: httpx2.AsyncClient, method: str, path: str
) -> None:
    await inbox.insert_toast(MINA)
    person = bearer(await inbox.token(MINA))

    responses = [await web.request(method, path.format(MINA), headers=header) for header in (shop, person)]

    assert [response.status_code for response in responses] == [403, 401]
    assert len(await inbox.list_toasts(MINA)) == 1


async def test_links_are_limited_per_person(
    inbox: Inbox, shop: dict[str, str], web: httpx2.AsyncClient, travel: Travel
) -> None:
    path = f"/v1/people/{MINA}/token"
    statuses = [(await web.post(path, headers=shop)).status_code for _ in range(TOKENS_PER_PERSON.count)]

    refused = await web.post(path, headers=shop)
    other = await web.post(f"/v1/people/{JUN}/token", headers=shop)

    assert statuses == [201] * TOKENS_PER_PERSON.count
    assert (refused.status_code, refused.json()["code"], other.status_code) == (429, "too_many", 201)
    wait = int(refused.headers["retry-after"])
    assert 25 <= wait <= 30
    assert await inbox.db.fetchval("select count(*) from notification.person_tokens") == TOKENS_PER_PERSON.count + 1
    await travel(timedelta(seconds=wait))
    assert (await web.post(path, headers=shop)).status_code == 201


@pytest.mark.usefixtures("stopped_clock")
async def test_links_are_limited_per_service(hub: Hub, shop: dict[str, str], web: httpx2.AsyncClient) -> None:
    keep = await service_header(hub, web, "keep", Permission.ISSUE_PERSON_TOKENS)
    async with hub.autocommit() as tx:
        await consume_rate_limit(tx, PERSON_TOKENS_PER_SERVICE, "shop", PERSON_TOKENS_PER_SERVICE.count)

    responses = [await web.post(f"/v1/people/{MINA}/token", headers=header) for header in (shop, keep)]

    assert [response.status_code for response in responses] == [429, 201]
    assert responses[0].headers["retry-after"] == "1"


@pytest.mark.parametrize("name", ["1%0A", "1%202", "1" * 65, "%ED%95%9C"])
async def test_an_invalid_id_is_refused(web: httpx2.AsyncClient, shop: dict[str, str], name: str) -> None:
    response = await web.post(f"/v1/people/{name}/token", headers=shop)

    assert response.status_code == 400


async def test_a_service_asserts_and_withdraws_a_link(
    hub: Hub, inbox: Inbox, shop: dict[str, str], web: httpx2.AsyncClient
) -> None:
    keep = await service_header(hub, web, "keep", Permission.WRITE_PEOPLE)
    user = await inbox.db.fetchval("insert into identity.users default values returning id")
    path = f"/v1/people/{MINA}/user"

    unknown = await web.put(path, headers=shop, json={"user_id": "019a9b1c-5c1e-7d3a-b1a5-0c8d7f0a4e21"})
    asserted = await web.put(path, headers=shop, json={"user_id": str(user)})
    foreign = await web.delete(path, headers=keep)
    preferences = await web.get(f"/v1/preferences/{MINA}", headers=shop)
    withdrawn = await web.delete(path, headers=shop)

    assert (unknown.status_code, unknown.json()["detail"]) == (404, "No such user")
    assert asserted.status_code == 200
    assert (asserted.json()["service_name"], asserted.json()["user_id"]) == ("shop", str(user))
    assert foreign.status_code == 404
    assert preferences.json()["user_id"] is None
    assert withdrawn.status_code == 204
    assert await inbox.db.fetchval("select count(*) from notification.service_links") == 0


async def test_a_token_of_an_unknown_user_is_not_issued(shop: dict[str, str], web: httpx2.AsyncClient) -> None:
    response = await web.post("/v1/people/019a9b1c-5c1e-7d3a-b1a5-0c8d7f0a4e21/token", headers=shop)

    assert (response.status_code, response.json()["detail"]) == (404, "No such user")


async def test_a_user_id_in_another_spelling_is_the_same_person(
    inbox: Inbox, shop: dict[str, str], web: httpx2.AsyncClient
) -> None:
    user = await inbox.db.fetchval("insert into identity.users default values returning id")
    spellings = (str(user), str(user).upper())

    for number in range(TOKENS_PER_PERSON.count):
        path = f"/v1/people/{spellings[number % len(spellings)]}/token"
        assert (await web.post(path, headers=shop)).status_code == 201

    for spelling in spellings:
        assert (await web.post(f"/v1/people/{spelling}/token", headers=shop)).status_code == 429
    recorded = await inbox.db.fetch("select distinct subject from pabal.audit_log where action = 'person_token.issued'")
    assert [row["subject"] for row in recorded] == [person_pseudonym(str(user))]
    for spelling in (user.hex, f"urn:uuid:{user}"):
        assert (await web.post(f"/v1/people/{spelling}/token", headers=shop)).status_code == 400


async def test_links_are_exported_and_erased(
    inbox: Inbox, admin: dict[str, str], shop: dict[str, str], web: httpx2.AsyncClient, database_urls: DatabaseUrls
) -> None:
    user = await inbox.db.fetchval("insert into identity.users default values returning id")
    await web.put(f"/v1/people/{MINA}/user", headers=shop, json={"user_id": str(user)})

    document = (await web.get(f"/v1/people/{MINA}/export", headers=admin)).json()
    await web.delete(f"/v1/people/{MINA}", headers=admin)

    assert [link["service_name"] for link in document["service_links"]] == ["shop"]
    assert MINA.encode() not in await dump_database(database_urls)
