"""The table of doors: the API's table of contents."""

from pabal.api import health, reference
from pabal.api.door import Door

HUB: tuple[Door, ...] = (*health.DOORS,)

ALL: tuple[Door, ...] = (*HUB, *reference.doors_about(HUB))
