"""The chores of the house: who does what, how often."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from pabal import limits
from pabal.audit.seal import seal
from pabal.db.tx import Tx
from pabal.events import letters, mend
from pabal.events.lane import LANE as EVENTS
from pabal.events.publish import clear_keys
from pabal.keys.key import Use
from pabal.keys.ring import Ring
from pabal.notifications.lane import LANE as NOTIFICATIONS
from pabal.operators import operators
from pabal.queue.chores import Chore
from pabal.queue.lane import Lane
from pabal.relay.lane import LANE as RELAY
from pabal.settings import Settings
from pabal.tokens import sweep

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def chores(settings: Settings, keys: Ring) -> tuple[Chore, ...]:
    return (
        Chore("revive events", SECOND, EVENTS.revive),
        Chore("call lines", SECOND, mend.call_lines),
        Chore("seal audit", SECOND, sealing(keys)),
        Chore("mend events", MINUTE, mend.mend),
        Chore("expire events", MINUTE, EVENTS.expire),
        Chore("clear keys", MINUTE, clear_keys),
        Chore("expire notifications", MINUTE, NOTIFICATIONS.expire),
        Chore("expire messages", MINUTE, RELAY.expire),
        Chore("purge events", HOUR, purge(EVENTS, settings.keep_events)),
        Chore("purge dead letters", HOUR, lambda tx, batch: letters.purge(tx, settings.keep_dead_letters, batch)),
        Chore("purge notifications", HOUR, purge(NOTIFICATIONS, settings.keep_notifications)),
        Chore("purge messages", HOUR, purge(RELAY, settings.keep_messages)),
        Chore("expire tokens", MINUTE, sweep.expire),
        Chore("purge tokens", HOUR, lambda tx, batch: sweep.purge(tx, settings.keep_tokens, batch)),
        Chore("forget limits", 10 * MINUTE, limits.forget),
        Chore("sweep sessions", HOUR, operators.sweep),
    )


def purge(lane: Lane[Any], keep: timedelta) -> Callable[[Tx, int], Awaitable[int]]:
    async def do(tx: Tx, batch: int) -> int:
        return await lane.purge(tx, -(-keep // DAY), batch)  # whole days, and never one too early

    return do


def sealing(keys: Ring) -> Callable[[Tx, int], Awaitable[int]]:
    async def do(tx: Tx, batch: int) -> int:
        keys.refresh()  # a key that was retired meanwhile must not make another seal
        return await seal(tx, keys.active(Use.AUDIT), batch)

    return do
