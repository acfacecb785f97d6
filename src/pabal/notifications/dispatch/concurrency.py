"""How many notifications of each kind one worker sends at once, so that a slow channel does not block the others."""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from pabal.notifications.decision.decide import Criticality, NotificationChannel
from pabal.notifications.lane import ClaimedNotification, NotificationClaimFilter
from pabal.queue.worker import ScheduledClaim

DISPATCH_CONCURRENCY = 100
"""Slots of one worker. Toasts may use all of them; the slots that no other share covers are theirs alone."""
DISCORD_CHANNELS = (NotificationChannel.GUILD_AUDIT_CHANNEL, NotificationChannel.USER_DM)
URGENT_PRIORITIES = (Criticality.EMERGENCY.priority,)
NORMAL_PRIORITIES = (Criticality.NORMAL.priority,)
OTHER_PRIORITIES = (Criticality.IMPORTANT.priority, Criticality.NORMAL.priority)


@dataclass(frozen=True, slots=True)
class ConcurrencyShare:
    """A kind of notification, and the slots it may use."""

    channels: tuple[NotificationChannel, ...]
    priorities: tuple[int, ...]
    max_in_flight: int

    @property
    def is_for_discord(self) -> bool:
        return not {*DISCORD_CHANNELS}.isdisjoint(self.channels)


CONCURRENCY_SHARES = (
    ConcurrencyShare(DISCORD_CHANNELS, URGENT_PRIORITIES, 20),
    ConcurrencyShare(
        (NotificationChannel.DASHBOARD_TOAST,), (*URGENT_PRIORITIES, *OTHER_PRIORITIES), DISPATCH_CONCURRENCY
    ),
    ConcurrencyShare((NotificationChannel.USER_DM,), OTHER_PRIORITIES, 40),
    ConcurrencyShare((NotificationChannel.GUILD_AUDIT_CHANNEL,), OTHER_PRIORITIES, 20),
)
SHARE_BY_KIND = {
    (channel, priority): share
    for share in CONCURRENCY_SHARES
    for channel in share.channels
    for priority in share.priorities
}


class DispatchConcurrency:
    """Counts the notifications in flight per share."""

    def __init__(self) -> None:
        self._in_flight: Counter[ConcurrencyShare] = Counter()

    def schedule(
        self, *, rate_limited: bool, has_transport: bool = True
    ) -> list[ScheduledClaim[NotificationClaimFilter]]:
        """Return one claim per share, limited to its free slots. Claim none for Discord while it is rate limited.

        Without a transport for Discord, important notifications and emergencies wait.
        """
        return [
            ScheduledClaim(
                NotificationClaimFilter(
                    share.channels,
                    share.priorities if has_transport or not share.is_for_discord else NORMAL_PRIORITIES,
                ),
                self._free_slots(share, rate_limited=rate_limited),
            )
            for share in CONCURRENCY_SHARES
        ]

    @contextmanager
    def count_in_flight(self, notification: ClaimedNotification) -> Generator[None]:
        share = SHARE_BY_KIND[NotificationChannel(notification.recipient_type), notification.priority]
        self._in_flight[share] += 1
        try:
            yield
        finally:
            self._in_flight[share] -= 1

    def _free_slots(self, share: ConcurrencyShare, *, rate_limited: bool) -> int:
        if rate_limited and share.is_for_discord:
            return 0
        return max(0, share.max_in_flight - self._in_flight[share])
