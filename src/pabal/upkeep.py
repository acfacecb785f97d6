"""The chores of the house: who does what, how often."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from pabal import limits
from pabal.audit.history import Wanted, history
from pabal.audit.seal import seal
from pabal.db.tx import Tx
from pabal.events import handle, letters, mend
from pabal.events.lane import LANE as EVENTS
from pabal.events.publish import clear_keys
from pabal.keys.key import Use
from pabal.keys.ring import Ring
from pabal.notifications import people
from pabal.notifications.alarms import Alarm, Operator, raise_undelivered, sound
from pabal.notifications.lane import LANE as NOTIFICATIONS
from pabal.operators import sessions as console_sessions
from pabal.queue import pulse, roll
from pabal.queue.chores import Chore
from pabal.queue.lane import Lane
from pabal.relay import (
    accounts,
    callback,
    codes,
    commands,
    conversations,
    failing,
    news,
    pair,
    portal,
    sessions,
    switchboard,
)
from pabal.relay.figures import Figures
from pabal.relay.lane import LANE as RELAY
from pabal.relay.texts import Language
from pabal.settings import Settings
from pabal.tokens import sweep
from pabal.tokens.revoke import REUSED

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def chores(settings: Settings, keys: Ring, figures: Figures) -> tuple[Chore, ...]:
    return (
        Chore("revive events", SECOND, EVENTS.revive),
        Chore("call lines", SECOND, mend.call_lines),
        Chore("seal audit", SECOND, sealing(keys)),
        Chore("mend events", MINUTE, mend.mend),
        Chore("expire events", MINUTE, EVENTS.expire),
        Chore("clear keys", MINUTE, clear_keys),
        Chore("expire notifications", MINUTE, NOTIFICATIONS.expire),
        Chore("expire messages", MINUTE, expiring(settings.chat_language, figures)),
        Chore("rescue replies", 5 * SECOND, callback.rescue),
        Chore("lapse approvals", MINUTE, conversations.lapse),
        Chore("sweep pairing codes", MINUTE, codes.sweep),
        Chore("sweep relay sessions", MINUTE, sessions.sweep),
        Chore("sweep accounts", HOUR, accounts.sweep),
        Chore("sweep conversations", HOUR, conversations.sweep),
        Chore("forget wrong codes", MINUTE, pair.forget_failures),
        Chore("forget command answers", MINUTE, commands.forget_answers),
        Chore("forget conversation codes", MINUTE, commands.forget_codes),
        Chore("sweep portal sessions", HOUR, portal.sweep),
        Chore("forget news", MINUTE, news.forget),
        Chore("sweep streams", MINUTE, switchboard.sweep),
        Chore("purge events", HOUR, purge(EVENTS, settings.keep_events)),
        Chore("purge dead letters", HOUR, lambda tx, batch: letters.purge(tx, settings.keep_dead_letters, batch)),
        Chore("purge notifications", HOUR, purge(NOTIFICATIONS, settings.keep_notifications)),
        Chore("purge messages", HOUR, purge(RELAY, settings.keep_messages)),
        Chore("expire tokens", MINUTE, sweep.expire),
        Chore("purge tokens", HOUR, lambda tx, batch: sweep.purge(tx, settings.keep_tokens, batch)),
        Chore("forget limits", 10 * MINUTE, limits.forget),
        Chore("sweep sessions", HOUR, console_sessions.sweep),
        Chore("sweep person tokens", HOUR, people.sweep),
        Chore("give up programs", HOUR, handle.give_up),
        Chore("sweep workers", MINUTE, roll.sweep),
        Chore("forget pulse", HOUR, pulse.forget),
    )


def alarms(settings: Settings, operator: Operator) -> tuple[Chore, ...]:
    """What the hub tells its operator by itself: what is left of each lane when nobody looks."""

    async def reused(tx: Tx, batch: int) -> int:
        page = await history(tx, Wanted(action=REUSED.action, since=HOUR), batch)
        facts = [(each, {"service": each.subject or "", "client": each.client_ip or "?"}) for each in page.items]
        return await sound(tx, operator, [Alarm("system.token_reuse", str(each.id), said) for each, said in facts])

    async def dead(tx: Tx, _batch: int) -> int:
        piles = await letters.piles(tx, settings.alarm_dead_letters)
        return await sound(
            tx, operator, [Alarm("system.dead_letters", pile.service, asdict(pile), lasting=True) for pile in piles]
        )

    async def callbacks(tx: Tx, _batch: int) -> int:
        minutes = {"minutes": failing.SPAN // MINUTE}
        channels = await failing.failing(tx, settings.alarm_callbacks)
        return await sound(
            tx,
            operator,
            [Alarm("system.callbacks_failing", e.channel, asdict(e) | minutes, lasting=True) for e in channels],
        )

    return (
        Chore("raise undelivered", SECOND, lambda tx, batch: raise_undelivered(tx, operator, batch)),
        Chore("tell token reuse", 10 * SECOND, reused),
        Chore("tell dead letters", MINUTE, dead),
        Chore("tell failing callbacks", MINUTE, callbacks),
    )


def purge(lane: Lane[Any], keep: timedelta) -> Callable[[Tx, int], Awaitable[int]]:
    async def do(tx: Tx, batch: int) -> int:
        return await lane.purge(tx, -(-keep // DAY), batch)  # whole days, and never one too early

    return do


def expiring(language: Language, figures: Figures) -> Callable[[Tx, int], Awaitable[int]]:
    async def do(tx: Tx, batch: int) -> int:
        ended = await RELAY.expire(tx, batch, language)
        figures.expired.add(ended)
        return ended

    return do


def sealing(keys: Ring) -> Callable[[Tx, int], Awaitable[int]]:
    async def do(tx: Tx, batch: int) -> int:
        keys.refresh()  # a key that was retired meanwhile must not make another seal
        return await seal(tx, keys.active(Use.AUDIT), batch)

    return do
