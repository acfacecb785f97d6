"""A session over HTTP: its cookie turns while pages are asked for, and everything it did is written down."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from http.cookies import SimpleCookie

import httpx2
import pytest

from pabal.console import live
from pabal.console.login import LOGIN_FORM_COOKIE, OPERATOR_COOKIE, SIGN_IN_FAILURE_RECORDS, SIGN_INS_PER_ADDRESS
from pabal.db.queries import parse_queries
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.operators.operators import Role, add_operator, ensure_first_operator
from pabal.operators.sessions import find_operator_session
from pabal.settings import Settings
from support.operator import HOSTILE, PASSWORD, Signed
from support.server import serving

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)

DEEDS, ONE, LOG = parse_queries("""
-- name: deeds
select actor, action, subject, host(client_ip) as client_ip
from pabal.audit_log where action like 'operator.s%' order by id
-- name: one
select 1
-- name: log
select string_agg(l::text, ' ') from pabal.audit_log l
""")


@dataclass(frozen=True, slots=True)
class Noted:
    actor: str
    action: str
    subject: str | None
    client_ip: str | None


async def noted(hub: Hub) -> list[Noted]:
    async with hub.autocommit() as tx:
        return await tx.all(Noted, DEEDS)


def given(answer: httpx2.Response) -> str | None:
    """The session's cookie, if the answer sets one."""
    jar = SimpleCookie()
    for header in answer.headers.get_list("set-cookie"):
        jar.load(header)
    return jar[OPERATOR_COOKIE].value if OPERATOR_COOKIE in jar else None


async def look(web: httpx2.AsyncClient, token: str, path: str = "/console", **headers: str) -> httpx2.Response:
    return await web.get(path, headers={"cookie": f"{OPERATOR_COOKIE}={token}", **headers})


async def try_in(web: httpx2.AsyncClient, name: str, password: str, cookie: str = "") -> httpx2.Response:
    """Send the sign-in form as a browser would that has just been shown it."""
    return await web.post(
        "/console/login",
        data={"csrf_token": "f", "name": name, "password": password},
        headers={"cookie": "; ".join(filter(None, (f"{LOGIN_FORM_COOKIE}=f", cookie)))},
    )


async def test_an_hour_of_use_turns_the_cookie(admin: Signed, web: httpx2.AsyncClient, travel: Travel) -> None:
    assert given(await admin.get("/console")) is None
    await travel(HOUR)

    page = await admin.get("/console")

    fresh = given(page)
    assert page.status_code == 200
    assert fresh
    assert fresh != admin.token
    assert (await look(web, fresh)).status_code == 200
    assert (await admin.get("/console")).status_code == 200  # what was under way still comes in
    await travel(2 * MINUTE)
    assert (await look(web, fresh)).status_code == 200
    assert (await admin.get("/console")).headers["location"] == "/console/login"
    assert (await look(web, fresh)).status_code == 303, "two browsers had it"


async def test_the_sign_in_page_turns_the_cookie_of_whoever_is_in(
    admin: Signed, web: httpx2.AsyncClient, travel: Travel
) -> None:
    await travel(HOUR)

    fresh = given(await admin.get("/console/login"))

    assert fresh
    await travel(2 * MINUTE)
    assert (await look(web, fresh)).status_code == 200


@pytest.mark.parametrize("path", ["/console/nowhere-at-all", "/console/services/nobody", "/console/you", "/console"])
async def test_windows_that_ask_at_once_all_get_in_and_end_up_with_one_cookie(
    admin: Signed, web: httpx2.AsyncClient, travel: Travel, path: str
) -> None:
    await travel(HOUR)

    answers = await asyncio.gather(*(admin.get(path if n % 2 else "/console/you") for n in range(12)))

    assert not [each for each in answers if each.status_code == 303]
    fresh = {token for each in answers if (token := given(each))}
    assert len(fresh) == 1
    assert (await look(web, *fresh)).status_code == 200


async def test_a_form_sent_while_the_cookie_turns_is_taken(
    admin: Signed, web: httpx2.AsyncClient, travel: Travel
) -> None:
    await travel(HOUR)

    added, *_ = await asyncio.gather(
        admin.post("/console/services", name="shop", permission="events:read"),
        *(admin.get("/console") for _ in range(5)),
    )

    assert added.status_code == 200
    assert "pbs_" in added.text


async def test_a_page_that_looks_again_by_itself_turns_nothing_and_keeps_nobody_in(
    admin: Signed, web: httpx2.AsyncClient, travel: Travel
) -> None:
    for _ in range(2):
        await travel(59 * MINUTE)
        again = await look(web, admin.token, "/console", **{"x-refresh": "again"})
        assert (again.status_code, given(again)) == (200, None)

    await travel(3 * MINUTE)

    assert (await look(web, admin.token, "/console", **{"x-refresh": "again"})).status_code == 303


async def test_a_stream_goes_on_when_the_cookie_turns_and_ends_with_its_session(
    hub: Hub, admin: Signed, web: httpx2.AsyncClient, travel: Travel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "REFRESHES_PER_ACCESS_CHECK", 1)
    headers = {"cookie": f"{OPERATOR_COOKIE}={admin.token}"}
    async with web.stream("GET", "/console/live", headers=headers) as stream, asyncio.timeout(30):
        lines = stream.aiter_lines()
        await heard(lines)
        await travel(HOUR)
        fresh = given(await admin.get("/console"))
        assert fresh
        await travel(5 * MINUTE)
        await heard(lines)
        await heard(lines)

        await web.post(
            "/console/logout",
            data={"csrf_token": admin.session.csrf.hex()},
            headers={"cookie": f"{OPERATOR_COOKIE}={fresh}"},
        )
        assert [line async for line in lines if line == "event: refresh"][2:] == []


async def test_a_stream_goes_on_while_the_database_is_away(
    hub: Hub, admin: Signed, web: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "REFRESHES_PER_ACCESS_CHECK", 1)
    headers = {"cookie": f"{OPERATOR_COOKIE}={admin.token}"}
    async with web.stream("GET", "/console/live", headers=headers) as stream, asyncio.timeout(30):
        lines = stream.aiter_lines()
        await heard(lines)
        await hub.db.close()
        await heard(lines)
        await heard(lines)
        await hub.db.open()
        await heard(lines)


async def heard(lines: AsyncIterator[str]) -> None:
    async for line in lines:
        if line == "event: refresh":
            return
    pytest.fail("the stream ended")


async def test_signing_in_takes_no_token_from_the_browser(hub: Hub, web: httpx2.AsyncClient) -> None:
    async with hub.transaction() as tx:
        await ensure_first_operator(tx, PASSWORD)
    chosen = "chosen-by-somebody-else"

    answer = await try_in(web, "admin", PASSWORD, f"{OPERATOR_COOKIE}={chosen}")

    token = given(answer)
    assert answer.status_code == 303
    assert token
    assert token != chosen
    assert (await look(web, chosen)).status_code == 303
    assert (await look(web, token)).status_code == 200


async def test_signing_in_and_out_and_failing_to_is_written_down(hub: Hub, web: httpx2.AsyncClient) -> None:
    async with hub.transaction() as tx:
        await add_operator(tx, "Mina", PASSWORD, Role.ADMIN)

    await try_in(web, "mina", "wrong horse")
    await try_in(web, "nobody", "wrong horse")
    await try_in(web, HOSTILE + "\x1b[31m\n", "wrong horse")
    entered = given(await try_in(web, "mina", PASSWORD))
    assert entered
    async with hub.autocommit() as tx:
        session = await find_operator_session(tx, entered)
    assert session is not None
    await web.post(
        "/console/logout", data={"csrf_token": session.csrf.hex()}, headers={"cookie": f"{OPERATOR_COOKIE}={entered}"}
    )

    failed = "operator.sign_in_failed"
    assert [(each.actor, each.action, each.subject) for each in await noted(hub)] == [
        ("nobody", failed, "Mina"),
        ("nobody", failed, "unknown"),  # what was typed there may have been a password
        ("nobody", failed, "unknown"),
        ("operator:Mina", "operator.signed_in", "Mina"),
        ("operator:Mina", "operator.signed_out", "Mina"),
    ]
    assert {each.client_ip for each in await noted(hub)} == {"127.0.0.1"}
    async with hub.autocommit() as tx:
        assert "horse" not in await tx.value(LOG), "a password was written down"


async def test_what_fails_is_written_down_no_more_often_than_it_may_be_tried(hub: Hub, web: httpx2.AsyncClient) -> None:
    for _ in range(SIGN_INS_PER_ADDRESS.count + 5):
        await try_in(web, "nobody", "wrong horse")

    assert len(await noted(hub)) == SIGN_INS_PER_ADDRESS.count
    assert SIGN_INS_PER_ADDRESS.count < SIGN_IN_FAILURE_RECORDS.count


async def test_nobody_holds_a_connection_while_passwords_are_compared(
    database_urls: DatabaseUrls, settings: Settings
) -> None:
    one = settings.model_copy(update={"database_pool_size": 1})
    patient = httpx2.Timeout(60)
    async with (
        open_hub(one, database_urls) as hub,
        serving(hub) as address,
        httpx2.AsyncClient(base_url=address, timeout=patient) as web,
    ):
        async with hub.transaction() as tx:
            await ensure_first_operator(tx, PASSWORD)
        trying = asyncio.gather(*(try_in(web, "admin", "wrong horse") for _ in range(SIGN_INS_PER_ADDRESS.count)))
        asked = 0
        while not trying.done():
            async with hub.autocommit() as tx:
                asked += await tx.value(ONE)

    assert {each.status_code for each in trying.result()} == {401}
    assert asked > 3 * SIGN_INS_PER_ADDRESS.count
