"""The list of services, and a service with its permissions, secrets, tokens and subscriptions."""

from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.access.guards import EMPTY_FORM, Action, Form, Page, operator_actor
from pabal.console.pages import confirm_page, is_confirmed, read_cursor, redirect_with_flash, render_page, secret_page
from pabal.console.services.credentials import OVERLAPS, newest_secret_id
from pabal.console.services.paths import SERVICES_PATH, read_service_name
from pabal.console.services.subscriptions import (
    ON_BLOCKED,
    read_subscription_fields,
    subscription_display_state,
    subscription_target,
    subscription_url,
)
from pabal.core.errors import Conflict, Invalid, RequestError
from pabal.events import subscriptions
from pabal.events.events import EventAccess
from pabal.events.push.retry_schedule import format_retry_schedule
from pabal.events.subscriptions import SubscriptionDraft, add_subscription, list_subscriptions
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession
from pabal.tokens import explain, services
from pabal.tokens.explain import count_live_families_capped, list_live_families
from pabal.tokens.permission import Permission, expand_permissions
from pabal.tokens.services import (
    MAX_SERVICE_DESCRIPTION,
    ServicePatch,
    add_service,
    count_live_families,
    find_service,
    list_live_secrets,
    list_service_summaries,
    remove_service,
    set_service_active,
    update_service,
)
from pabal.tokens.sql_roles import list_sql_roles
from pabal.web.errors import error_status
from pabal.web.pagination import decode_cursor, next_cursor

PAGE_SIZE = 50
FAMILIES_PAGE_SIZE = 20
DEFAULT_TIMEOUT_SECONDS = 15


async def services_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    return await render_services_page(hub, request, session)


async def render_services_page(
    hub: Hub, request: Request, session: OperatorSession, error: RequestError | None = None, fields: Form = EMPTY_FORM
) -> Response:
    """List the services by name, with the form to add one. A rejected form is shown again with its error."""
    after = read_cursor(request) or ""
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
        max_families=explain.MAX_COUNTED_FAMILIES,
        permissions=tuple(Permission),
        next_cursor=rows[PAGE_SIZE - 1].name if len(rows) > PAGE_SIZE else None,
        current_cursor=after,
    )


async def service_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    return await render_service_page(hub, request, session)


async def render_service_page(
    hub: Hub,
    request: Request,
    session: OperatorSession,
    rejected: Literal["rights", "subscription"] | None = None,
    error: RequestError | None = None,
    fields: Form = EMPTY_FORM,
) -> Response:
    """Show a service with its forms. A rejected one is shown again with its error."""
    name = read_service_name(request)
    after = decode_cursor(read_cursor(request))
    async with hub.autocommit() as tx:
        service = await find_service(tx, name)
        secrets = await list_live_secrets(tx, name)
        family_count = await count_live_families_capped(tx, name)
        families = await list_live_families(tx, name, after=after, limit=FAMILIES_PAGE_SIZE)
        shown = max(hub.settings.subscriptions_per_service, subscriptions.MAX_SUBSCRIPTIONS)
        rows = await list_subscriptions(tx, EventAccess(name, all_services=False), limit=shown)
        sql_roles = await list_sql_roles(tx, name)
    permissions = expand_permissions(service.permissions)
    return render_page(
        request,
        "services/detail.html",
        status=error_status(type(error)) if error else 200,
        session=session,
        service_path=f"{SERVICES_PATH}/{name}",
        rejected=rejected,
        error=error,
        fields=fields,
        service=service,
        secrets=secrets,
        newest_secret_id=newest_secret_id(secrets),
        live_families=family_count,
        max_families=explain.MAX_COUNTED_FAMILIES,
        families=families,
        next_cursor=next_cursor(families, FAMILIES_PAGE_SIZE, time_field="expires_at"),
        current_cursor=after,
        subscriptions=[
            (row, subscription_display_state(row, service.now), subscription_target(row, session)) for row in rows
        ],
        permissions=[permission for permission in Permission if permission in permissions],
        all_permissions=tuple(Permission),
        receives_hub_events=name == services.HUB_SERVICE or Permission.RECEIVE_HUB_EVENTS in permissions,
        sql_roles=sql_roles,
        overlaps=tuple(OVERLAPS),
        is_hub=name == services.HUB_SERVICE,
        max_description=MAX_SERVICE_DESCRIPTION,
        on_blocked=ON_BLOCKED,
        default_schedule=format_retry_schedule(None),
    )


async def add_service_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Add a service and show its secret once. Sending the form again fails, because the name is taken."""
    name = fields.get("name", "").strip()
    try:
        async with hub.transaction() as tx:
            service, secret = await add_service(
                tx,
                name,
                fields.getlist("permission"),
                operator_actor(request, session),
                description=fields.get("description"),
                may_publish=fields.get("may_publish", "").split(),
                may_subscribe=fields.get("may_subscribe", "").split(),
            )
    except (Invalid, Conflict) as error:
        return await render_services_page(hub, request, session, error, fields)
    return secret_page(request, session, "services.secret.new", secret, f"{SERVICES_PATH}/{service.name}")


async def set_service_rights_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Replace the description and the permissions of a service, and the event types that it may publish and receive."""
    name = read_service_name(request)
    patch = ServicePatch(
        fields.getlist("permission"),
        fields.get("may_publish", "").split(),
        fields.get("may_subscribe", "").split(),
        fields.get("description"),
    )
    try:
        async with hub.transaction() as tx:
            await update_service(tx, name, patch, operator_actor(request, session))
    except Invalid as error:
        return await render_service_page(hub, request, session, "rights", error, fields)
    return redirect_with_flash(f"{SERVICES_PATH}/{name}", "services.rights.changed")


async def add_subscription_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Add a subscription. The secret of a push is shown once."""
    name = read_service_name(request)
    try:
        patch = read_subscription_fields(fields)
        if patch.url is not None:
            await hub.http_client.check_url(patch.url)
        draft = SubscriptionDraft(
            name,
            patch.event_types or (),
            patch.url,
            patch.description,
            patch.timeout_seconds or DEFAULT_TIMEOUT_SECONDS,
            patch.retry_schedule,
            patch.on_blocked or "dead_letter",
        )
        async with hub.transaction() as tx:
            subscription, secret = await add_subscription(
                tx, hub.key_ring, draft, operator_actor(request, session), hub.settings.subscriptions_per_service
            )
    except (Invalid, Conflict) as error:
        return await render_service_page(hub, request, session, "subscription", error, fields)
    return_url = subscription_url(name, subscription.id)
    if secret is None:
        return redirect_with_flash(return_url, "services.subscription.added")
    return secret_page(request, session, "services.subscription.secret", secret, return_url)


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


async def remove_service_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Remove a service that nothing refers to, after confirmation. Any other one can only be disabled."""
    name = read_service_name(request)
    async with hub.transaction() as tx:
        secrets = await list_live_secrets(tx, (await find_service(tx, name)).name)
        if not is_confirmed(fields):
            return confirm_page(
                request,
                session,
                text_id="services.remove.confirm",
                count=len(secrets),
                fields=fields,
                return_url=f"{SERVICES_PATH}/{name}",
                name=name,
            )
        await remove_service(tx, name, operator_actor(request, session))
    return redirect_with_flash(SERVICES_PATH, "services.remove.done")


async def enable_service_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    name = read_service_name(request)
    async with hub.transaction() as tx:
        await set_service_active(tx, name, operator_actor(request, session), active=True)
    return redirect_with_flash(f"{SERVICES_PATH}/{name}", "services.enable.done")


PAGES = (
    Page(SERVICES_PATH, services_page),
    Page(SERVICES_PATH + "/{name}", service_page),
    Action(SERVICES_PATH, add_service_action),
    Action(SERVICES_PATH + "/{name}/rights", set_service_rights_action),
    Action(SERVICES_PATH + "/{name}/subscriptions", add_subscription_action),
    Action(SERVICES_PATH + "/{name}/disable", disable_service_action),
    Action(SERVICES_PATH + "/{name}/enable", enable_service_action),
    Action(SERVICES_PATH + "/{name}/remove", remove_service_action),
)
