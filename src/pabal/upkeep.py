"""The chores of the house: who does what, how often."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from pabal import limits
from pabal.audit.history import AuditFilter, list_audit_log
from pabal.audit.seal import seal_audit_log
from pabal.db.tx import Tx
from pabal.events import handle, letters, mend
from pabal.events.lane import LANE as EVENTS
from pabal.events.publish import expire_idempotency_keys
from pabal.keys.key import KeyUse
from pabal.keys.ring import KeyRing
from pabal.notifications import people
from pabal.notifications.alarms import AlertTarget, OperatorAlert, alert_undelivered_emergencies, send_operator_alerts
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
from pabal.relay.figures import RelayMetrics
from pabal.relay.lane import LANE as RELAY
from pabal.relay.texts import ChatLanguage
from pabal.settings import Settings
from pabal.tokens import sweep
from pabal.tokens.revoke import REFRESH_TOKEN_REUSED

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def build_chores(settings: Settings, key_ring: KeyRing, relay_metrics: RelayMetrics) -> tuple[Chore, ...]:
    return (
        Chore("revive events", SECOND, EVENTS.revive),
        Chore("call lines", SECOND, mend.advance_ordered_events),
        Chore("seal audit", SECOND, seal_audit_chore(key_ring)),
        Chore("mend events", MINUTE, mend.repair_event_tables),
        Chore("expire events", MINUTE, EVENTS.expire),
        Chore("clear keys", MINUTE, expire_idempotency_keys),
        Chore("expire notifications", MINUTE, NOTIFICATIONS.expire),
        Chore("expire messages", MINUTE, expire_messages_chore(settings.chat_language, relay_metrics)),
        Chore("rescue replies", 5 * SECOND, callback.rescue_lost_callbacks),
        Chore("lapse approvals", MINUTE, conversations.expire_pending_pairings),
        Chore("sweep pairing codes", MINUTE, codes.purge_pairing_codes),
        Chore("sweep relay sessions", MINUTE, sessions.purge_relay_sessions),
        Chore("sweep accounts", HOUR, accounts.purge_unused_accounts),
        Chore("sweep conversations", HOUR, conversations.purge_inactive_conversations),
        Chore("forget wrong codes", MINUTE, pair.purge_wrong_codes),
        Chore("forget command answers", MINUTE, commands.purge_command_responses),
        Chore("forget conversation codes", MINUTE, commands.purge_chat_page_codes),
        Chore("sweep portal sessions", HOUR, portal.purge_portal_sessions),
        Chore("forget news", MINUTE, news.purge_control_events),
        Chore("sweep streams", MINUTE, switchboard.purge_dead_streams),
        Chore("purge events", HOUR, purge_lane_chore(EVENTS, settings.keep_events)),
        Chore(
            "purge dead letters",
            HOUR,
            lambda tx, batch: letters.purge_dead_letters(tx, settings.keep_dead_letters, batch),
        ),
        Chore("purge notifications", HOUR, purge_lane_chore(NOTIFICATIONS, settings.keep_notifications)),
        Chore("purge messages", HOUR, purge_lane_chore(RELAY, settings.keep_messages)),
        Chore("expire tokens", MINUTE, sweep.expire_tokens),
        Chore("purge tokens", HOUR, lambda tx, batch: sweep.purge_token_families(tx, settings.keep_tokens, batch)),
        Chore("forget limits", 10 * MINUTE, limits.purge_rate_limits),
        Chore("sweep sessions", HOUR, console_sessions.purge_operator_sessions),
        Chore("sweep person tokens", HOUR, people.purge_person_tokens),
        Chore("give up programs", HOUR, handle.disable_unseen_programs),
        Chore("sweep workers", MINUTE, roll.purge_processes),
        Chore("forget pulse", HOUR, pulse.purge_throughput),
    )


def build_alert_chores(settings: Settings, operator_alerts: AlertTarget) -> tuple[Chore, ...]:
    """What the hub tells its operator by itself: what is left of each lane when nobody looks."""

    async def reused(tx: Tx, batch: int) -> int:
        page = await list_audit_log(tx, AuditFilter(action=REFRESH_TOKEN_REUSED.action, since=HOUR), batch)
        facts = [(each, {"service": each.subject or "", "client": each.client_ip or "?"}) for each in page.items]
        return await send_operator_alerts(
            tx, operator_alerts, [OperatorAlert("system.token_reuse", str(each.id), said) for each, said in facts]
        )

    async def dead(tx: Tx, _batch: int) -> int:
        piles = await letters.list_dead_letter_backlogs(tx, settings.alarm_dead_letters)
        return await send_operator_alerts(
            tx,
            operator_alerts,
            [OperatorAlert("system.dead_letters", pile.service, asdict(pile), is_ongoing=True) for pile in piles],
        )

    async def callbacks(tx: Tx, _batch: int) -> int:
        minutes = {"minutes": failing.FAILURE_WINDOW // MINUTE}
        channels = await failing.list_failing_channels(tx, settings.alarm_callbacks)
        return await send_operator_alerts(
            tx,
            operator_alerts,
            [
                OperatorAlert("system.callbacks_failing", e.channel, asdict(e) | minutes, is_ongoing=True)
                for e in channels
            ],
        )

    return (
        Chore("raise undelivered", SECOND, lambda tx, batch: alert_undelivered_emergencies(tx, operator_alerts, batch)),
        Chore("tell token reuse", 10 * SECOND, reused),
        Chore("tell dead letters", MINUTE, dead),
        Chore("tell failing callbacks", MINUTE, callbacks),
    )


def purge_lane_chore(lane: Lane[Any], keep: timedelta) -> Callable[[Tx, int], Awaitable[int]]:
    async def do(tx: Tx, batch: int) -> int:
        return await lane.purge(tx, -(-keep // DAY), batch)  # whole days, and never one too early

    return do


def expire_messages_chore(language: ChatLanguage, relay_metrics: RelayMetrics) -> Callable[[Tx, int], Awaitable[int]]:
    async def do(tx: Tx, batch: int) -> int:
        ended = await RELAY.expire(tx, batch, language)
        relay_metrics.messages_expired.add(ended)
        return ended

    return do


def seal_audit_chore(key_ring: KeyRing) -> Callable[[Tx, int], Awaitable[int]]:
    async def do(tx: Tx, batch: int) -> int:
        key_ring.reload()  # a key that was retired meanwhile must not make another seal
        return await seal_audit_log(tx, key_ring.active(KeyUse.AUDIT), batch)

    return do
