"""Apply the rules to events: request the notifications they cause, in the transaction that settles the events.

Dedupe keys make this idempotent: a rule requests a notification for an event and a recipient once, also after a replay.
Notifications beyond the rate limit of the event's publisher are requested too, for a later time.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from uuid import UUID

from pabal.core.actor import Actor
from pabal.core.errors import PabalError
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.limits import RateLimit, refund_rate_limits, reserve_rate_limits
from pabal.notifications.requests import (
    NotificationDraft,
    RequestedNotification,
    find_known_guilds,
    read_database_time,
    try_request_notifications,
)
from pabal.notifications.rules.evaluate_rules import RuleEvent, RuleResult, evaluate_rules
from pabal.notifications.rules.rules import list_active_rules
from pabal.notifications.templates.catalogue import TemplateCatalogue
from pabal.queue.outcome import Outcome, Retry
from pabal.queue.pacer import LoopPacer

Q = load_queries(__file__)

RULE_ACTOR = Actor("rule")
NOTIFICATIONS_PER_TRANSACTION = 2000
"""After this many notifications a transaction takes no further event: small events must not wait for large ones."""
STEPS_PER_TRANSACTION = 100_000
"""The same for the steps into payloads."""
NOTIFICATIONS_PER_STATEMENT = 250
TEXT_PER_STATEMENT = 1024 * 1024
"""Bounds the time that preparing one statement takes on the event loop."""


@dataclass(frozen=True, slots=True)
class RootEvent:
    """A delivery to the hub, and the event that was published."""

    id: UUID
    root_id: UUID


async def apply_rules(
    tx: Tx, events: Sequence[RuleEvent], catalogue: TemplateCatalogue, rate_limit: RateLimit | None = None
) -> list[Outcome]:
    """Request the notifications for the first of these events, as many as fit into one transaction.

    `rate_limit` is the limit per publisher. Returns one outcome for each handled event; the caller passes the remaining
    events again.
    """
    pacer = LoopPacer()
    results = await _evaluate_events(tx, events, catalogue, pacer)
    drafts = [draft for result in results for draft in result.drafts]
    if rate_limit is not None:
        drafts = await _schedule_within_limit(tx, rate_limit, drafts, pacer)
    requested = await _request_drafts(tx, drafts, pacer)
    if rate_limit is not None:
        await _refund_repeated(tx, rate_limit, drafts, requested)
    remaining = iter(requested)
    return [rule_outcome(result, [*islice(remaining, len(result.drafts))]) for result in results]


async def _evaluate_events(
    tx: Tx, events: Sequence[RuleEvent], catalogue: TemplateCatalogue, pacer: LoopPacer
) -> list[RuleResult]:
    """Evaluate the rules for the first events, until the transaction has enough work."""
    roots = {
        row.id: row.root_id for row in await tx.all(RootEvent, Q.list_root_events, ids=[event.id for event in events])
    }
    active_rules = await list_active_rules(tx)
    results: list[RuleResult] = []
    notifications = steps = 0
    for event in events:
        result = await evaluate_rules(active_rules, catalogue, event, roots.get(event.id, event.id), pacer)
        results.append(result)
        notifications, steps = notifications + len(result.drafts), steps + result.steps
        if notifications >= NOTIFICATIONS_PER_TRANSACTION or steps >= STEPS_PER_TRANSACTION:
            break
    return results


async def _schedule_within_limit(
    tx: Tx, rate_limit: RateLimit, drafts: Sequence[NotificationDraft], pacer: LoopPacer
) -> list[NotificationDraft]:
    """Reserve the publishers' next free slots. What does not fit now waits for its slot; emergencies never wait."""
    counts = Counter(draft.source for draft in drafts if draft.source is not None and not draft.urgent)
    if not counts:
        return [*drafts]
    reservations = await reserve_rate_limits(tx, rate_limit, counts)
    now = await read_database_time(tx)
    used: Counter[str] = Counter()
    scheduled: list[NotificationDraft] = []
    for draft in drafts:
        if pacer.is_due:
            await pacer.pause()
        if draft.source is None or draft.urgent:
            scheduled.append(draft)
            continue
        wait = reservations[draft.source].wait_for_slot(used[draft.source])
        used[draft.source] += 1
        scheduled.append(replace(draft, rate_limited_until=now + wait) if wait else draft)
    return scheduled


async def _refund_repeated(
    tx: Tx,
    rate_limit: RateLimit,
    drafts: Sequence[NotificationDraft],
    requested: Sequence[RequestedNotification | PabalError],
) -> None:
    """Give back the slots of notifications that existed already, for example after a replay."""
    repeated = Counter(
        draft.source
        for draft, result in zip(drafts, requested, strict=True)
        if draft.source is not None
        and not draft.urgent
        and not (isinstance(result, RequestedNotification) and not result.repeated)
    )
    if repeated:
        await refund_rate_limits(tx, rate_limit, repeated)


async def _request_drafts(
    tx: Tx, drafts: Sequence[NotificationDraft], pacer: LoopPacer
) -> list[RequestedNotification | PabalError]:
    """Request all drafts, in statements of bounded size: many rules may request very many for one event."""
    requested: list[RequestedNotification | PabalError] = []
    for batch in split_drafts(drafts):
        if pacer.is_due:
            await pacer.pause()
        requested += await try_request_notifications(tx, await drop_unknown_guilds(tx, batch), RULE_ACTOR)
    return requested


def split_drafts(drafts: Sequence[NotificationDraft]) -> Iterator[list[NotificationDraft]]:
    """Split drafts into batches of at most NOTIFICATIONS_PER_STATEMENT with about TEXT_PER_STATEMENT characters."""
    batch: list[NotificationDraft] = []
    text_length = 0
    for draft in drafts:
        batch.append(draft)
        text_length += sum(len(value) for value in draft.payload.values() if isinstance(value, str))
        if len(batch) == NOTIFICATIONS_PER_STATEMENT or text_length >= TEXT_PER_STATEMENT:
            yield batch
            batch, text_length = [], 0
    if batch:
        yield batch


def rule_outcome(result: RuleResult, requested: Sequence[RequestedNotification | PabalError]) -> Outcome:
    """The outcome of one event: retried if one of its notifications could not be requested."""
    for error in requested:
        if isinstance(error, PabalError):
            return Retry(str(error), code=error.code)
    return result.outcome


async def drop_unknown_guilds(tx: Tx, drafts: Sequence[NotificationDraft]) -> list[NotificationDraft]:
    """Clear guild ids that do not exist. The guild is only informative, so it must not prevent a notification."""
    known_guilds = await find_known_guilds(tx, {draft.guild for draft in drafts if draft.guild is not None})
    return [
        draft if draft.guild is None or draft.guild in known_guilds else replace(draft, guild=None) for draft in drafts
    ]
