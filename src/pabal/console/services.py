"""Services: who there is, what they may, and what lives of their secrets, tokens and subscriptions."""

from datetime import datetime, timedelta
from urllib.parse import urlsplit
from uuid import UUID

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import Response

from pabal.api.errors import status_of
from pabal.api.page import cursor_of, place_of
from pabal.console.gate import Deed, Form, Look, by
from pabal.console.mask import HIDDEN
from pabal.console.once import once
from pabal.console.pages import agreed, confirm, confirmed, page, then
from pabal.core.errors import Conflict, Invalid, NotFound, Refused
from pabal.events import subscriptions
from pabal.events.breaker import Breaker, Standing
from pabal.events.read import Reader
from pabal.events.subscriptions import Subscription
from pabal.operators.operators import Role, Session
from pabal.tokens import families, revoke, roster, services
from pabal.tokens.permission import Permission, expanded
from pabal.wiring import Hub

ROOM = "/console/services"
PAGE = 50
FAMILIES = 20
DESCRIPTION = 500
OVERLAPS = {"7d": timedelta(days=7), "1d": timedelta(days=1), "1h": timedelta(hours=1), "0": timedelta()}
"""How long the secret before may work on."""
NOTHING: Form = ImmutableMultiDict[str, str]()


async def every(hub: Hub, request: Request, session: Session) -> Response:
    return await shown(hub, request, session)


async def shown(
    hub: Hub, request: Request, session: Session, refusal: Refused | None = None, given: Form = NOTHING
) -> Response:
    """All of them by their names, with the form for another one; what was refused is there to be mended."""
    after = request.query_params.get("cursor", "").replace("\0", "")
    async with hub.autocommit() as tx:
        rows = await roster.roster(tx, after=after, limit=PAGE + 1)
    return page(
        request,
        "services/list.html",
        status=status_of(type(refusal)) if refusal else 200,
        session=session,
        refusal=refusal,
        given=given,
        rows=rows[:PAGE],
        many=families.MANY,
        permissions=tuple(Permission),
        older=rows[PAGE - 1].name if len(rows) > PAGE else None,
        later=after,
    )


async def one(hub: Hub, request: Request, session: Session) -> Response:
    name = named(request)
    after = place_of(request.query_params.get("cursor") or None)
    async with hub.autocommit() as tx:
        service = await services.find(tx, name)
        secrets = await services.live_secrets(tx, name)
        live = await families.count(tx, name)
        rows = await families.live(tx, name, after=after, limit=FAMILIES)
        wishes = await subscriptions.every(tx, Reader(name, all=False), limit=subscriptions.MOST)
    carried = expanded(service.permissions)
    return page(
        request,
        "services/one.html",
        session=session,
        it=service,
        secrets=secrets,
        newest=newest(secrets),
        live=live,
        many=families.MANY,
        families=rows,
        older=cursor_of(rows, FAMILIES, at="expires_at"),
        later=after,
        wishes=[(each, state(each, service.now), address(each, session)) for each in wishes],
        permissions=[each for each in Permission if each in carried],
        overlaps=tuple(OVERLAPS),
        ours=name == services.OURS,
    )


async def add(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    """Add a service. Its secret is on the answer and nowhere else: asking for the same again finds the name taken."""
    name, description = given.get("name", "").strip(), given.get("description", "").strip()
    if description and (not description.isprintable() or len(description) > DESCRIPTION):
        mistake = Invalid.one("description", f"is one line of at most {DESCRIPTION} characters")
        return await shown(hub, request, session, mistake, given)
    try:
        async with hub.transaction() as tx:
            added, secret = await services.add(
                tx, name, given.getlist("permission"), by(request, session), description=description or None
            )
    except (Invalid, Conflict) as error:
        return await shown(hub, request, session, error, given)
    return once(request, session, "service secret", secret, f"{ROOM}/{added.name}")


async def rotate(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    """Give a service a new secret, if the newest is still the one its page showed: a form sent twice makes one."""
    name = named(request)
    home, overlap = f"{ROOM}/{name}", OVERLAPS.get(given.get("overlap", ""))
    if overlap is None:
        raise Invalid.one("overlap", f"is one of {', '.join(OVERLAPS)}")
    async with hub.transaction() as tx:
        secrets = await services.held_secrets(tx, name)
        if given.get("newest") != newest(secrets):
            return then(home, "secret changed meanwhile")
        if not overlap and not agreed(given):
            return confirm(request, session, says="end secrets", count=len(secrets), carries=given, back=home)
        secret = await services.rotate_secret(tx, name, by(request, session), overlap=overlap)
    return once(request, session, "service secret", secret, home)


async def disable(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    """Keep a service out. What stops with it is its live families; they go on when it is let in again."""
    name = named(request)
    async with hub.transaction() as tx:
        await services.find(tx, name)
        live = await services.live_families(tx, name)
        if not agreed(given):
            return confirm(
                request, session, says="keep out", count=live, carries=given, back=f"{ROOM}/{name}", name=name
            )
        await services.set_active(tx, name, by(request, session), active=False)
    return then(f"{ROOM}/{name}", "service disabled said")


async def enable(hub: Hub, request: Request, session: Session, _given: Form) -> Response:
    name = named(request)
    async with hub.transaction() as tx:
        await services.set_active(tx, name, by(request, session), active=True)
    return then(f"{ROOM}/{name}", "service enabled said")


async def revoke_one(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    name = named(request)
    row: UUID = request.path_params["id"]
    if not confirmed(given, 1):
        return confirm(request, session, says="end families", count=1, carries=given, back=f"{ROOM}/{name}", name=name)
    async with hub.transaction() as tx:
        await families.end(tx, name, row, by(request, session))
    return then(f"{ROOM}/{name}", "families ended", n=1)


async def revoke_all(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    """End the families there are."""
    name = named(request)
    home = f"{ROOM}/{name}"
    async with hub.transaction() as tx:
        await services.find(tx, name)
        live = await revoke.live(tx, name)
        if not agreed(given):
            return confirm(request, session, says="end families", count=len(live), carries=given, back=home, name=name)
        ended = await revoke.families(tx, live, by(request, session))
    return then(home, "families ended", n=ended)


async def pause(hub: Hub, request: Request, session: Session, _given: Form) -> Response:
    name, row = named(request), request.path_params["id"]
    async with hub.transaction() as tx:
        await subscriptions.pause(tx, row, Reader(name, all=False), by(request, session))
    return then(f"{ROOM}/{name}", "subscription paused")


async def resume(hub: Hub, request: Request, session: Session, _given: Form) -> Response:
    name, row = named(request), request.path_params["id"]
    async with hub.transaction() as tx:
        await subscriptions.resume(tx, row, Reader(name, all=False), by(request, session))
    return then(f"{ROOM}/{name}", "subscription resumed")


def named(request: Request) -> str:
    """The service a page is about, if anybody could be called so."""
    name: str = request.path_params["name"]
    if not services.NAME.fullmatch(name):
        raise NotFound("no service is called so")
    return name


def newest(secrets: list[services.Secret]) -> str:
    return str(secrets[0].id) if secrets else "none"


def state(subscription: Subscription, now: datetime) -> str:
    """In one word: given up, paused, or what its breaker lets through."""
    if subscription.disabled_at:
        return "given-up"
    if subscription.paused_at:
        return "paused"
    match Breaker(subscription.failures, subscription.open_until).standing(now):
        case Standing.OPEN:
            return "resting"
        case Standing.HALF_OPEN:
            return "probing"
        case Standing.CLOSED:
            return "active"


def address(subscription: Subscription, session: Session) -> str:
    """Where its events go. The path of somebody's address may be all that keeps others out: a viewer sees the host."""
    if subscription.url is None or session.role == Role.ADMIN:
        return subscription.url or subscription.program
    parts = urlsplit(subscription.url)
    return f"{parts.scheme}://{parts.hostname}/{HIDDEN}"


PAGES = (
    Look(ROOM, every),
    Look(ROOM + "/{name}", one),
    Deed(ROOM, add),
    Deed(ROOM + "/{name}/rotate", rotate),
    Deed(ROOM + "/{name}/disable", disable),
    Deed(ROOM + "/{name}/enable", enable),
    Deed(ROOM + "/{name}/revoke", revoke_all),
    Deed(ROOM + "/{name}/families/{id:uuid}/revoke", revoke_one),
    Deed(ROOM + "/{name}/subscriptions/{id:uuid}/pause", pause),
    Deed(ROOM + "/{name}/subscriptions/{id:uuid}/resume", resume),
)
