"""Hands: how many of a worker's each kind of request may have, so that who waits for Discord keeps nobody waiting."""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from pabal.notifications.lane import HeldRequest
from pabal.notifications.plan import Channel, Criticality
from pabal.queue.worker import Whom

HANDS = 100
"""Of one worker. Toasts wait for nobody and may have them all, and have at least those that nobody else may."""
DISCORD = (Channel.GUILD_AUDIT_CHANNEL, Channel.USER_DM)
URGENT = (Criticality.EMERGENCY.priority,)
OTHERS = (Criticality.IMPORTANT.priority, Criticality.NORMAL.priority)


@dataclass(frozen=True, slots=True)
class Share:
    """Requests of the same kind, and the most hands they may have."""

    channels: tuple[Channel, ...]
    priorities: tuple[int, ...]
    most: int


SHARES = (
    Share(DISCORD, URGENT, 20),
    Share((Channel.DASHBOARD_TOAST,), (*URGENT, *OTHERS), HANDS),
    Share((Channel.USER_DM,), OTHERS, 40),
    Share((Channel.GUILD_AUDIT_CHANNEL,), OTHERS, 20),
)
BY_KIND = {
    (channel, priority): share for share in SHARES for channel in share.channels for priority in share.priorities
}


class Hands:
    """Counts whose requests are in hand."""

    def __init__(self) -> None:
        self._busy: Counter[Share] = Counter()

    def rota(self, *, quiet: bool) -> list[Whom]:
        """Whose requests to claim, and how many of each; none for Discord while it is quiet."""
        return [
            {"channels": [*share.channels], "priorities": [*share.priorities], "most": self._room(share, quiet=quiet)}
            for share in SHARES
        ]

    @contextmanager
    def holding(self, request: HeldRequest) -> Generator[None]:
        share = BY_KIND[Channel(request.recipient_type), request.priority]
        self._busy[share] += 1
        try:
            yield
        finally:
            self._busy[share] -= 1

    def _room(self, share: Share, *, quiet: bool) -> int:
        if quiet and not {*DISCORD}.isdisjoint(share.channels):
            return 0
        return max(0, share.most - self._busy[share])
