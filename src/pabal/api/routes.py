"""The route table of the API."""

from pabal.api import (
    dead_letters,
    event_claims,
    events,
    health,
    kakao_webhook,
    notifications,
    oauth,
    pairing,
    people,
    preferences,
    relay_messages,
    relay_replies,
    relay_sessions,
    relay_stream,
    rules,
    subscriptions,
    toasts,
)
from pabal.web.reference import reference_routes
from pabal.web.route import Route

RESOURCE_ROUTES: tuple[Route, ...] = (
    *health.ROUTES,
    *oauth.ROUTES,
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
