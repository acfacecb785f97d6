"""The operator's own page: password and sessions."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.access.guards import Action, Form, Page, operator_actor
from pabal.console.access.login import record_failed_sign_in, set_operator_cookie
from pabal.console.pages import confirm_page, is_count_confirmed, redirect_with_flash, render_page, request_context
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
PASSWORD_CHANGE_ATTEMPTS = RateLimit("password changes", 10, timedelta(minutes=5))


async def profile_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    return await render_profile_page(hub, request, session)


async def change_password_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Change the password. All sessions end; this browser gets a new one."""
    new_password = fields.get("new", "")
    try:
        if new_password != fields.get("again", ""):
            return await render_profile_page(hub, request, session, "profile.password.mismatch", 400)
        credentials = await check_current_password(hub, session, fields.get("old", ""))
        new_hash = await hash_password(new_password)
    except Unauthenticated:
        await record_failed_sign_in(hub, request_context(request), session)
        return await render_profile_page(hub, request, session, "profile.password.wrong", 403)
    except RateLimited:
        return await render_profile_page(hub, request, session, "login.rate_limited", 429)
    except Invalid:
        return await render_profile_page(hub, request, session, "profile.password.rule", 400)
    actor = operator_actor(request, session)
    async with hub.transaction() as tx:
        await set_operator_password(tx, credentials.name, new_hash, actor, expected_hash=credentials.password_hash)
        token = await create_operator_session(tx, replace(credentials, password_hash=new_hash), actor)
    response = redirect_with_flash(PROFILE_PATH, "profile.password.changed")
    set_operator_cookie(hub, response, token)
    return response


async def check_current_password(hub: Hub, session: OperatorSession, password_text: str) -> OperatorCredentials:
    """Return the credentials if the password is right. No connection is held while it is hashed."""
    async with hub.autocommit() as tx:
        await consume_rate_limit(tx, PASSWORD_CHANGE_ATTEMPTS, str(session.id))
        credentials = await find_operator_credentials(tx, session.name)
    return await authenticate_operator(credentials, password_text)


async def end_session_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    session_id: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await end_operator_sessions(tx, session, [session_id], operator_actor(request, session))
    return redirect_with_flash(PROFILE_PATH, "profile.sessions.ended", count=1)


async def end_other_sessions_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """End all other sessions, after confirmation of their number."""
    async with hub.transaction() as tx:
        open_sessions = await list_operator_sessions(tx, session.id)
        others = [other.id for other in open_sessions if other.id != session.session_id]
        if not is_count_confirmed(fields, len(others)):
            return confirm_page(
                request,
                session,
                text_id="profile.sessions.confirm_end",
                count=len(others),
                fields=fields,
                return_url=PROFILE_PATH,
            )
        ended = await end_operator_sessions(tx, session, others, operator_actor(request, session))
    return redirect_with_flash(PROFILE_PATH, "profile.sessions.ended", count=ended)


async def render_profile_page(
    hub: Hub, request: Request, session: OperatorSession, error_text_id: str = "", status: int = 200
) -> Response:
    async with hub.autocommit() as tx:
        open_sessions = await list_operator_sessions(tx, session.id)
    return render_page(
        request, "profile.html", status=status, session=session, sessions=open_sessions, error_text_id=error_text_id
    )


PAGES = (
    Page(PROFILE_PATH, profile_page),
    Action(f"{PROFILE_PATH}/password", change_password_action, role=Role.VIEWER),
    Action(f"{PROFILE_PATH}/sessions/end", end_other_sessions_action, role=Role.VIEWER),
    Action(PROFILE_PATH + "/sessions/{id:uuid}/end", end_session_action, role=Role.VIEWER),
)
