"""Signing in and out of the console, and the cookie in between."""

import hashlib
import hmac
import secrets
from datetime import timedelta

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pabal.api.cookie import give
from pabal.api.errors import headers_for
from pabal.api.person import from_here
from pabal.api.visit import Visit
from pabal.audit.record import did
from pabal.console.pages import form as read_form
from pabal.console.pages import page
from pabal.console.texts import texts_for
from pabal.core.errors import TooMany, Unauthenticated
from pabal.limits import Limit, take, whose
from pabal.operators import operators, sessions
from pabal.operators.operators import Known, Operator, Session
from pabal.wiring import Hub

HOME = "/console"
COOKIE = "pabal_session"
BEFORE = "pabal_form"
"""Ties the sign-in form to the browser it was shown in, before there is a session to tie it to."""
LIVE = f"{HOME}/live"

PER_ADDRESS = Limit("sign-ins", 10, timedelta(minutes=5))
PER_NAME = Limit("sign-ins to this name", 100, timedelta(minutes=15))  # high, or anybody could lock an operator out
TO_NOTE = Limit("notes of failed sign-ins", 60, timedelta(minutes=1))
"""All addresses together, at each door: nobody can take a row back out of the log."""
UNKNOWN = "unknown"


async def show(hub: Hub, request: Request) -> Response:
    if await who(hub, request):
        answer = RedirectResponse(HOME, 303)
        renew(hub, request, answer)
        return answer
    return form(hub, request)


async def enter(hub: Hub, request: Request) -> Response:
    """Check name and password; a wrong one says nothing about which. No connection is held while it is compared."""
    t, given = texts_for(request), await read_form(request)
    visit: Visit = request.state.visit
    if not same_browser(hub, request, given.get("form", "")):
        return form(hub, request, t("stale form"), 403)
    name, password = given.get("name", "")[:64], given.get("password", "")
    known = None
    try:
        async with hub.autocommit() as tx:
            await take(tx, PER_ADDRESS, whose(visit.client))
            await take(tx, PER_NAME, counted_by(name))
            known = await operators.known(tx, name)
        token = await begun(hub, visit, await sessions.check(known, password))
    except Unauthenticated:
        await note_failure(hub, visit, known)
        return form(hub, request, t("wrong"), 401)
    except TooMany as error:
        answer = form(hub, request, t("too many"), 429)
        answer.headers.update(headers_for(error))
        return answer
    answer = RedirectResponse(HOME, 303)
    give_cookie(hub, answer, token)
    answer.delete_cookie(BEFORE, path=HOME)
    return answer


def counted_by(name: str) -> str:
    """What tries to a name are counted by: not what was typed, which may have been a password."""
    return hashlib.sha256(name.lower().encode()).hexdigest()


async def begun(hub: Hub, visit: Visit, known: Known) -> str:
    async with hub.transaction() as tx:
        return await sessions.begin(tx, known, visit.by(f"operator:{known.name}"))


async def note_failure(hub: Hub, visit: Visit, meant: Operator | None) -> None:
    """Write down that somebody tried, and to be whom. A name nobody has is not kept: it may be a password."""
    await noted(hub, visit, "operator.sign_in_failed", meant.name if meant else UNKNOWN)


async def noted(hub: Hub, visit: Visit, action: str, subject: str | None, **facts: object) -> None:
    """Write down that a door let somebody not in, unless it wrote that too often already."""
    async with hub.autocommit() as tx:
        try:
            await take(tx, TO_NOTE, action)
        except TooMany:
            return
        await did(tx, visit.by("nobody"), action, subject, **facts)


async def leave(hub: Hub, request: Request, session: Session, _given: object) -> Response:
    visit: Visit = request.state.visit
    async with hub.transaction() as tx:
        await sessions.leave(tx, session, visit.by(f"operator:{session.name}"))
    answer = RedirectResponse("/console/login", 303)
    answer.delete_cookie(COOKIE, path=HOME)
    return answer


async def who(hub: Hub, request: Request) -> Session | None:
    """Who is signed in. A page that keeps itself fresh, or a stream that opens again, is nobody who is there."""
    token = request.cookies.get(COOKIE)
    if not token:
        return None
    used = "x-look" not in request.headers and request.url.path != LIVE
    async with hub.autocommit() as tx:
        session = await sessions.session(tx, token, used=used)
    request.state.renewed = session and session.renewed
    return session


def renew(hub: Hub, request: Request, answer: Response) -> None:
    """Give the browser what its cookie is from now on, unless the answer ends the session or begins another."""
    renewed: str | None = getattr(request.state, "renewed", None)
    if renewed and not any(each.startswith(f"{COOKIE}=") for each in answer.headers.getlist("set-cookie")):
        give_cookie(hub, answer, renewed)


def form(hub: Hub, request: Request, complaint: str = "", status: int = 200) -> Response:
    token = request.cookies.get(BEFORE) or secrets.token_urlsafe(24)
    answer = page(request, "login.html", status=status, complaint=complaint, form=token)
    give(hub, answer, BEFORE, token, seconds=3600, path=HOME)
    return answer


def same_browser(hub: Hub, request: Request, token: str) -> bool:
    """The form carries what its browser's cookie carries, and no other site sent it."""
    kept = request.cookies.get(BEFORE, "")
    return ours(hub, request) and bool(kept) and same(kept, token)


def ours(hub: Hub, request: Request) -> bool:
    """Whether nobody says that another site sent this. Browsers that say nothing have the form's own token to show."""
    silent = request.headers.get("origin", "null") == "null" and "sec-fetch-site" not in request.headers
    return silent or from_here(request, hub)


def same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def give_cookie(hub: Hub, answer: Response, token: str) -> None:
    give(hub, answer, COOKIE, token, seconds=int(sessions.LIFE.total_seconds()), path=HOME)
