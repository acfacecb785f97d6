"""Services: who there is, what they may, and what lives of their secrets, tokens and subscriptions."""

from datetime import datetime, timedelta
from urllib.parse import urlsplit
from uuid import UUID

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import Response

from pabal.console.format import REDACTED_TEXT
from pabal.console.guards import Action, Form, Page, operator_actor
from pabal.console.pages import (
    confirm_page,
    is_confirmed,
    is_count_confirmed,
    redirect_with_flash,
    render_page,
    secret_page,
)
from pabal.core.errors import Conflict, Invalid, NotFound, RequestError
from pabal.events import subscriptions
from pabal.events.circuit_breaker import BreakerState, CircuitBreaker
from pabal.events.events import EventAccess
from pabal.events.subscriptions import Subscription, list_subscriptions, pause_subscription, resume_subscription
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession, Role
from pabal.tokens import inspect, services
from pabal.tokens.inspect import count_live_families_capped, list_live_families, revoke_service_family
from pabal.tokens.permission import Permission, expand_permissions
from pabal.tokens.revoke import list_live_family_ids, revoke_families
from pabal.tokens.services import (
    ServiceSecret,
    add_service,
    count_live_families,
    find_service,
    list_live_secrets,
    list_service_summaries,
    lock_live_secrets,
    rotate_service_secret,
    set_service_active,
)
from pabal.web.errors import error_status
from pabal.web.pagination import decode_cursor, next_cursor

SERVICES_PATH = "/console/services"
PAGE_SIZE = 50
FAMILIES_PAGE_SIZE = 20
MAX_DESCRIPTION_LENGTH = 500
OVERLAPS = {"7d": timedelta(days=7), "1d": timedelta(days=1), "1h": timedelta(hours=1), "0": timedelta()}
"""How long the secret before may work on."""
EMPTY_FORM: Form = ImmutableMultiDict[str, str]()


async def services_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    return await render_services_page(hub, request, session)


async def render_services_page(
    hub: Hub, request: Request, session: OperatorSession, error: RequestError | None = None, fields: Form = EMPTY_FORM
) -> Response:
    """All of them by their names, with the form for another one; what was refused is there to be mended."""
    after = request.query_params.get("cursor", "").replace("\0", "")
    async with hub.autocommit() as tx:
        rows = await list_service_summaries(tx, after=after, limit=PAGE_SIZE + 1)
    return render_page(
        request,
        "services/list.html",
        status=error_status(type(error)) if error else 200,
        session=session,
        error=error,
        fields=fields,
        rows=rows[:PAGE_SIZE],
        max_families=inspect.MAX_COUNTED_FAMILIES,
        permissions=tuple(Permission),
        next_cursor=rows[PAGE_SIZE - 1].name if len(rows) > PAGE_SIZE else None,
        current_cursor=after,
    )


async def service_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    name = read_service_name(request)
    after = decode_cursor(request.query_params.get("cursor") or None)
    async with hub.autocommit() as tx:
        service = await find_service(tx, name)
        secrets = await list_live_secrets(tx, name)
        live = await count_live_families_capped(tx, name)
        rows = await list_live_families(tx, name, after=after, limit=FAMILIES_PAGE_SIZE)
        wishes = await list_subscriptions(
            tx, EventAccess(name, all_services=False), limit=subscriptions.MAX_SUBSCRIPTIONS
        )
    carried = expand_permissions(service.permissions)
    return render_page(
        request,
        "services/detail.html",
        session=session,
        service=service,
        secrets=secrets,
        newest_secret_id=newest_secret_id(secrets),
        live_families=live,
        max_families=inspect.MAX_COUNTED_FAMILIES,
        families=rows,
        next_cursor=next_cursor(rows, FAMILIES_PAGE_SIZE, time_field="expires_at"),
        current_cursor=after,
        subscriptions=[
            (each, subscription_display_state(each, service.now), subscription_target(each, session)) for each in wishes
        ],
        permissions=[each for each in Permission if each in carried],
        overlaps=tuple(OVERLAPS),
        is_hub=name == services.HUB_SERVICE,
    )


async def add_service_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Add a service. Its secret is on the answer and nowhere else: asking for the same again finds the name taken."""
    name, description = fields.get("name", "").strip(), fields.get("description", "").strip()
    if description and (not description.isprintable() or len(description) > MAX_DESCRIPTION_LENGTH):
        mistake = Invalid.of_field("description", f"is one line of at most {MAX_DESCRIPTION_LENGTH} characters")
        return await render_services_page(hub, request, session, mistake, fields)
    try:
        async with hub.transaction() as tx:
            added, secret = await add_service(
                tx,
                name,
                fields.getlist("permission"),
                operator_actor(request, session),
                description=description or None,
            )
    except (Invalid, Conflict) as error:
        return await render_services_page(hub, request, session, error, fields)
    return secret_page(request, session, "service secret", secret, f"{SERVICES_PATH}/{added.name}")


async def rotate_service_secret_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Give a service a new secret, if the newest is still the one its page showed: a form sent twice makes one."""
    name = read_service_name(request)
    home, overlap = f"{SERVICES_PATH}/{name}", OVERLAPS.get(fields.get("overlap", ""))
    if overlap is None:
        raise Invalid.of_field("overlap", f"is one of {', '.join(OVERLAPS)}")
    async with hub.transaction() as tx:
        secrets = await lock_live_secrets(tx, name)
        if fields.get("newest") != newest_secret_id(secrets):
            return redirect_with_flash(home, "secret changed meanwhile")
        if not overlap and not is_confirmed(fields):
            return confirm_page(
                request, session, text_id="end secrets", count=len(secrets), fields=fields, return_url=home
            )
        secret = await rotate_service_secret(tx, name, operator_actor(request, session), overlap=overlap)
    return secret_page(request, session, "service secret", secret, home)


async def disable_service_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Keep a service out. What stops with it is its live families; they go on when it is let in again."""
    name = read_service_name(request)
    async with hub.transaction() as tx:
        await find_service(tx, name)
        live = await count_live_families(tx, name)
        if not is_confirmed(fields):
            return confirm_page(
                request,
                session,
                text_id="keep out",
                count=live,
                fields=fields,
                return_url=f"{SERVICES_PATH}/{name}",
                name=name,
            )
        await set_service_active(tx, name, operator_actor(request, session), active=False)
    return redirect_with_flash(f"{SERVICES_PATH}/{name}", "service disabled said")


async def enable_service_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    name = read_service_name(request)
    async with hub.transaction() as tx:
        await set_service_active(tx, name, operator_actor(request, session), active=True)
    return redirect_with_flash(f"{SERVICES_PATH}/{name}", "service enabled said")


async def revoke_token_family_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    name = read_service_name(request)
    row: UUID = request.path_params["id"]
    if not is_count_confirmed(fields, 1):
        return confirm_page(
            request,
            session,
            text_id="end families",
            count=1,
            fields=fields,
            return_url=f"{SERVICES_PATH}/{name}",
            name=name,
        )
    async with hub.transaction() as tx:
        await revoke_service_family(tx, name, row, operator_actor(request, session))
    return redirect_with_flash(f"{SERVICES_PATH}/{name}", "families ended", n=1)


async def revoke_token_families_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """End the families there are."""
    name = read_service_name(request)
    home = f"{SERVICES_PATH}/{name}"
    async with hub.transaction() as tx:
        await find_service(tx, name)
        live = await list_live_family_ids(tx, name)
        if not is_confirmed(fields):
            return confirm_page(
                request, session, text_id="end families", count=len(live), fields=fields, return_url=home, name=name
            )
        ended = await revoke_families(tx, live, operator_actor(request, session))
    return redirect_with_flash(home, "families ended", n=ended)


async def pause_subscription_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    name, row = read_service_name(request), request.path_params["id"]
    async with hub.transaction() as tx:
        await pause_subscription(tx, row, EventAccess(name, all_services=False), operator_actor(request, session))
    return redirect_with_flash(f"{SERVICES_PATH}/{name}", "subscription paused")


async def resume_subscription_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    name, row = read_service_name(request), request.path_params["id"]
    async with hub.transaction() as tx:
        await resume_subscription(tx, row, EventAccess(name, all_services=False), operator_actor(request, session))
    return redirect_with_flash(f"{SERVICES_PATH}/{name}", "subscription resumed")


def read_service_name(request: Request) -> str:
    """The service a page is about, if anybody could be called so."""
    name: str = request.path_params["name"]
    if not services.SERVICE_NAME.fullmatch(name):
        raise NotFound("no service is called so")
    return name


def newest_secret_id(secrets: list[ServiceSecret]) -> str:
    return str(secrets[0].id) if secrets else "none"


def subscription_display_state(subscription: Subscription, now: datetime) -> str:
    """In one word: given up, paused, or what its breaker lets through."""
    if subscription.disabled_at:
        return "given-up"
    if subscription.paused_at:
        return "paused"
    match CircuitBreaker(subscription.failures, subscription.open_until).state(now):
        case BreakerState.OPEN:
            return "resting"
        case BreakerState.HALF_OPEN:
            return "probing"
        case BreakerState.CLOSED:
            return "active"


def subscription_target(subscription: Subscription, session: OperatorSession) -> str:
    """Where its events go. The path of somebody's address may be all that keeps others out: a viewer sees the host."""
    if subscription.url is None or session.role == Role.ADMIN:
        return subscription.url or subscription.program
    parts = urlsplit(subscription.url)
    return f"{parts.scheme}://{parts.hostname}/{REDACTED_TEXT}"


PAGES = (
    Page(SERVICES_PATH, services_page),
    Page(SERVICES_PATH + "/{name}", service_page),
    Action(SERVICES_PATH, add_service_action),
    Action(SERVICES_PATH + "/{name}/rotate", rotate_service_secret_action),
    Action(SERVICES_PATH + "/{name}/disable", disable_service_action),
    Action(SERVICES_PATH + "/{name}/enable", enable_service_action),
    Action(SERVICES_PATH + "/{name}/revoke", revoke_token_families_action),
    Action(SERVICES_PATH + "/{name}/families/{id:uuid}/revoke", revoke_token_family_action),
    Action(SERVICES_PATH + "/{name}/subscriptions/{id:uuid}/pause", pause_subscription_action),
    Action(SERVICES_PATH + "/{name}/subscriptions/{id:uuid}/resume", resume_subscription_action),
)
