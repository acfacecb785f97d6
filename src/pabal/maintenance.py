"""The chores of the house: who does what, how often."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from pabal import limits
from pabal.audit.log import AuditFilter, list_audit_log
from pabal.audit.seal import seal_audit_log
from pabal.db.tx import Tx
from pabal.events.dead_letters import list_dead_letter_backlogs, purge_dead_letters
from pabal.events.handlers import disable_unseen_programs
from pabal.events.lane import LANE as EVENTS
from pabal.events.publish import expire_idempotency_keys
from pabal.events.repair import advance_ordered_events, repair_event_tables
from pabal.keys.key import KeyUse
from pabal.keys.keyring import KeyRing
from pabal.notifications.lane import LANE as NOTIFICATIONS
from pabal.notifications.operator_alerts import (
    AlertTarget,
    OperatorAlert,
    alert_undelivered_emergencies,
    send_operator_alerts,
)
from pabal.notifications.people.tokens import purge_person_tokens
from pabal.operators.sessions import purge_operator_sessions
from pabal.queue.chores import Chore
from pabal.queue.lane import Lane
from pabal.queue.processes import purge_processes
from pabal.queue.throughput import purge_throughput
from pabal.relay.accounts import purge_unused_accounts
from pabal.relay.conversations import expire_pending_pairings, purge_inactive_conversations
from pabal.relay.delivery.control_events import purge_control_events
from pabal.relay.delivery.lane import LANE as RELAY
from pabal.relay.delivery.stream_registry import purge_dead_streams
from pabal.relay.metrics import RelayMetrics
from pabal.relay.pairing.codes import purge_pairing_codes
from pabal.relay.pairing.pair import purge_wrong_codes
from pabal.relay.pairing.sessions import purge_relay_sessions
from pabal.relay.reply import callback as failing
from pabal.relay.reply.callback import list_failing_channels, rescue_lost_callbacks
from pabal.relay.web_sessions import purge_portal_sessions
from pabal.relay.webhook.commands import purge_chat_page_codes, purge_command_responses
from pabal.relay.webhook.skill_response import ChatLanguage
from pabal.settings import Settings
from pabal.tokens.revoke import REFRESH_TOKEN_REUSED, expire_tokens, purge_token_families

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def build_chores(settings: Settings, key_ring: KeyRing, relay_metrics: RelayMetrics) -> tuple[Chore, ...]:
    return (
        Chore("revive events", SECOND, EVENTS.revive),
        Chore("call lines", SECOND, advance_ordered_events),
        Chore("seal audit", SECOND, seal_audit_chore(key_ring)),
        Chore("mend events", MINUTE, repair_event_tables),
        Chore("expire events", MINUTE, EVENTS.expire),
        Chore("clear keys", MINUTE, expire_idempotency_keys),
        Chore("expire notifications", MINUTE, NOTIFICATIONS.expire),
        Chore("expire messages", MINUTE, expire_messages_chore(settings.chat_language, relay_metrics)),
        Chore("rescue replies", 5 * SECOND, rescue_lost_callbacks),
        Chore("lapse approvals", MINUTE, expire_pending_pairings),
        Chore("sweep pairing codes", MINUTE, purge_pairing_codes),
        Chore("sweep relay sessions", MINUTE, purge_relay_sessions),
        Chore("sweep accounts", HOUR, purge_unused_accounts),
        Chore("sweep conversations", HOUR, purge_inactive_conversations),
        Chore("forget wrong codes", MINUTE, purge_wrong_codes),
        Chore("forget command answers", MINUTE, purge_command_responses),
        Chore("forget conversation codes", MINUTE, purge_chat_page_codes),
        Chore("sweep portal sessions", HOUR, purge_portal_sessions),
        Chore("forget news", MINUTE, purge_control_events),
        Chore("sweep streams", MINUTE, purge_dead_streams),
        Chore("purge events", HOUR, purge_lane_chore(EVENTS, settings.keep_events)),
        Chore(
            "purge dead letters",
            HOUR,
            lambda tx, batch: purge_dead_letters(tx, settings.keep_dead_letters, batch),
        ),
        Chore("purge notifications", HOUR, purge_lane_chore(NOTIFICATIONS, settings.keep_notifications)),
        Chore("purge messages", HOUR, purge_lane_chore(RELAY, settings.keep_messages)),
        Chore("expire tokens", MINUTE, expire_tokens),
        Chore("purge tokens", HOUR, lambda tx, batch: purge_token_families(tx, settings.keep_tokens, batch)),
        Chore("forget limits", 10 * MINUTE, limits.purge_rate_limits),
        Chore("sweep sessions", HOUR, purge_operator_sessions),
        Chore("sweep person tokens", HOUR, purge_person_tokens),
        Chore("give up programs", HOUR, disable_unseen_programs),
        Chore("sweep workers", MINUTE, purge_processes),
        Chore("forget pulse", HOUR, purge_throughput),
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
        piles = await list_dead_letter_backlogs(tx, settings.alarm_dead_letters)
        return await send_operator_alerts(
            tx,
            operator_alerts,
            [OperatorAlert("system.dead_letters", pile.service, asdict(pile), is_ongoing=True) for pile in piles],
        )

    async def callbacks(tx: Tx, _batch: int) -> int:
        minutes = {"minutes": failing.FAILURE_WINDOW // MINUTE}
        channels = await list_failing_channels(tx, settings.alarm_callbacks)
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
