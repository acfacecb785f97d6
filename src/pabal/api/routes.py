"""The route table of the API."""

from pabal.api import (
    dead_letters,
    event_claims,
    events,
    health,
    kakao_webhook,
    notifications,
    oauth,
    operators,
    pairing,
    people,
    preferences,
    relay_messages,
    relay_replies,
    relay_sessions,
    relay_stream,
    rules,
    services,
    subscriptions,
    toasts,
)
from pabal.web.reference.pages import reference_routes
from pabal.web.route import Route

RESOURCE_ROUTES: tuple[Route, ...] = (
    *health.ROUTES,
    *oauth.ROUTES,
    *services.ROUTES,
    *operators.ROUTES,
    *events.ROUTES,
    *event_claims.ROUTES,
    *subscriptions.ROUTES,
    *dead_letters.ROUTES,
    *kakao_webhook.ROUTES,
    *relay_sessions.ROUTES,
    *relay_stream.ROUTES,
    *relay_messages.ROUTES,
    *pairing.ROUTES,
    *relay_replies.ROUTES,
    *notifications.ROUTES,
    *rules.ROUTES,
    *people.ROUTES,
    *preferences.ROUTES,
    *toasts.ROUTES,
)

ROUTES: tuple[Route, ...] = (*RESOURCE_ROUTES, *reference_routes(RESOURCE_ROUTES))
