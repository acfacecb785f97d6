"""The owner's portal: who signs in with a relay token or a session's, and is still let in."""

from dataclasses import dataclass
from datetime import timedelta

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pabal.api.errors import headers_for
from pabal.api.person import from_here
from pabal.api.visit import Visit
from pabal.console.gate import Form
from pabal.console.pages import form as read_form
from pabal.console.sessions import noted
from pabal.console.texts import texts_for
from pabal.console.wicket import Wicket, stamp_of
from pabal.core.actor import Actor
from pabal.core.errors import AccountDisabled, NotFound, TooMany, Unauthenticated
from pabal.db.tx import Tx
from pabal.limits import take, whose
from pabal.relay import portal
from pabal.relay.bearer import Bearer, Owner, owner
from pabal.wiring import Hub

HOME = "/portal"
LOGIN = f"{HOME}/login"
COOKIE = "pabal_portal"
LONGEST = 200
"""Characters of a token that are looked at; ours are shorter."""


@dataclass(frozen=True, slots=True)
class Guest:
    """An owner who is signed in, as their token stands now."""

    bearer: Bearer
    stamp: str

    @property
    def owner(self) -> Owner:
        """The account's owner; to a session that has none yet, nothing of one is there."""
        if self.bearer.account is None:
            raise NotFound("there is no account yet")
        return owner(self.bearer)

    @property
    def by_relay_token(self) -> bool:
        return self.bearer.session is None


async def known(hub: Hub, request: Request) -> Guest:
    """Whoever is signed in. An account that is disabled lets nobody in; whoever tries again is told why."""
    cookie = request.cookies.get(COOKIE, "")
    try:
        async with hub.autocommit() as tx:
            return Guest(await portal.inside(tx, cookie), stamp_of(cookie))
    except AccountDisabled as error:
        raise Unauthenticated(str(error)) from None


async def stays(tx: Tx, request: Request, guest: Guest) -> str:
    """See in a deed's own transaction that its owner is let in until it ends; what is kept of their token."""
    try:
        return await portal.stays(tx, request.cookies.get(COOKIE, ""), guest.owner)
    except AccountDisabled as error:
        raise Unauthenticated(str(error)) from None


def turned_away(_request: Request) -> Response:
    return RedirectResponse(LOGIN, 303)


WICKET = Wicket(HOME, COOKIE, known, turned_away, every=timedelta(seconds=5))


async def show(hub: Hub, request: Request) -> Response:
    try:
        await known(hub, request)
    except Unauthenticated:
        return form(request)
    return RedirectResponse(HOME, 303)


async def enter(hub: Hub, request: Request) -> Response:
    """Take a token, which goes no further than its hash, and give a cookie for it."""
    t, given = texts_for(request), await read_form(request)
    visit: Visit = request.state.visit
    if not from_here(request, hub):
        return form(request, t("stale form"), 403)
    try:
        async with hub.autocommit() as tx:
            await take(tx, portal.PER_ADDRESS, whose(visit.client))
        async with hub.transaction() as tx:
            cookie = await portal.enter(tx, given.get("token", "").strip()[:LONGEST], visit.by("nobody"))
    except TooMany as error:
        answer = form(request, t("too many"), 429)
        answer.headers.update(headers_for(error))
        return answer
    except (Unauthenticated, AccountDisabled) as error:
        await noted(hub, visit, "portal.refused", None, why=error.code)
        if isinstance(error, AccountDisabled):
            return form(request, t("account is off"), 403)
        return form(request, t("token unknown"), 401)
    return WICKET.welcome(hub, cookie, portal.LIFE)


async def leave(hub: Hub, request: Request, _guest: Guest, _given: Form) -> Response:
    async with hub.autocommit() as tx:
        await portal.leave(tx, request.cookies.get(COOKIE, ""))
    return WICKET.farewell(RedirectResponse(LOGIN, 303))


def form(request: Request, complaint: str = "", status: int = 200) -> Response:
    return WICKET.page(request, "portal/login.html", status=status, complaint=complaint)


def by(request: Request, guest: Guest) -> Actor:
    """The owner, as the audit log names them at every door."""
    visit: Visit = request.state.visit
    return visit.by(portal.name_of(guest.bearer))
