"""Services with their permissions, secrets, tokens and subscriptions."""

from datetime import datetime, timedelta
from typing import Literal
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
"""How long the previous secret keeps working after a rotation."""
EMPTY_FORM: Form = ImmutableMultiDict[str, str]()
SubscriptionDisplayState = Literal["active", "paused", "auto_disabled", "suspended", "probing"]


async def services_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    return await render_services_page(hub, request, session)


async def render_services_page(
    hub: Hub, request: Request, session: OperatorSession, error: RequestError | None = None, fields: Form = EMPTY_FORM
) -> Response:
    """List the services by name, with the form to add one. A rejected form is shown again with its error."""
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
        family_count = await count_live_families_capped(tx, name)
        families = await list_live_families(tx, name, after=after, limit=FAMILIES_PAGE_SIZE)
        rows = await list_subscriptions(
            tx, EventAccess(name, all_services=False), limit=subscriptions.MAX_SUBSCRIPTIONS
        )
    permissions = expand_permissions(service.permissions)
    return render_page(
        request,
        "services/detail.html",
        session=session,
        service=service,
        secrets=secrets,
        newest_secret_id=newest_secret_id(secrets),
        live_families=family_count,
        max_families=inspect.MAX_COUNTED_FAMILIES,
        families=families,
        next_cursor=next_cursor(families, FAMILIES_PAGE_SIZE, time_field="expires_at"),
        current_cursor=after,
        subscriptions=[
            (row, subscription_display_state(row, service.now), subscription_target(row, session)) for row in rows
        ],
        permissions=[permission for permission in Permission if permission in permissions],
        overlaps=tuple(OVERLAPS),
        is_hub=name == services.HUB_SERVICE,
    )


async def add_service_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Add a service and show its secret once. Sending the form again fails, because the name is taken."""
    name, description = fields.get("name", "").strip(), fields.get("description", "").strip()
    if description and (not description.isprintable() or len(description) > MAX_DESCRIPTION_LENGTH):
        error = Invalid.of_field("description", f"must be one line of at most {MAX_DESCRIPTION_LENGTH} characters")
        return await render_services_page(hub, request, session, error, fields)
    try:
        async with hub.transaction() as tx:
            service, secret = await add_service(
                tx,
                name,
                fields.getlist("permission"),
                operator_actor(request, session),
                description=description or None,
            )
    except (Invalid, Conflict) as error:
        return await render_services_page(hub, request, session, error, fields)
    return secret_page(request, session, "services.secret.new", secret, f"{SERVICES_PATH}/{service.name}")


async def rotate_service_secret_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Create a new secret, if the newest one is still the one the page showed: a form sent twice creates one."""
    name = read_service_name(request)
    return_url, overlap = f"{SERVICES_PATH}/{name}", OVERLAPS.get(fields.get("overlap", ""))
    if overlap is None:
        raise Invalid.of_field("overlap", f"must be one of {', '.join(OVERLAPS)}")
    async with hub.transaction() as tx:
        secrets = await lock_live_secrets(tx, name)
        if fields.get("newest") != newest_secret_id(secrets):
            return redirect_with_flash(return_url, "services.secret.changed")
        if not overlap and not is_confirmed(fields):
            return confirm_page(
                request,
                session,
                text_id="services.secret.confirm_revoke",
                count=len(secrets),
                fields=fields,
                return_url=return_url,
            )
        secret = await rotate_service_secret(tx, name, operator_actor(request, session), overlap=overlap)
    return secret_page(request, session, "services.secret.new", secret, return_url)


async def disable_service_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Disable a service. Its tokens are rejected until it is enabled again."""
    name = read_service_name(request)
    async with hub.transaction() as tx:
        await find_service(tx, name)
        family_count = await count_live_families(tx, name)
        if not is_confirmed(fields):
            return confirm_page(
                request,
                session,
                text_id="services.disable.confirm",
                count=family_count,
                fields=fields,
                return_url=f"{SERVICES_PATH}/{name}",
                name=name,
            )
        await set_service_active(tx, name, operator_actor(request, session), active=False)
    return redirect_with_flash(f"{SERVICES_PATH}/{name}", "services.disable.done")


async def enable_service_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    name = read_service_name(request)
    async with hub.transaction() as tx:
        await set_service_active(tx, name, operator_actor(request, session), active=True)
    return redirect_with_flash(f"{SERVICES_PATH}/{name}", "services.enable.done")


async def revoke_token_family_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    name = read_service_name(request)
    family_id: UUID = request.path_params["id"]
    if not is_count_confirmed(fields, 1):
        return confirm_page(
            request,
            session,
            text_id="services.family.confirm_revoke",
            count=1,
            fields=fields,
            return_url=f"{SERVICES_PATH}/{name}",
            name=name,
        )
    async with hub.transaction() as tx:
        await revoke_service_family(tx, name, family_id, operator_actor(request, session))
    return redirect_with_flash(f"{SERVICES_PATH}/{name}", "services.family.revoked", count=1)


async def revoke_token_families_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Revoke all tokens of a service."""
    name = read_service_name(request)
    return_url = f"{SERVICES_PATH}/{name}"
    async with hub.transaction() as tx:
        await find_service(tx, name)
        family_ids = await list_live_family_ids(tx, name)
        if not is_confirmed(fields):
            return confirm_page(
                request,
                session,
                text_id="services.family.confirm_revoke",
                count=len(family_ids),
                fields=fields,
                return_url=return_url,
                name=name,
            )
        revoked = await revoke_families(tx, family_ids, operator_actor(request, session))
    return redirect_with_flash(return_url, "services.family.revoked", count=revoked)


async def pause_subscription_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    name, subscription_id = read_service_name(request), request.path_params["id"]
    async with hub.transaction() as tx:
        access = EventAccess(name, all_services=False)
        await pause_subscription(tx, subscription_id, access, operator_actor(request, session))
    return redirect_with_flash(f"{SERVICES_PATH}/{name}", "services.subscription.paused")


async def resume_subscription_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    name, subscription_id = read_service_name(request), request.path_params["id"]
    async with hub.transaction() as tx:
        access = EventAccess(name, all_services=False)
        await resume_subscription(tx, subscription_id, access, operator_actor(request, session))
    return redirect_with_flash(f"{SERVICES_PATH}/{name}", "services.subscription.resumed")


def read_service_name(request: Request) -> str:
    """Return the service name of the path, if it is a valid one."""
    name: str = request.path_params["name"]
    if not services.SERVICE_NAME.fullmatch(name):
        raise NotFound(f"No such service: {name[:64]}")
    return name


def newest_secret_id(secrets: list[ServiceSecret]) -> str:
    return str(secrets[0].id) if secrets else "none"


def subscription_display_state(subscription: Subscription, now: datetime) -> SubscriptionDisplayState:
    """Combine the switches of a subscription and the state of its circuit breaker."""
    if subscription.disabled_at:
        return "auto_disabled"
    if subscription.paused_at:
        return "paused"
    match CircuitBreaker(subscription.failures, subscription.open_until).state(now):
        case BreakerState.OPEN:
            return "suspended"
        case BreakerState.HALF_OPEN:
            return "probing"
        case BreakerState.CLOSED:
            return "active"


def subscription_target(subscription: Subscription, session: OperatorSession) -> str:
    """Return where the events go. Viewers see only the host, because the path of a URL may be a secret."""
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
