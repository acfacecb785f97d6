"""Which accounts other processes wait for, so that a queued message notifies them only if one of them does.

The statement that stores a message sees the streams of other processes in their table. It sees no long polls, and no
stream that opens meanwhile, whose first claim may run before the message is committed. Therefore a process announces
the accounts of new waiters to the others. A process that queued a message of such an account shortly before, without
notifying, does it then.

An announcement may be lost. The waiter then finds the message when it polls the table.
"""

from time import monotonic

from pabal.core.ids import new_id
from pabal.db.doorbell.channels import Channel, Wakeup
from pabal.db.doorbell.doorbell import Doorbell

ANNOUNCEMENT_INTERVAL = 20.0
"""Seconds for which a process does not announce the same account again."""
ANNOUNCEMENT_LIFETIME = 60.0
"""Seconds for which an announcement counts: longer than the interval and the longest poll."""
MAX_REMEMBERED_ACCOUNTS = 10_000
"""Accounts of each kind in memory; the one that was added first is forgotten first.

As long as the announcement of a forgotten one counts, all accounts count as announced."""


class RemoteWaiters:
    """The accounts that other processes wait for, as they announced them."""

    def __init__(self, doorbell: Doorbell) -> None:
        self.process_id = new_id()
        """Names this process in the table of streams."""
        self.listener = doorbell.listen(Channel.WAITERS, on_wakeup=self._receive)
        """Enter it to receive announcements."""
        self._doorbell = doorbell
        self._announced_at: dict[str, float] = {}
        self._awaited_until: dict[str, float] = {}
        self._all_awaited_until = 0.0
        self._queued_at: dict[str, float] = {}
        """When a message of the account was queued without notifying other processes."""

    def announce(self, account: str) -> None:
        """Tell the other processes that a stream or a long poll of this process waits for an account."""
        now = monotonic()
        if now - self._announced_at.get(account, -ANNOUNCEMENT_INTERVAL) >= ANNOUNCEMENT_INTERVAL:
            remember(self._announced_at, account, now)
            self._doorbell.send([Wakeup(Channel.WAITERS, account)])

    def is_awaited(self, account: str) -> bool:
        """Whether another process announced the account. True for all accounts while announcements may be missing."""
        now = monotonic()
        return (
            not self._doorbell.listening or now < self._all_awaited_until or now < self._awaited_until.get(account, 0.0)
        )

    def notify_prefix(self) -> str | None:
        """What a statement puts before an account to notify the other processes at its commit; None if it may not."""
        sender = self._doorbell.reserve_commit_notification()
        return None if sender is None else f"{sender} {Channel.MESSAGES}/"

    def wake_here(self, account: str) -> None:
        """Wake the waiters of this process only, for a committed message that no other process waits for."""
        remember(self._queued_at, account, monotonic())
        self._doorbell.wake_here(Wakeup(Channel.MESSAGES, account))

    def _receive(self, account: str) -> bool:
        """Remember an announcement; the empty one stands for all accounts. Wakes no listener."""
        until = monotonic() + ANNOUNCEMENT_LIFETIME
        if account:
            forgotten = remember(self._awaited_until, account, until)
            self._all_awaited_until = max(self._all_awaited_until, forgotten)
            late = [account] if account in self._queued_at else []
        else:  # too many for one notification, or the listener has just connected
            self._all_awaited_until = until
            late = [*self._queued_at]
        for late_account in late:
            del self._queued_at[late_account]
        self._doorbell.send(Wakeup(Channel.MESSAGES, late_account) for late_account in late)
        return False


def remember(accounts: dict[str, float], account: str, at: float) -> float:
    """Add an account with a time as the last one, within the limit. Returns the time of the one it displaced, or 0."""
    accounts.pop(account, None)
    accounts[account] = at
    return accounts.pop(next(iter(accounts))) if len(accounts) > MAX_REMEMBERED_ACCOUNTS else 0.0
