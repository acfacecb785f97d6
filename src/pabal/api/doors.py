"""The table of doors: the API's table of contents."""

from pabal.api import events, health, letters, oauth, pull, reference, subscriptions
from pabal.api.door import Door

HUB: tuple[Door, ...] = (*health.DOORS, *oauth.DOORS, *events.DOORS, *pull.DOORS, *subscriptions.DOORS, *letters.DOORS)

ALL: tuple[Door, ...] = (*HUB, *reference.doors_about(HUB))
