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
from pabal.api.door import Door

HUB: tuple[Door, ...] = (
    *health.DOORS,
    *oauth.DOORS,
    *events.DOORS,
    *pull.DOORS,
    *subscriptions.DOORS,
    *letters.DOORS,
    *kakao.DOORS,
    *sessions.DOORS,
    *stream.DOORS,
    *messages.DOORS,
    *pairing.DOORS,
    *reply.DOORS,
    *notifications.DOORS,
    *rules.DOORS,
    *people.DOORS,
    *preferences.DOORS,
    *toasts.DOORS,
)

ALL: tuple[Door, ...] = (*HUB, *reference.doors_about(HUB))
