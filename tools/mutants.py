"""Chosen mutants: changes to the lanes and the fences that tests must notice."""  # noqa: INP001 not installed

from dataclasses import dataclass

LANES = ("tests/lanes/test_conformance.py", "tests/lanes/test_events.py")
EVENTS = (
    *LANES,
    "tests/lanes/test_state_machine.py",
    "tests/events/test_ordering.py",
    "tests/events/test_delivery_state.py",
)
RELAY = (*LANES, "tests/relay/test_claim_order.py", "tests/relay/test_expiry.py", "tests/relay/test_purges.py")
REPLIES = (
    "tests/relay/test_reply.py",
    "tests/relay/test_reply_races.py",
    "tests/relay/test_lost_answers.py",
    "tests/relay/test_late_replies.py",
    "tests/relay/test_stall.py",
    "tests/faults/test_failpoints.py",
)
LATE_CLAIMS = ("tests/relay/test_late_claims.py",)
OUTAGE = ("tests/db/test_outage.py",)
NOTIFICATIONS = (*LANES, "tests/notifications/test_dispatch.py", "tests/notifications/test_crash.py")
TOKENS = ("tests/tokens", "tests/faults/test_failpoints.py")
PUBLISH = ("tests/events/test_publish.py", "tests/faults/test_failpoints.py")
RECEIVE = ("tests/relay/test_webhook.py", "tests/relay/test_messages.py", "tests/faults/test_failpoints.py")
QUEUE = ("tests/queue", "tests/faults/test_failpoints.py")


@dataclass(frozen=True, slots=True)
class Mutant:
    """Replace the first `old` by `new`, in a file of src/pabal, after the line `-- name: query` or `def query(`."""

    path: str
    query: str
    old: str
    new: str
    tests: tuple[str, ...]


EVENT_LANE, RELAY_LANE, NOTIFICATION_LANE = (
    "events/consume/lane.sql",
    "relay/delivery/lane.sql",
    "notifications/lane.sql",
)
CALLBACK, REPLY, STALL = "relay/reply/callback.sql", "relay/reply/reply.sql", "relay/reply/stall.sql"
SEND, POLLER, RECEIVED = "relay/reply/send.py", "relay/reply/poller.py", "relay/webhook/receive.sql"
REFRESH, ROTATION = "tokens/refresh.py", "tokens/refresh.sql"

MUTANTS = (
    Mutant(EVENT_LANE, "claim", ") < d.seq then false", ") < d.seq then true", EVENTS),
    Mutant(EVENT_LANE, "claim", ") is not null then false", ") is not null then true", EVENTS),
    Mutant(
        EVENT_LANE, "claim", "when e.expires_at <= pabal.now() then 'cancelled'", "when false then 'cancelled'", EVENTS
    ),
    Mutant(EVENT_LANE, "claim", "e.retry_count >= e.max_retries then 'failed'", "false then 'failed'", EVENTS),
    Mutant(
        EVENT_LANE,
        "claim",
        "then e.retry_count + 1 else e.retry_count end",
        "then e.retry_count else e.retry_count end",
        EVENTS,
    ),
    Mutant(EVENT_LANE, "claim", "pabal.now() + :hold::interval", "pabal.now()", EVENTS),
    Mutant(EVENT_LANE, "claim", "limit :limit\n", "limit :limit + 1\n", EVENTS),
    Mutant(EVENT_LANE, "revive", "l.until <= pabal.now()", "l.until <= pabal.now() - interval '1 hour'", EVENTS),
    Mutant(EVENT_LANE, "revive", "l.until <= pabal.now()", "true", EVENTS),
    Mutant(EVENT_LANE, "revive", "e.retry_count >= e.max_retries then 'failed'", "false then 'failed'", EVENTS),
    Mutant(EVENT_LANE, "revive", "and e.lease = l.id\n", "\n", EVENTS),
    Mutant(EVENT_LANE, "settle_done", "and e.lease = :lease\n", "\n", EVENTS),
    Mutant(EVENT_LANE, "settle_done", "held = l.held - m.count", "held = l.held", EVENTS),
    Mutant(EVENT_LANE, "settle_done_many_leases", "and e.lease = a.lease", "", EVENTS),
    Mutant(EVENT_LANE, "settle_retry", "and e.lease = a.lease", "", EVENTS),
    Mutant(EVENT_LANE, "settle_retry", "pabal.now() + a.delay", "pabal.now()", EVENTS),
    Mutant(EVENT_LANE, "settle_dead", "and e.lease = a.lease", "", EVENTS),
    Mutant(RELAY_LANE, "claim", "m.status = 'QUEUED' and m.expires_at > pabal.now()", "m.status = 'QUEUED'", RELAY),
    Mutant(RELAY_LANE, "claim", "and h.held_by <> a.holder", "and false", RELAY),
    Mutant(RELAY_LANE, "claim", "and m.leased_until <= pabal.now()", "", RELAY),
    Mutant(RELAY_LANE, "claim", "and o.seq is null", "", RELAY),
    Mutant(RELAY_LANE, "claim", "order by m.seq\n        limit a.max_messages", "limit a.max_messages", RELAY),
    Mutant(RELAY_LANE, "claim", "m.account_id = a.account_id and m.status = 'QUEUED'", "m.status = 'QUEUED'", RELAY),
    Mutant(RELAY_LANE, "settle_done", "and m.lease = a.lease", "", RELAY),
    Mutant(RELAY_LANE, "settle_snooze", "and m.lease = a.lease", "", RELAY),
    Mutant(RELAY_LANE, "extend", "and m.lease = a.lease", "", RELAY),
    Mutant(RELAY_LANE, "expire", "or leased_until <= pabal.now()", "or true", RELAY),
    Mutant(RELAY_LANE, "expire", "expires_at <= pabal.now()", "true", RELAY),
    Mutant(
        RELAY_LANE, "purge", "ended_at < pabal.now() - make_interval(days => :days)", "ended_at < pabal.now()", RELAY
    ),
    Mutant(NOTIFICATION_LANE, "claim", "(r.lease is null or r.leased_until <= pabal.now())", "true", NOTIFICATIONS),
    Mutant(NOTIFICATION_LANE, "claim", "and r.scheduled_at <= pabal.now()", "", NOTIFICATIONS),
    Mutant(NOTIFICATION_LANE, "claim", " or w.p = 1)", ")", NOTIFICATIONS),
    Mutant(
        NOTIFICATION_LANE, "claim", "when r.attempt_count >= 3 then 'failed'", "when false then 'failed'", NOTIFICATIONS
    ),
    Mutant(NOTIFICATION_LANE, "lock", "and r.lease = a.lease", "", NOTIFICATIONS),
    Mutant(NOTIFICATION_LANE, "settle_done", "and r.lease = a.lease", "", NOTIFICATIONS),
    Mutant(NOTIFICATION_LANE, "settle_retry", "and r.lease = a.lease", "", NOTIFICATIONS),
    Mutant(NOTIFICATION_LANE, "settle_snooze", "greatest(r.attempt_count - 1, 0)", "r.attempt_count", NOTIFICATIONS),
    Mutant(NOTIFICATION_LANE, "extend", "and r.lease = a.lease", "", NOTIFICATIONS),
    Mutant(NOTIFICATION_LANE, "expire", "and priority <> 1", "", NOTIFICATIONS),
    Mutant(NOTIFICATION_LANE, "expire", "and (lease is null or leased_until <= pabal.now())", "", NOTIFICATIONS),
    Mutant(CALLBACK, "settle_callbacks", "and r.fence = a.fence", "", REPLIES),
    Mutant(CALLBACK, "settle_callbacks", "where r.outcome = 'sending'", "where true", REPLIES),
    Mutant(
        CALLBACK,
        "settle_callbacks",
        "where s.outcome <> 'sent'",
        "where false",
        (*REPLIES, "tests/relay/test_table_locks.py"),
    ),
    Mutant(CALLBACK, "rescue_lost_callbacks", "spent_at < pabal.now() - :after::interval", "true", REPLIES),
    Mutant(CALLBACK, "rescue_lost_callbacks", "set outcome = 'unknown'", "set outcome = 'refused'", REPLIES),
    Mutant(CALLBACK, "confirm_claims", "and r.fence = a.fence", "", REPLIES),
    Mutant(CALLBACK, "confirm_claims", "and r.spent_at > pabal.now() - :window::interval", "", REPLIES),
    Mutant(REPLY, "claim_callbacks", "where m.status <> 'CANCELLED' and", "where", REPLIES),
    Mutant(
        REPLY,
        "claim_callbacks",
        "coalesce(m.callback_expires_at > pabal.now(), false) as is_live",
        "true as is_live",
        REPLIES,
    ),
    Mutant(REPLY, "claim_callbacks", "where r.response is null", "where true", REPLIES),
    Mutant(STALL, "claim_expiring_callbacks", "m.callback_expires_at > pabal.now() and ", "", REPLIES),
    Mutant(
        STALL,
        "claim_expiring_callbacks",
        "and m.reason is distinct from 'erased'",
        "",
        (*REPLIES, "tests/relay/test_erase.py"),
    ),
    Mutant(
        SEND,
        "_recover",
        "await self._confirmations.put(reply.claim) or await self._claim(reply)",
        "await self._claim(reply)",
        REPLIES,
    ),
    Mutant(SEND, "_finish", "case ConfirmedClaim(is_usable=False):", "case ConfirmedClaim(is_usable=None):", REPLIES),
    Mutant(POLLER, "_poll", "self._unclear_claims = claims\n", "pass\n", REPLIES),
    Mutant("relay/reply/callback.py", "send", "id_age(callback.fence) >= CONFIRM_WINDOW", "False", LATE_CLAIMS),
    Mutant("relay/reply/callback.py", "_settle", "settled_at is None and ", "False and ", LATE_CLAIMS),
    Mutant(CALLBACK, "is_rescued", "outcome = 'unknown'", "outcome = 'sent'", LATE_CLAIMS),
    Mutant("db/monitor.py", "_end_unanswered", "self._terminate(", "set(", OUTAGE),
    Mutant("db/connect.py", "find_unanswered", "if connection.get_server_pid() not in busy", "", OUTAGE),
    Mutant(RECEIVED, "receive_messages", "on conflict (channel_id, source_event_id) do nothing", "", RECEIVE),
    Mutant(ROTATION, "rotate_refresh_token", "and r.replaced_by is null", "", TOKENS),
    Mutant(REFRESH, "decide_refresh", "if lost and unused", "if lost", TOKENS),
    Mutant(REFRESH, "decide_refresh", "if lost and unused", "if False", TOKENS),
    Mutant(
        "events/publish/publish.sql",
        "find_skipped_drafts",
        "k.content_hash is not distinct from",
        "k.content_hash is not null or k.content_hash =",
        PUBLISH,
    ),
    Mutant("queue/batcher.py", "_resolve", "queued.fail(result)", "queued.future.set_result(result)", QUEUE),
    Mutant("queue/worker.py", "_abandon", "in_flight.task.cancel()", "pass", QUEUE),
)
