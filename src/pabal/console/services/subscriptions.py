"""Pause and resume the subscriptions of a service, and describe their state."""

from datetime import datetime
from typing import Literal
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.access.guards import Action, Form, operator_actor
from pabal.console.format import REDACTED_TEXT
from pabal.console.pages import (
    redirect_with_flash,
)
from pabal.console.services.paths import SERVICES_PATH, read_service_name
from pabal.events.events import EventAccess
from pabal.events.push.circuit_breaker import BreakerState, CircuitBreaker
from pabal.events.subscriptions import Subscription, pause_subscription, resume_subscription
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession, Role

SubscriptionDisplayState = Literal["active", "paused", "auto_disabled", "suspended", "probing"]


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
    Action(SERVICES_PATH + "/{name}/subscriptions/{id:uuid}/pause", pause_subscription_action),
    Action(SERVICES_PATH + "/{name}/subscriptions/{id:uuid}/resume", resume_subscription_action),
)
