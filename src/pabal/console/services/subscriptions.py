"""The subscriptions of a service: add, change, pause, test and remove them, and describe their state."""

from datetime import datetime
from typing import Literal, assert_never, get_args
from urllib.parse import urlsplit
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal import limits
from pabal.console.access.guards import EMPTY_FORM, Action, Form, Page, operator_actor
from pabal.console.format import REDACTED_TEXT
from pabal.console.pages import confirm_page, is_confirmed, redirect_with_flash, render_page, secret_page
from pabal.console.services.paths import SERVICES_PATH, read_service_name
from pabal.core.errors import Conflict, DecryptionError, Invalid, RequestError
from pabal.events.events import EventAccess
from pabal.events.push.circuit_breaker import BreakerState, CircuitBreaker
from pabal.events.push.retry_schedule import format_retry_schedule, parse_retry_schedule
from pabal.events.subscriptions import (
    MAX_SUBSCRIPTION_DESCRIPTION,
    SUBSCRIPTION_TEST_LIMIT,
    OnBlocked,
    Subscription,
    SubscriptionPatch,
    find_subscription,
    lock_subscription,
    pause_subscription,
    remove_subscription,
    resume_subscription,
    rotate_subscription_secret,
    update_subscription,
)
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession, Role
from pabal.queue.outcome import Dead, Done, Retry, Unsent
from pabal.tokens.services import find_service
from pabal.web.errors import error_status

SubscriptionDisplayState = Literal["active", "paused", "auto_disabled", "suspended", "probing"]
SUBSCRIPTION_PATH = SERVICES_PATH + "/{name}/subscriptions/{id:uuid}"
ON_BLOCKED: tuple[OnBlocked, ...] = get_args(OnBlocked)


async def subscription_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    return await render_subscription_page(hub, request, session)


async def render_subscription_page(
    hub: Hub,
    request: Request,
    session: OperatorSession,
    test_error: str | None = None,
    *,
    is_tested: bool = False,
    error: RequestError | None = None,
    fields: Form = EMPTY_FORM,
) -> Response:
    """Show a subscription, the result of a test push, and the form to change it, a rejected one with its error."""
    name = read_service_name(request)
    async with hub.autocommit() as tx:
        now = (await find_service(tx, name)).now
        subscription = await find_subscription(tx, request.path_params["id"], service_access(name))
    return render_page(
        request,
        "services/subscription.html",
        status=error_status(type(error)) if error else 200,
        session=session,
        error=error,
        fields=fields,
        service_name=name,
        service_path=f"{SERVICES_PATH}/{name}",
        subscription_path=subscription_url(name, subscription.id),
        subscription=subscription,
        state=subscription_display_state(subscription, now),
        target=subscription_target(subscription, session),
        schedule=format_retry_schedule(subscription.retry_schedule),
        schedule_text=format_retry_schedule,
        default_schedule=format_retry_schedule(None),
        on_blocked=ON_BLOCKED,
        newest_rotation=newest_rotation(subscription),
        is_tested=is_tested,
        test_error=test_error,
    )


async def change_subscription_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Replace what the form has: types, URL, description, timeout, schedule."""
    name, subscription_id = read_service_name(request), request.path_params["id"]
    try:
        patch = read_subscription_fields(fields)
        if patch.url is not None:
            await hub.http_client.check_url(patch.url)
        async with hub.transaction() as tx:
            await update_subscription(
                tx, subscription_id, service_access(name), patch, operator_actor(request, session)
            )
    except Invalid as error:
        return await render_subscription_page(hub, request, session, error=error, fields=fields)
    return redirect_with_flash(subscription_url(name, subscription_id), "services.subscription.changed")


async def remove_subscription_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Remove a subscription, after confirmation. Queued events stay and can be pulled."""
    name, subscription_id = read_service_name(request), request.path_params["id"]
    async with hub.transaction() as tx:
        await find_subscription(tx, subscription_id, service_access(name))
        if not is_confirmed(fields):
            return confirm_page(
                request,
                session,
                text_id="services.subscription.confirm_remove",
                count=1,
                fields=fields,
                return_url=subscription_url(name, subscription_id),
            )
        await remove_subscription(tx, subscription_id, service_access(name), operator_actor(request, session))
    return redirect_with_flash(f"{SERVICES_PATH}/{name}", "services.subscription.removed")


async def rotate_subscription_secret_action(
    hub: Hub, request: Request, session: OperatorSession, fields: Form
) -> Response:
    """Create a new signing secret and show it once. The previous one also signs for a day.

    Only if the newest secret is still the one of the page: a form sent twice would end the one that the receiver has.
    """
    name, subscription_id = read_service_name(request), request.path_params["id"]
    async with hub.transaction() as tx:
        subscription = await lock_subscription(tx, subscription_id, service_access(name))
        if fields.get("newest") != newest_rotation(subscription):
            return redirect_with_flash(subscription_url(name, subscription_id), "services.secret.changed")
        _, secret = await rotate_subscription_secret(
            tx, hub.key_ring, subscription_id, service_access(name), operator_actor(request, session)
        )
    return secret_page(
        request, session, "services.subscription.secret", secret, subscription_url(name, subscription_id)
    )


async def send_test_event_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    """Push a signed `pabal.test` event now and show the result."""
    name, subscription_id = read_service_name(request), request.path_params["id"]
    async with hub.autocommit() as tx:
        subscription = await find_subscription(tx, subscription_id, service_access(name))
        await limits.consume_rate_limit(tx, SUBSCRIPTION_TEST_LIMIT, str(subscription_id))
    try:
        result = await hub.pusher.send_test(subscription)
    except DecryptionError:
        raise Conflict("The secret cannot be decrypted with the keys of this hub. Rotate the secret") from None
    match result:
        case Done():
            error = None
        case Retry() | Dead() | Unsent():
            error = result.error
        case _:
            assert_never(result)
    return await render_subscription_page(hub, request, session, error, is_tested=True)


async def pause_subscription_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    name, subscription_id = read_service_name(request), request.path_params["id"]
    async with hub.transaction() as tx:
        await pause_subscription(tx, subscription_id, service_access(name), operator_actor(request, session))
    return redirect_with_flash(return_url_of(name, subscription_id, fields), "services.subscription.paused")


async def resume_subscription_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    name, subscription_id = read_service_name(request), request.path_params["id"]
    async with hub.transaction() as tx:
        await resume_subscription(tx, subscription_id, service_access(name), operator_actor(request, session))
    return redirect_with_flash(return_url_of(name, subscription_id, fields), "services.subscription.resumed")


def read_subscription_fields(fields: Form) -> SubscriptionPatch:
    """Parse the form of a subscription. An empty schedule means the default one, an empty URL keeps the present one."""
    description, schedule = fields.get("description", "").strip(), fields.get("retry_schedule", "").strip()
    timeout, on_blocked = fields.get("timeout_seconds", "").strip(), fields.get("on_blocked", "").strip()
    if len(description) > MAX_SUBSCRIPTION_DESCRIPTION or not description.isprintable():
        raise Invalid.of_field("description", f"must be one line of at most {MAX_SUBSCRIPTION_DESCRIPTION} characters")
    if timeout and not (timeout.isascii() and timeout.isdigit() and len(timeout) < 3):  # noqa: PLR2004 two digits
        raise Invalid.of_field("timeout_seconds", "is 1 to 60")
    if on_blocked and on_blocked not in ON_BLOCKED:
        raise Invalid.of_field("on_blocked", f"must be one of {', '.join(ON_BLOCKED)}")
    return SubscriptionPatch(
        event_types=fields.get("event_types", "").split(),
        url=fields.get("url", "").strip() or None,
        timeout_seconds=int(timeout) if timeout else None,
        set_description=True,
        description=description or None,
        set_retry_schedule="retry_schedule" in fields,
        retry_schedule=parse_retry_schedule(schedule) if schedule else None,
        on_blocked=on_blocked or None,
    )


def newest_rotation(subscription: Subscription) -> str:
    """What changes with every rotation of the secret."""
    until = subscription.previous_secret_until
    return until.isoformat() if until else "none"


def service_access(name: str) -> EventAccess:
    """The rows of the service that the path names, and no others."""
    return EventAccess(name, all_services=False)


def subscription_url(name: str, subscription_id: UUID) -> str:
    return f"{SERVICES_PATH}/{name}/subscriptions/{subscription_id}"


def return_url_of(name: str, subscription_id: UUID, fields: Form) -> str:
    """The page that the form is on: that of the subscription, or that of its service."""
    return subscription_url(name, subscription_id) if "detail" in fields else f"{SERVICES_PATH}/{name}"


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
    Page(SUBSCRIPTION_PATH, subscription_page),
    Action(SUBSCRIPTION_PATH, change_subscription_action),
    Action(f"{SUBSCRIPTION_PATH}/pause", pause_subscription_action),
    Action(f"{SUBSCRIPTION_PATH}/resume", resume_subscription_action),
    Action(f"{SUBSCRIPTION_PATH}/remove", remove_subscription_action),
    Action(f"{SUBSCRIPTION_PATH}/rotate", rotate_subscription_secret_action),
    Action(f"{SUBSCRIPTION_PATH}/test", send_test_event_action),
)
