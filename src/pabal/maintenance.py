"""The chores of the hub and how often each runs."""

import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from pabal import limits
from pabal.audit.log import AuditFilter, list_audit_log
from pabal.audit.sealer import AuditSealer
from pabal.core.duration import format_duration
from pabal.core.errors import PabalError
from pabal.core.finding import Finding, FindingLevel
from pabal.core.messages import Message
from pabal.db.pool import ConnectOptions, Database
from pabal.db.tx import Tx
from pabal.events.consume.handlers import disable_unseen_programs
from pabal.events.consume.lane import LANE as EVENTS
from pabal.events.consume.retention import EventRetention
from pabal.events.dead_letters.dead_letters import list_dead_letter_backlogs, purge_dead_letters
from pabal.events.publish.fan_out import expand_broadcasts
from pabal.events.publish.publish import expire_idempotency_keys
from pabal.events.push.blocked_keys import end_blocking_events
from pabal.events.repair.plain_claims import return_plain_claims
from pabal.events.repair.registry_check import check_service_names
from pabal.events.repair.repair import advance_ordered_events, repair_event_tables
from pabal.notifications.dispatch.missing_transport import alert_missing_transport
from pabal.notifications.lane import LANE as NOTIFICATIONS
from pabal.notifications.operator_alerts import (
    AlertTarget,
    OperatorAlert,
    alert_undelivered_emergencies,
    send_operator_alerts,
)
from pabal.notifications.people.links import purge_link_requests
from pabal.notifications.people.stream_tickets import purge_stream_tickets
from pabal.notifications.people.tokens import purge_person_tokens
from pabal.notifications.toasts.stream_slots import purge_toast_streams
from pabal.operators.sessions import purge_operator_sessions
from pabal.queue.chores import OVERDUE_AFTER, Chore, ChoreRun, list_recorded_runs
from pabal.queue.lane import Lane
from pabal.queue.processes import purge_processes
from pabal.queue.throughput import purge_throughput
from pabal.relay.accounts import purge_unused_accounts
from pabal.relay.conversations import expire_pending_pairings, purge_unpaired_conversations
from pabal.relay.delivery.control_events import purge_control_events
from pabal.relay.delivery.lane import LANE as RELAY
from pabal.relay.delivery.stream_registry import purge_dead_streams
from pabal.relay.event_outbox import publish_queued_events
from pabal.relay.metrics import RelayMetrics
from pabal.relay.pairing.codes import purge_pairing_codes
from pabal.relay.pairing.pair import purge_wrong_codes
from pabal.relay.pairing.sessions import purge_relay_sessions
from pabal.relay.reply.callback import FAILURE_WINDOW, list_failing_channels, rescue_lost_callbacks
from pabal.relay.web_sessions import purge_portal_sessions
from pabal.relay.webhook.commands import purge_chat_page_codes, purge_command_responses
from pabal.relay.webhook.message_events import publish_message_events
from pabal.relay.webhook.skill_response import ChatLanguage
from pabal.settings import Settings
from pabal.tokens.revoke import REFRESH_TOKEN_REUSED, expire_tokens, purge_token_families

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


SEAL_AUDIT = "seal audit"


def build_chores(settings: Settings, relay_metrics: RelayMetrics) -> tuple[Chore, ...]:
    """Chores of the queue and the domains."""
    return (
        Chore("revive events", SECOND, EVENTS.revive),
        Chore("advance ordered events", SECOND, advance_ordered_events),
        Chore("expand broadcasts", SECOND, expand_broadcasts),
        Chore("repair events", MINUTE, repair_event_tables),
        Chore("check service names", HOUR, check_service_names),
        Chore("release ordering keys", 30 * SECOND, end_blocking_events),
        Chore(
            "return plain claims",
            30 * SECOND,
            lambda tx, batch: return_plain_claims(tx, settings.plain_claim_life, batch),
        ),
        Chore("expire events", MINUTE, EVENTS.expire),
        Chore("expire idempotency keys", MINUTE, expire_idempotency_keys),
        Chore("expire notifications", MINUTE, NOTIFICATIONS.expire),
        Chore("expire messages", MINUTE, expire_messages_chore(settings.chat_language, relay_metrics)),
        Chore("publish message events", SECOND, publish_message_events),
        Chore("publish relay events", SECOND, publish_queued_events),
        Chore("rescue callbacks", 5 * SECOND, rescue_lost_callbacks),
        Chore("expire approvals", MINUTE, expire_pending_pairings),
        Chore("purge pairing codes", MINUTE, purge_pairing_codes),
        Chore("purge relay sessions", MINUTE, purge_relay_sessions),
        Chore("purge accounts", HOUR, purge_unused_accounts),
        Chore("purge conversations", MINUTE, purge_unpaired_conversations),
        Chore("purge wrong codes", MINUTE, purge_wrong_codes),
        Chore("purge command answers", MINUTE, purge_command_responses),
        Chore("purge conversation codes", MINUTE, purge_chat_page_codes),
        Chore("purge portal sessions", HOUR, purge_portal_sessions),
        Chore("purge control events", MINUTE, purge_control_events),
        Chore("purge streams", MINUTE, purge_dead_streams),
        Chore("purge events", HOUR, EventRetention(whole_days(settings.keep_events)).delete_batch),
        Chore(
            "purge dead letters",
            HOUR,
            lambda tx, batch: purge_dead_letters(tx, settings.keep_dead_letters, batch),
        ),
        Chore("purge notifications", HOUR, purge_lane_chore(NOTIFICATIONS, settings.keep_notifications)),
        Chore("purge messages", HOUR, purge_lane_chore(RELAY, settings.keep_messages)),
        Chore("expire tokens", MINUTE, expire_tokens),
        Chore("purge tokens", HOUR, lambda tx, batch: purge_token_families(tx, settings.keep_tokens, batch)),
        Chore("purge limits", 10 * MINUTE, limits.purge_rate_limits),
        Chore("purge operator sessions", HOUR, purge_operator_sessions),
        Chore("purge person tokens", HOUR, purge_person_tokens),
        Chore("purge stream tickets", HOUR, purge_stream_tickets),
        Chore("purge link requests", HOUR, purge_link_requests),
        Chore("purge toast streams", MINUTE, purge_toast_streams),
        Chore("disable programs", HOUR, disable_unseen_programs),
        Chore("purge processes", MINUTE, purge_processes),
        Chore("purge throughput", HOUR, purge_throughput),
    )


def build_alert_chores(
    settings: Settings, operator_alerts: AlertTarget, audit_sealer: AuditSealer
) -> tuple[Chore, ...]:
    """Chores that send operator alerts."""

    async def seal_audit(tx: Tx, batch: int) -> int:
        result = await audit_sealer.seal(tx, batch)
        if result.finding:
            host = socket.gethostname()
            payload = {"problem": str(result.finding), "host": host}
            await send_operator_alerts(
                tx, operator_alerts, [OperatorAlert("system.audit_chain", host, payload, is_ongoing=True)]
            )
        return result.rows

    async def alert_token_reuse(tx: Tx, batch: int) -> int:
        page = await list_audit_log(tx, AuditFilter(action=REFRESH_TOKEN_REUSED.action, since=HOUR), batch)
        alerts = [
            OperatorAlert(
                "system.token_reuse",
                str(entry.id),
                {"service": entry.subject or "", "client": entry.client_ip or "?"},
            )
            for entry in page.items
        ]
        return await send_operator_alerts(tx, operator_alerts, alerts)

    async def alert_dead_letters(tx: Tx, _batch: int) -> int:
        alerts = [
            OperatorAlert("system.dead_letters", backlog.service, asdict(backlog), is_ongoing=True)
            for backlog in await list_dead_letter_backlogs(tx, settings.alarm_dead_letters)
        ]
        return await send_operator_alerts(tx, operator_alerts, alerts)

    async def alert_failing_callbacks(tx: Tx, _batch: int) -> int:
        minutes = {"minutes": FAILURE_WINDOW // MINUTE}
        alerts = [
            OperatorAlert("system.callbacks_failing", channel.channel, asdict(channel) | minutes, is_ongoing=True)
            for channel in await list_failing_channels(tx, settings.alarm_callbacks)
        ]
        return await send_operator_alerts(tx, operator_alerts, alerts)

    chores = (
        Chore(SEAL_AUDIT, SECOND, seal_audit, audit_sealer.store_head),
        Chore("alert undelivered", SECOND, lambda tx, batch: alert_undelivered_emergencies(tx, operator_alerts, batch)),
        Chore("alert token reuse", 10 * SECOND, alert_token_reuse),
        Chore("alert dead letters", MINUTE, alert_dead_letters),
        Chore("alert failing callbacks", MINUTE, alert_failing_callbacks),
    )
    if settings.has_discord_transport:
        return chores
    alert = Chore(
        "alert missing token", 10 * SECOND, lambda tx, batch: alert_missing_transport(tx, operator_alerts, batch)
    )
    return (*chores, alert)


async def check_chores(options: ConnectOptions) -> Finding:
    """The doctor's check of the chores."""
    try:
        async with Database(options) as db, db.autocommit() as tx:
            return check_chore_runs(await list_recorded_runs(tx))
    except PabalError as error:
        return Finding(
            FindingLevel.WARNING,
            "chores",
            Message("not checked: {}", error),
            Message("fix that error, then run `pabal doctor` again"),
        )


def check_chore_runs(runs: Sequence[ChoreRun]) -> Finding:
    """Whether every chore has succeeded lately. Audit rows that are not sealed can be changed unnoticed."""
    overdue = {run.name: run for run in runs if run.is_overdue}
    if not overdue:
        seen = Message("{} ran on time", len(runs)) if runs else Message("none has run yet")
        return Finding(FindingLevel.GOOD, "chores", seen)
    last_start = min(run.started_ago for run in runs if run.started_ago is not None)
    if last_start > OVERDUE_AFTER:
        return Finding(
            FindingLevel.WARNING,
            "chores",
            Message("none has run for {}", format_duration(last_start // MINUTE * MINUTE)),
            Message("start the hub, or `pabal work`"),
        )
    if sealing := overdue.get(SEAL_AUDIT):
        return Finding(
            FindingLevel.BAD,
            "chores",
            Message(
                "the audit log has not been sealed for {}",
                format_duration((sealing.succeeded_ago or MINUTE) // MINUTE * MINUTE),
            ),
            Message("look for `chore failed` in the log of the hub, and for long transactions in pg_stat_activity"),
        )
    return Finding(
        FindingLevel.WARNING,
        "chores",
        Message("overdue: {}", ", ".join(overdue)),
        Message("look for `chore failed` in the log of the hub, and for long transactions in pg_stat_activity"),
    )


def purge_lane_chore(lane: Lane[Any, Any], keep: timedelta) -> Callable[[Tx, int], Awaitable[int]]:
    async def purge(tx: Tx, batch: int) -> int:
        return await lane.purge(tx, whole_days(keep), batch)

    return purge


def whole_days(keep: timedelta) -> int:
    """A retention in days, rounded up."""
    return -(-keep // DAY)


def expire_messages_chore(language: ChatLanguage, relay_metrics: RelayMetrics) -> Callable[[Tx, int], Awaitable[int]]:
    async def expire_messages(tx: Tx, batch: int) -> int:
        expired = await RELAY.expire(tx, batch, language)
        relay_metrics.messages_expired.add(expired)
        return expired

    return expire_messages
