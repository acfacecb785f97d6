"""An operator's own page: their password, and where they are signed in."""

import re
from http.cookies import SimpleCookie

import httpx2
import pytest

from pabal.console import profile
from pabal.console.login import OPERATOR_COOKIE
from pabal.console.profile import PASSWORD_CHANGE_ATTEMPTS
from pabal.core.actor import Actor
from pabal.core.errors import Unauthenticated
from pabal.db.queries import parse_queries
from pabal.hub import Hub
from pabal.operators.operators import find_operator_credentials, set_operator_password
from pabal.operators.password import hash_password
from pabal.operators.sessions import authenticate_operator, create_operator_session, find_operator_session
from support.operator import HOSTILE, PASSWORD, Signed, unharmed

pytestmark = pytest.mark.anyio

NEW = "another horse"
DEEDS, RENAME, FAILED = parse_queries("""
-- name: deeds
select actor || ' ' || action from pabal.audit_log where actor like 'operator:%' order by id
-- name: rename
update pabal.operators set name = :name where id = :operator
-- name: failed
select subject from pabal.audit_log where action = 'operator.sign_in_failed'
""")


async def elsewhere(hub: Hub, who: Signed, user_agent: str = "a phone", password: str = PASSWORD) -> str:
    """Sign in once more, from another browser."""
    async with hub.transaction() as tx:
        known = await authenticate_operator(await find_operator_credentials(tx, who.session.name), password)
        return await create_operator_session(tx, known, Actor(f"operator:{who.session.name}", "192.0.2.44", user_agent))


async def alive(hub: Hub, token: str) -> bool:
    async with hub.autocommit() as tx:
        return await find_operator_session(tx, token) is not None


async def deeds(hub: Hub) -> list[str]:
    async with hub.autocommit() as tx:
        return await tx.column(DEEDS)


async def test_it_says_where_one_is_signed_in(hub: Hub, viewer: Signed, admin: Signed) -> None:
    await elsewhere(hub, viewer)
    await elsewhere(hub, admin, "somebody else's")

    page = (await viewer.get("/console/you")).text

    assert "a phone" in page
    assert "192.0.2.44" in page
    assert page.count("This session") == 1
    assert "somebody else" not in page
    assert '<a href="/console/you"' in (await viewer.get("/console")).text


async def test_a_viewer_too_changes_their_password_and_everybody_else_is_out(
    hub: Hub, web: httpx2.AsyncClient, viewer: Signed
) -> None:
    phone = await elsewhere(hub, viewer)

    answer = await viewer.post("/console/you/password", old=PASSWORD, new=NEW, again=NEW)

    assert (answer.status_code, answer.headers["location"]) == (303, "/console/you")
    jar = SimpleCookie()
    for header in answer.headers.get_list("set-cookie"):
        jar.load(header)
    assert not await alive(hub, phone)
    assert not await alive(hub, viewer.token), "the cookie from before is over as well"
    here = await web.get("/console/you", headers={"cookie": f"{OPERATOR_COOKIE}={jar[OPERATOR_COOKIE].value}"})
    assert here.status_code == 200
    with pytest.raises(Unauthenticated):
        await elsewhere(hub, viewer)
    assert await elsewhere(hub, viewer, password=NEW)
    who = "operator:the-viewer operator."
    assert (await deeds(hub))[2:4] == [f"{who}password_changed", f"{who}signed_in"]


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
async def test_what_is_wrong_with_a_password_is_said_and_nothing_changes(
    hub: Hub, admin: Signed, old: str, new: str, again: str, status: int, says: str
) -> None:
    answer = await admin.post("/console/you/password", old=old, new=new, again=again)

    assert answer.status_code == status
    assert says in answer.text
    assert old not in re.sub(r"<input[^>]*name=\"username\"[^>]*>", "", answer.text)
    assert await alive(hub, admin.token)
    assert await elsewhere(hub, admin)


async def test_whoever_found_an_open_window_cannot_try_passwords_for_long(hub: Hub, admin: Signed) -> None:
    tried = [
        (await admin.post("/console/you/password", old="wrong horse", new=NEW, again=NEW)).status_code
        for _ in range(PASSWORD_CHANGE_ATTEMPTS.count)
    ]
    late = await admin.post("/console/you/password", old=PASSWORD, new=NEW, again=NEW)

    assert tried == [403] * PASSWORD_CHANGE_ATTEMPTS.count
    assert late.status_code == 429
    assert await elsewhere(hub, admin)


async def test_a_wrong_old_password_is_written_down(hub: Hub, admin: Signed) -> None:
    form = {"old": "wrong horse", "new": NEW, "again": NEW}

    assert (await admin.post("/console/you/password", **form)).status_code == 403

    async with hub.autocommit() as tx:
        assert await tx.column(FAILED) == [admin.session.name]


async def test_a_password_that_was_reset_meanwhile_stays(
    hub: Hub, admin: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stole the old password is changing it while an admin resets it at a terminal."""
    reset = await hash_password("the reset horse")
    hashed = hash_password

    async def slow(chosen: str) -> str:
        fresh = await hashed(chosen)
        async with hub.transaction() as tx:
            await set_operator_password(tx, admin.session.name, reset, Actor("terminal"))
        return fresh

    monkeypatch.setattr(profile, "hash_password", slow)
    answer = await admin.post("/console/you/password", old=PASSWORD, new=NEW, again=NEW)

    assert answer.status_code == 409
    assert OPERATOR_COOKIE not in answer.headers.get("set-cookie", "")
    async with hub.autocommit() as tx:
        known = await find_operator_credentials(tx, admin.session.name)
    assert known is not None
    assert known.password_hash == reset


async def test_one_session_ends_or_all_the_others_after_the_exact_number(hub: Hub, viewer: Signed) -> None:
    tokens = [await elsewhere(hub, viewer) for _ in range(3)]
    page = (await viewer.get("/console/you")).text
    [first, *_] = re.findall(r"/console/you/sessions/([0-9a-f-]{36})/end", page)

    assert (await viewer.post(f"/console/you/sessions/{first}/end")).status_code == 303
    assert sum([await alive(hub, token) for token in tokens]) == 2
    asked = await viewer.post("/console/you/sessions/end")
    assert "2 other sessions will be signed out." in asked.text
    tokens.append(await elsewhere(hub, viewer))
    assert "3 other sessions will be signed out." in (await viewer.post("/console/you/sessions/end", count=2)).text
    assert (await viewer.post("/console/you/sessions/end", count=3)).status_code == 303
    assert sum([await alive(hub, token) for token in tokens]) == 0
    assert await alive(hub, viewer.token)
    assert [deed.rpartition(".")[2] for deed in await deeds(hub)].count("sessions_ended") == 2


async def test_nobody_ends_a_session_of_somebody_else(hub: Hub, viewer: Signed, admin: Signed) -> None:
    answer = await viewer.post(f"/console/you/sessions/{admin.session.session_id}/end")

    assert answer.status_code == 404
    assert await alive(hub, admin.token)


@pytest.mark.parametrize("path", ["password", "sessions/end", "sessions/{}/end"])
async def test_a_form_of_somebody_else_changes_nothing(hub: Hub, viewer: Signed, path: str) -> None:
    phone = await elsewhere(hub, viewer)
    where = f"/console/you/{path}".format(viewer.session.session_id)

    answer = await viewer.post(where, csrf_token="0" * 64, old=PASSWORD, new=NEW, again=NEW, count=1)

    assert answer.status_code == 403
    assert await alive(hub, phone)
    assert await alive(hub, viewer.token)


async def test_hostile_names_and_browsers_stay_words(hub: Hub, admin: Signed) -> None:
    await elsewhere(hub, admin, HOSTILE)
    async with hub.transaction() as tx:
        await tx.run(RENAME, name=HOSTILE[:64], operator=admin.session.id)

    for path in ("/console/you", "/console", "/console/audit"):
        page = await admin.get(path)
        assert page.status_code == 200
        assert unharmed(page)
        assert "&lt;script&gt;alert(1)" in page.text
