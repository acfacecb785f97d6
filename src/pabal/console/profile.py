"""An operator's own page: their password, and where they are signed in."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.guards import Action, Form, Page, operator_actor
from pabal.console.login import record_failed_sign_in, set_operator_cookie
from pabal.console.pages import confirm_page, is_count_confirmed, redirect_with_flash, render_page
from pabal.core.errors import Invalid, RateLimited, Unauthenticated
from pabal.hub import Hub
from pabal.limits import RateLimit, consume_rate_limit
from pabal.operators.operators import (
    OperatorCredentials,
    OperatorSession,
    Role,
    find_operator_credentials,
    set_operator_password,
)
from pabal.operators.password import hash_password
from pabal.operators.sessions import (
    authenticate_operator,
    create_operator_session,
    end_operator_sessions,
    list_operator_sessions,
)

PROFILE_PATH = "/console/you"
PASSWORD_CHANGE_ATTEMPTS = RateLimit("tries to change the password", 10, timedelta(minutes=5))


async def profile_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    return await render_profile_page(hub, request, session)


async def change_password_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Another password for the one before. Every session ends with it; this browser begins a new one."""
    chosen = fields.get("new", "")
    try:
        if chosen != fields.get("again", ""):
            return await render_profile_page(hub, request, session, "not the same twice", 400)
        known = await check_current_password(hub, session, fields.get("old", ""))
        fresh = await hash_password(chosen)
    except Unauthenticated:
        await record_failed_sign_in(hub, request.state.visit, session)
        return await render_profile_page(hub, request, session, "old password wrong", 403)
    except RateLimited:
        return await render_profile_page(hub, request, session, "too many", 429)
    except Invalid:
        return await render_profile_page(hub, request, session, "password rule", 400)
    async with hub.transaction() as tx:
        await set_operator_password(
            tx, known.name, fresh, operator_actor(request, session), expected_hash=known.password_hash
        )
        token = await create_operator_session(tx, replace(known, password_hash=fresh), operator_actor(request, session))
    answer = redirect_with_flash(PROFILE_PATH, "password changed")
    set_operator_cookie(hub, answer, token)
    return answer


async def check_current_password(hub: Hub, session: OperatorSession, password_text: str) -> OperatorCredentials:
    """The operator, if this is their password. No connection is held while it is compared."""
    async with hub.autocommit() as tx:
        await consume_rate_limit(tx, PASSWORD_CHANGE_ATTEMPTS, str(session.id))
        known = await find_operator_credentials(tx, session.name)
    return await authenticate_operator(known, password_text)


async def end_session_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await end_operator_sessions(tx, session, [row], operator_actor(request, session))
    return redirect_with_flash(PROFILE_PATH, "sessions ended", n=1)


async def end_other_sessions_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """End all but this one, if they are as many as was agreed to."""
    async with hub.transaction() as tx:
        others = [each.id for each in await list_operator_sessions(tx, session.id) if each.id != session.session_id]
        if not is_count_confirmed(fields, len(others)):
            return confirm_page(
                request, session, text_id="end sessions", count=len(others), fields=fields, return_url=PROFILE_PATH
            )
        ended = await end_operator_sessions(tx, session, others, operator_actor(request, session))
    return redirect_with_flash(PROFILE_PATH, "sessions ended", n=ended)


async def render_profile_page(
    hub: Hub, request: Request, session: OperatorSession, error_text_id: str = "", status: int = 200
) -> Response:
    async with hub.autocommit() as tx:
        open_ones = await list_operator_sessions(tx, session.id)
    return render_page(
        request, "profile.html", status=status, session=session, sessions=open_ones, error_text_id=error_text_id
    )


PAGES = (
    Page(PROFILE_PATH, profile_page),
    Action(f"{PROFILE_PATH}/password", change_password_action, role=Role.VIEWER),
    Action(f"{PROFILE_PATH}/sessions/end", end_other_sessions_action, role=Role.VIEWER),
    Action(PROFILE_PATH + "/sessions/{id:uuid}/end", end_session_action, role=Role.VIEWER),
)
