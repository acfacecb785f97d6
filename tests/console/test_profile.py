"""The profile page: password and sessions."""

import re
from http.cookies import SimpleCookie

import httpx2
import pytest

from pabal.console.access import profile
from pabal.console.access.login import OPERATOR_COOKIE
from pabal.console.access.profile import PASSWORD_CHANGE_ATTEMPTS
from pabal.core.actor import Actor
from pabal.core.errors import Unauthenticated
from pabal.db.queries import parse_queries
from pabal.hub import Hub
from pabal.operators.operators import find_operator_credentials, set_operator_password
from pabal.operators.password import hash_password
from pabal.operators.sessions import authenticate_operator, create_operator_session, find_operator_session
from support.operator import HOSTILE, PASSWORD, SignedInOperator, is_escaped

pytestmark = pytest.mark.anyio

NEW = "another horse"
ENTRIES, RENAME, FAILED = parse_queries("""
-- name: entries
select actor || ' ' || action from pabal.audit_log where actor like 'operator:%' order by id
-- name: rename
update pabal.operators set name = :name where id = :operator
-- name: failed
select subject from pabal.audit_log where action = 'operator.sign_in_failed'
""")


async def sign_in_elsewhere(
    hub: Hub, who: SignedInOperator, user_agent: str = "a phone", password: str = PASSWORD
) -> str:
    """Sign in again from another browser."""
    async with hub.transaction() as tx:
        credentials = await authenticate_operator(await find_operator_credentials(tx, who.session.name), password)
        return await create_operator_session(
            tx, credentials, Actor(f"operator:{who.session.name}", "192.0.2.44", user_agent)
        )


async def is_active(hub: Hub, token: str) -> bool:
    async with hub.autocommit() as tx:
        return await find_operator_session(tx, token) is not None


async def list_audit_entries(hub: Hub) -> list[str]:
    async with hub.autocommit() as tx:
        return await tx.column(ENTRIES)


async def test_the_profile_lists_the_sessions(hub: Hub, viewer: SignedInOperator, admin: SignedInOperator) -> None:
    await sign_in_elsewhere(hub, viewer)
    await sign_in_elsewhere(hub, admin, "somebody else's")

    page = (await viewer.get("/console/you")).text

    assert "a phone" in page
    assert "192.0.2.44" in page
    assert page.count("This session") == 1
    assert "somebody else" not in page
    assert '<a href="/console/you"' in (await viewer.get("/console")).text


async def test_changing_the_password_ends_all_other_sessions(
    hub: Hub, web: httpx2.AsyncClient, viewer: SignedInOperator
) -> None:
    phone = await sign_in_elsewhere(hub, viewer)

    response = await viewer.post("/console/you/password", old=PASSWORD, new=NEW, again=NEW)

    assert (response.status_code, response.headers["location"]) == (303, "/console/you")
    jar = SimpleCookie()
    for header in response.headers.get_list("set-cookie"):
        jar.load(header)
    assert not await is_active(hub, phone)
    assert not await is_active(hub, viewer.token), "the cookie from before is over as well"
    here = await web.get("/console/you", headers={"cookie": f"{OPERATOR_COOKIE}={jar[OPERATOR_COOKIE].value}"})
    assert here.status_code == 200
    with pytest.raises(Unauthenticated):
        await sign_in_elsewhere(hub, viewer)
    assert await sign_in_elsewhere(hub, viewer, password=NEW)
    who = "operator:the-viewer operator."
    assert (await list_audit_entries(hub))[2:4] == [f"{who}password_changed", f"{who}signed_in"]


@pytest.mark.parametrize(
    ("old", "new", "again", "status", "says"),
    [
        ("wrong horse", NEW, NEW, 403, "The current password is incorrect."),
        (PASSWORD, NEW, NEW + "x", 400, "The new passwords do not match."),
        (PASSWORD, "short", "short", 400, "Passwords must have 8 to 1,000 characters."),
        (PASSWORD, "x" * 1001, "x" * 1001, 400, "Passwords must have 8 to 1,000 characters."),
        (PASSWORD, "", "", 400, "Passwords must have 8 to 1,000 characters."),
    ],
)
async def test_an_invalid_password_is_explained_and_nothing_changes(
    hub: Hub, admin: SignedInOperator, old: str, new: str, again: str, status: int, says: str
) -> None:
    response = await admin.post("/console/you/password", old=old, new=new, again=again)

    assert response.status_code == status
    assert says in response.text
    assert old not in re.sub(r"<input[^>]*name=\"username\"[^>]*>", "", response.text)
    assert await is_active(hub, admin.token)
    assert await sign_in_elsewhere(hub, admin)


async def test_password_changes_are_rate_limited(hub: Hub, admin: SignedInOperator) -> None:
    statuses = [
        (await admin.post("/console/you/password", old="wrong horse", new=NEW, again=NEW)).status_code
        for _ in range(PASSWORD_CHANGE_ATTEMPTS.count)
    ]
    late = await admin.post("/console/you/password", old=PASSWORD, new=NEW, again=NEW)

    assert statuses == [403] * PASSWORD_CHANGE_ATTEMPTS.count
    assert late.status_code == 429
    assert await sign_in_elsewhere(hub, admin)


async def test_a_wrong_current_password_is_audited(hub: Hub, admin: SignedInOperator) -> None:
    form = {"old": "wrong horse", "new": NEW, "again": NEW}

    assert (await admin.post("/console/you/password", **form)).status_code == 403

    async with hub.autocommit() as tx:
        assert await tx.column(FAILED) == [admin.session.name]


async def test_a_password_reset_in_the_meantime_is_kept(
    hub: Hub, admin: SignedInOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stolen password is changed in the console while an admin resets it with the CLI."""
    reset = await hash_password("the reset horse")
    hashed = hash_password

    async def hash_after_reset(new_password: str) -> str:
        fresh = await hashed(new_password)
        async with hub.transaction() as tx:
            await set_operator_password(tx, admin.session.name, reset, Actor("terminal"))
        return fresh

    monkeypatch.setattr(profile, "hash_password", hash_after_reset)
    response = await admin.post("/console/you/password", old=PASSWORD, new=NEW, again=NEW)

    assert response.status_code == 409
    assert OPERATOR_COOKIE not in response.headers.get("set-cookie", "")
    async with hub.autocommit() as tx:
        credentials = await find_operator_credentials(tx, admin.session.name)
    assert credentials is not None
    assert credentials.password_hash == reset


async def test_one_session_is_ended_or_all_others_with_the_exact_count(hub: Hub, viewer: SignedInOperator) -> None:
    tokens = [await sign_in_elsewhere(hub, viewer) for _ in range(3)]
    page = (await viewer.get("/console/you")).text
    [first, *_] = re.findall(r"/console/you/sessions/([0-9a-f-]{36})/end", page)

    assert (await viewer.post(f"/console/you/sessions/{first}/end")).status_code == 303
    assert sum([await is_active(hub, token) for token in tokens]) == 2
    confirmation = await viewer.post("/console/you/sessions/end")
    assert "2 other sessions will be signed out." in confirmation.text
    tokens.append(await sign_in_elsewhere(hub, viewer))
    assert "3 other sessions will be signed out." in (await viewer.post("/console/you/sessions/end", count=2)).text
    assert (await viewer.post("/console/you/sessions/end", count=3)).status_code == 303
    assert sum([await is_active(hub, token) for token in tokens]) == 0
    assert await is_active(hub, viewer.token)
    assert [entry.rpartition(".")[2] for entry in await list_audit_entries(hub)].count("sessions_ended") == 2


async def test_an_operator_cannot_end_sessions_of_others(
    hub: Hub, viewer: SignedInOperator, admin: SignedInOperator
) -> None:
    response = await viewer.post(f"/console/you/sessions/{admin.session.session_id}/end")

    assert response.status_code == 404
    assert await is_active(hub, admin.token)


@pytest.mark.parametrize("path", ["password", "sessions/end", "sessions/{}/end"])
async def test_a_forged_form_changes_nothing(hub: Hub, viewer: SignedInOperator, path: str) -> None:
    phone = await sign_in_elsewhere(hub, viewer)
    url = f"/console/you/{path}".format(viewer.session.session_id)

    response = await viewer.post(url, csrf_token="0" * 64, old=PASSWORD, new=NEW, again=NEW, count=1)

    assert response.status_code == 403
    assert await is_active(hub, phone)
    assert await is_active(hub, viewer.token)


async def test_hostile_names_and_user_agents_are_escaped(hub: Hub, admin: SignedInOperator) -> None:
    await sign_in_elsewhere(hub, admin, HOSTILE)
    async with hub.transaction() as tx:
        await tx.run(RENAME, name=HOSTILE[:64], operator=admin.session.id)

    for path in ("/console/you", "/console", "/console/audit"):
        page = await admin.get(path)
        assert page.status_code == 200
        assert is_escaped(page)
        assert "&lt;script&gt;alert(1)" in page.text
