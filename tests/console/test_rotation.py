"""Operator sessions over HTTP: cookie rotation, streams and audit entries."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from http.cookies import SimpleCookie

import httpx2
import pytest
from argon2 import PasswordHasher

from pabal.console import live
from pabal.console.access.login import LOGIN_FORM_COOKIE, OPERATOR_COOKIE, SIGN_IN_FAILURE_RECORDS, SIGN_INS_PER_ADDRESS
from pabal.db.queries import parse_queries
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.operators import password
from pabal.operators.operators import Role, add_operator, ensure_first_operator
from pabal.operators.password import hash_password
from pabal.operators.sessions import find_operator_session
from pabal.settings import Settings
from support.operator import HOSTILE, PASSWORD, SignedInOperator
from support.server import serve_hub

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)

SESSION_ENTRIES, ONE, LOG = parse_queries("""
-- name: entries
select actor, action, subject, host(client_ip) as client_ip
from pabal.audit_log where action like 'operator.s%' order by id
-- name: one
select 1
-- name: log
select string_agg(l::text, ' ') from pabal.audit_log l
""")


@dataclass(frozen=True, slots=True)
class SessionEntry:
    actor: str
    action: str
    subject: str | None
    client_ip: str | None


async def list_session_entries(hub: Hub) -> list[SessionEntry]:
    async with hub.autocommit() as tx:
        return await tx.all(SessionEntry, SESSION_ENTRIES)


def session_cookie(response: httpx2.Response) -> str | None:
    """Return the session cookie that a response sets, if any."""
    jar = SimpleCookie()
    for header in response.headers.get_list("set-cookie"):
        jar.load(header)
    return jar[OPERATOR_COOKIE].value if OPERATOR_COOKIE in jar else None


async def get_page(web: httpx2.AsyncClient, token: str, path: str = "/console", **headers: str) -> httpx2.Response:
    return await web.get(path, headers={"cookie": f"{OPERATOR_COOKIE}={token}", **headers})


async def submit_sign_in(web: httpx2.AsyncClient, name: str, password: str, cookie: str = "") -> httpx2.Response:
    """Submit the sign-in form with its CSRF cookie."""
    return await web.post(
        "/console/login",
        data={"csrf_token": "f", "name": name, "password": password},
        headers={"cookie": "; ".join(filter(None, (f"{LOGIN_FORM_COOKIE}=f", cookie)))},
    )


async def test_the_cookie_is_rotated_after_an_hour(
    admin: SignedInOperator, web: httpx2.AsyncClient, travel: Travel
) -> None:
    assert session_cookie(await admin.get("/console")) is None
    await travel(HOUR)

    page = await admin.get("/console")

    fresh = session_cookie(page)
    assert page.status_code == 200
    assert fresh
    assert fresh != admin.token
    assert (await get_page(web, fresh)).status_code == 200
    assert (await admin.get("/console")).status_code == 200  # the previous cookie works for a short time
    await travel(2 * MINUTE)
    assert (await get_page(web, fresh)).status_code == 200
    assert (await admin.get("/console")).headers["location"] == "/console/login"
    assert (await get_page(web, fresh)).status_code == 303, "two browsers had it"


async def test_the_sign_in_page_rotates_the_cookie_of_a_signed_in_operator(
    admin: SignedInOperator, web: httpx2.AsyncClient, travel: Travel
) -> None:
    await travel(HOUR)

    fresh = session_cookie(await admin.get("/console/login"))

    assert fresh
    await travel(2 * MINUTE)
    assert (await get_page(web, fresh)).status_code == 200


@pytest.mark.parametrize("path", ["/console/nowhere-at-all", "/console/services/nobody", "/console/you", "/console"])
async def test_concurrent_requests_rotate_the_cookie_once(
    admin: SignedInOperator, web: httpx2.AsyncClient, travel: Travel, path: str
) -> None:
    await travel(HOUR)

    responses = await asyncio.gather(*(admin.get(path if n % 2 else "/console/you") for n in range(12)))

    assert not [response for response in responses if response.status_code == 303]
    fresh = {token for response in responses if (token := session_cookie(response))}
    assert len(fresh) == 1
    assert (await get_page(web, *fresh)).status_code == 200


async def test_a_form_sent_during_a_rotation_is_accepted(
    admin: SignedInOperator, web: httpx2.AsyncClient, travel: Travel
) -> None:
    await travel(HOUR)

    added, *_ = await asyncio.gather(
        admin.post("/console/services", name="shop", permission="events:read"),
        *(admin.get("/console") for _ in range(5)),
    )

    assert added.status_code == 200
    assert "pbs_" in added.text


async def test_automatic_refreshes_neither_rotate_the_cookie_nor_extend_the_session(
    admin: SignedInOperator, web: httpx2.AsyncClient, travel: Travel
) -> None:
    for _ in range(2):
        await travel(59 * MINUTE)
        again = await get_page(web, admin.token, "/console", **{"x-refresh": "again"})
        assert (again.status_code, session_cookie(again)) == (200, None)

    await travel(3 * MINUTE)

    assert (await get_page(web, admin.token, "/console", **{"x-refresh": "again"})).status_code == 303


async def test_a_stream_survives_a_rotation_and_ends_with_its_session(
    hub: Hub,
    admin: SignedInOperator,
    web: httpx2.AsyncClient,
    travel: Travel,
    monkeypatch: pytest.MonkeyPatch,
    short_intervals: None,
) -> None:
    monkeypatch.setattr(live, "REFRESHES_PER_ACCESS_CHECK", 1)
    headers = {"cookie": f"{OPERATOR_COOKIE}={admin.token}"}
    async with web.stream("GET", "/console/live", headers=headers) as stream, asyncio.timeout(30):
        lines = stream.aiter_lines()
        await next_refresh(lines)
        await travel(HOUR)
        fresh = session_cookie(await admin.get("/console"))
        assert fresh
        await travel(5 * MINUTE)
        await next_refresh(lines)
        await next_refresh(lines)

        await web.post(
            "/console/logout",
            data={"csrf_token": admin.session.csrf.hex()},
            headers={"cookie": f"{OPERATOR_COOKIE}={fresh}"},
        )
        assert [line async for line in lines if line == "event: refresh"][2:] == []


async def test_a_stream_survives_a_database_outage(
    hub: Hub, admin: SignedInOperator, web: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, short_intervals: None
) -> None:
    monkeypatch.setattr(live, "REFRESHES_PER_ACCESS_CHECK", 1)
    headers = {"cookie": f"{OPERATOR_COOKIE}={admin.token}"}
    async with web.stream("GET", "/console/live", headers=headers) as stream, asyncio.timeout(30):
        lines = stream.aiter_lines()
        await next_refresh(lines)
        await hub.db.close()
        await next_refresh(lines)
        await next_refresh(lines)
        await hub.db.open()
        await next_refresh(lines)


async def next_refresh(lines: AsyncIterator[str]) -> None:
    async for line in lines:
        if line == "event: refresh":
            return
    pytest.fail("the stream ended")


async def test_signing_in_ignores_a_planted_session_cookie(hub: Hub, web: httpx2.AsyncClient) -> None:
    async with hub.transaction() as tx:
        await ensure_first_operator(tx, PASSWORD)
    planted = "chosen-by-somebody-else"

    response = await submit_sign_in(web, "admin", PASSWORD, f"{OPERATOR_COOKIE}={planted}")

    token = session_cookie(response)
    assert response.status_code == 303
    assert token
    assert token != planted
    assert (await get_page(web, planted)).status_code == 303
    assert (await get_page(web, token)).status_code == 200


async def test_signing_in_and_out_and_failures_are_audited(hub: Hub, web: httpx2.AsyncClient) -> None:
    async with hub.transaction() as tx:
        await add_operator(tx, "Mina", await hash_password(PASSWORD), Role.ADMIN)

    await submit_sign_in(web, "mina", "wrong horse")
    await submit_sign_in(web, "nobody", "wrong horse")
    await submit_sign_in(web, HOSTILE + "\x1b[31m\n", "wrong horse")
    token_in_use = session_cookie(await submit_sign_in(web, "mina", PASSWORD))
    assert token_in_use
    async with hub.autocommit() as tx:
        session = await find_operator_session(tx, token_in_use)
    assert session is not None
    await web.post(
        "/console/logout",
        data={"csrf_token": session.csrf.hex()},
        headers={"cookie": f"{OPERATOR_COOKIE}={token_in_use}"},
    )

    failed = "operator.sign_in_failed"
    assert [(entry.actor, entry.action, entry.subject) for entry in await list_session_entries(hub)] == [
        ("anonymous", failed, "Mina"),
        ("anonymous", failed, "unknown"),  # the name field may contain a password
        ("anonymous", failed, "unknown"),
        ("operator:Mina", "operator.signed_in", "Mina"),
        ("operator:Mina", "operator.signed_out", "Mina"),
    ]
    assert {entry.client_ip for entry in await list_session_entries(hub)} == {"127.0.0.1"}
    async with hub.autocommit() as tx:
        assert "horse" not in await tx.value(LOG), "a password was written down"


async def test_failed_sign_ins_are_audited_within_the_rate_limit(hub: Hub, web: httpx2.AsyncClient) -> None:
    for _ in range(SIGN_INS_PER_ADDRESS.count + 5):
        await submit_sign_in(web, "nobody", "wrong horse")

    assert len(await list_session_entries(hub)) == SIGN_INS_PER_ADDRESS.count
    assert SIGN_INS_PER_ADDRESS.count < SIGN_IN_FAILURE_RECORDS.count


async def test_no_connection_is_held_while_passwords_are_verified(
    database_urls: DatabaseUrls, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(password, "PASSWORD_HASHER", PasswordHasher())  # as slow as in production
    one = settings.model_copy(update={"database_pool_size": 1})
    patient = httpx2.Timeout(60)
    async with (
        open_hub(one, database_urls) as hub,
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address, timeout=patient) as web,
    ):
        async with hub.transaction() as tx:
            await ensure_first_operator(tx, PASSWORD)
        trying = asyncio.gather(
            *(submit_sign_in(web, "admin", "wrong horse") for _ in range(SIGN_INS_PER_ADDRESS.count))
        )
        queries = 0
        while not trying.done():
            async with hub.autocommit() as tx:
                queries += await tx.value(ONE)

    assert {response.status_code for response in trying.result()} == {401}
    assert queries > 3 * SIGN_INS_PER_ADDRESS.count
