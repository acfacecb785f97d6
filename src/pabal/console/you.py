"""An operator's own page: their password, and where they are signed in."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.gate import Deed, Form, Look, by
from pabal.console.pages import confirm, confirmed, page, then
from pabal.console.sessions import give_cookie, note_failure
from pabal.core.errors import Invalid, TooMany, Unauthenticated
from pabal.limits import Limit, take
from pabal.operators import operators, password, sessions
from pabal.operators.operators import Known, Role, Session
from pabal.wiring import Hub

ROOM = "/console/you"
TRIES = Limit("tries to change the password", 10, timedelta(minutes=5))


async def show(hub: Hub, request: Request, session: Session) -> Response:
    return await shown(hub, request, session)


async def change_password(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    """Another password for the one before. Every session ends with it; this browser begins a new one."""
    chosen = given.get("new", "")
    try:
        if chosen != given.get("again", ""):
            return await shown(hub, request, session, "not the same twice", 400)
        known = await checked(hub, session, given.get("old", ""))
        fresh = await password.hashed(chosen)
    except Unauthenticated:
        await note_failure(hub, request.state.visit, session)
        return await shown(hub, request, session, "old password wrong", 403)
    except TooMany:
        return await shown(hub, request, session, "too many", 429)
    except Invalid:
        return await shown(hub, request, session, "password rule", 400)
    async with hub.transaction() as tx:
        await operators.set_password(tx, known.name, fresh, by(request, session), before=known.password_hash)
        token = await sessions.begin(tx, replace(known, password_hash=fresh), by(request, session))
    answer = then(ROOM, "password changed")
    give_cookie(hub, answer, token)
    return answer


async def checked(hub: Hub, session: Session, old: str) -> Known:
    """The operator, if this is their password. No connection is held while it is compared."""
    async with hub.autocommit() as tx:
        await take(tx, TRIES, str(session.id))
        known = await operators.known(tx, session.name)
    return await sessions.check(known, old)


async def end_one(hub: Hub, request: Request, session: Session, _given: Form) -> Response:
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await sessions.end(tx, session, [row], by(request, session))
    return then(ROOM, "sessions ended", n=1)


async def end_others(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    """End all but this one, if they are as many as was agreed to."""
    async with hub.transaction() as tx:
        others = [each.id for each in await sessions.every(tx, session.id) if each.id != session.session_id]
        if not confirmed(given, len(others)):
            return confirm(request, session, says="end sessions", count=len(others), carries=given, back=ROOM)
        ended = await sessions.end(tx, session, others, by(request, session))
    return then(ROOM, "sessions ended", n=ended)


async def shown(hub: Hub, request: Request, session: Session, complaint: str = "", status: int = 200) -> Response:
    async with hub.autocommit() as tx:
        open_ones = await sessions.every(tx, session.id)
    return page(request, "you.html", status=status, session=session, sittings=open_ones, complaint=complaint)


PAGES = (
    Look(ROOM, show),
    Deed(f"{ROOM}/password", change_password, by=Role.VIEWER),
    Deed(f"{ROOM}/sessions/end", end_others, by=Role.VIEWER),
    Deed(ROOM + "/sessions/{id:uuid}/end", end_one, by=Role.VIEWER),
)
