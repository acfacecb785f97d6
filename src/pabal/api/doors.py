"""The table of doors: the API's table of contents."""

from pabal.api import (
    events,
    health,
    kakao,
    letters,
    messages,
    notifications,
    oauth,
    pairing,
    people,
    preferences,
    pull,
    reference,
    reply,
    rules,
    sessions,
    stream,
    subscriptions,
    toasts,
)
from pabal.api.door import Route

RESOURCE_ROUTES: tuple[Route, ...] = (
    *health.ROUTES,
    *oauth.ROUTES,
    *events.ROUTES,
    *pull.ROUTES,
    *subscriptions.ROUTES,
    *letters.ROUTES,
    *kakao.ROUTES,
    *sessions.ROUTES,
    *stream.ROUTES,
    *messages.ROUTES,
    *pairing.ROUTES,
    *reply.ROUTES,
    *notifications.ROUTES,
    *rules.ROUTES,
    *people.ROUTES,
    *preferences.ROUTES,
    *toasts.ROUTES,
)

ROUTES: tuple[Route, ...] = (*RESOURCE_ROUTES, *reference.reference_routes(RESOURCE_ROUTES))
