"""Replay: queue the events of dead letters again, after the cause of the failure is fixed."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.core.ids import new_id
from pabal.db.doorbell.channels import Channel
from pabal.db.errors import ForeignKeyViolation
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.dead_letters.dead_letters import DeadLetterFilter, already_resolved_message, database_now
from pabal.events.types import EventStatus

Q = load_queries(__file__)

REPLAY_BATCH_SIZE = 500
"""Dead letters per transaction: bounds how long others wait for their locks."""

TransactionFactory = Callable[[], AbstractAsyncContextManager[Tx]]


@dataclass(frozen=True, slots=True)
class ReplayCandidate:
    """A locked dead letter and the state of its event. `status` is None if the event is deleted."""

    id: UUID
    original_event_id: UUID
    is_resolved: bool
    is_replayed: bool
    resolved_by_actor: str | None
    is_untargeted: bool
    status: EventStatus | None
    is_expired: bool
    services_exist: bool

    @property
    def needs_new_event(self) -> bool:
        """A deleted event comes back under a new id; a broadcast is published again."""
        return self.status is None or self.is_untargeted


@dataclass(frozen=True, slots=True)
class ReplayCount:
    """How many dead letters match, all of them older than `at`."""

    count: int
    at: datetime


@dataclass(frozen=True, slots=True)
class ReplayCursor:
    """The last dead letter of a batch."""

    id: UUID
    failed_at: datetime


async def replay_dead_letters(
    tx: Tx, ids: Sequence[UUID], actor: Actor, *, resolved_by: UUID | None = None
) -> dict[UUID, UUID]:
    """Queue the events of these dead letters again; return the event of each dead letter that was replayed.

    All unresolved dead letters of an event are replayed together, also those not in `ids`, so the event is queued once.
    Skips those that cannot be replayed.
    """
    candidates = await lock_replayable_dead_letters(tx, ids)
    return await requeue_dead_letters(tx, candidates, actor, resolved_by=resolved_by) if candidates else {}


async def lock_replayable_dead_letters(tx: Tx, ids: Sequence[UUID]) -> list[ReplayCandidate]:
    """Lock the dead letters that a replay of these would replay, until the transaction ends."""
    await tx.run(Q.lock_events, ids=ids)
    candidates = await tx.all(ReplayCandidate, Q.lock_dead_letters, ids=ids)
    return [candidate for candidate in candidates if replay_obstacle(candidate) is None]


async def requeue_dead_letters(
    tx: Tx, candidates: Sequence[ReplayCandidate], actor: Actor, *, resolved_by: UUID | None = None
) -> dict[UUID, UUID]:
    """Queue the events of locked dead letters again; return the event of each dead letter."""
    recreated = {
        candidate.original_event_id: (candidate.id, new_id()) for candidate in candidates if candidate.needs_new_event
    }
    if recreated:
        dead_letter_ids, event_ids = zip(*recreated.values(), strict=True)
        await tx.run(Q.recreate_events, dead_letters=[*dead_letter_ids], events=[*event_ids])
    replayed = {
        candidate.id: recreated[candidate.original_event_id][1]
        if candidate.needs_new_event
        else candidate.original_event_id
        for candidate in candidates
    }
    await tx.run(Q.requeue_events, events=[*{*replayed.values()}])
    try:
        await tx.run(
            Q.mark_replayed,
            dead_letters=[*replayed],
            events=[*replayed.values()],
            resolved_by=resolved_by,
            actor=actor.name,
            client_ip=actor.client_ip,
            request_id=actor.request_id,
        )
    except ForeignKeyViolation:
        raise Invalid.of_field("resolved_by", f"no such user in auth.users: {resolved_by}") from None
    tx.notify(Channel.EVENTS)
    return replayed


async def replay_dead_letter(tx: Tx, dead_letter_id: UUID, actor: Actor, *, resolved_by: UUID | None = None) -> UUID:
    """Replay one dead letter and return its event, or raise the reason why it cannot be replayed."""
    replayed = await replay_dead_letters(tx, [dead_letter_id], actor, resolved_by=resolved_by)
    if dead_letter_id not in replayed:
        candidates = await tx.all(ReplayCandidate, Q.lock_dead_letters, ids=[dead_letter_id])
        candidate = next((candidate for candidate in candidates if candidate.id == dead_letter_id), None)
        if candidate is None:
            raise NotFound(f"No such dead letter: {dead_letter_id}")
        raise Conflict(replay_obstacle(candidate) or "The dead letter changed at the same time. Try again")
    return replayed[dead_letter_id]


async def replay_matching_dead_letters(
    open_transaction: TransactionFactory,
    criteria: DeadLetterFilter,
    actor: Actor,
    *,
    limit: int | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Replay all unresolved dead letters that match, or the oldest `limit` of them; return how many.

    Runs one transaction per batch; `on_progress` receives the size of each batch. Skips events that fail meanwhile:
    an event that fails at once would be replayed forever.
    """
    async with open_transaction() as tx:
        now = await database_now(tx)
    criteria = replace(criteria, until=min(criteria.until or now, now))
    count, after = 0, None
    while limit is None or count < limit:
        batch_size = REPLAY_BATCH_SIZE if limit is None else min(REPLAY_BATCH_SIZE, limit - count)
        async with open_transaction() as tx:
            batch = await _list_next_dead_letters(tx, criteria, after, batch_size)
            if not batch:
                break
            count += len(await replay_dead_letters(tx, [dead_letter.id for dead_letter in batch], actor))
        after = batch[-1]
        on_progress(len(batch))
    return count


async def count_replayable_dead_letters(tx: Tx, criteria: DeadLetterFilter) -> ReplayCount:
    """Count the unresolved dead letters that `replay_matching_dead_letters` would replay now."""
    return await tx.one(ReplayCount, Q.count_replayable_dead_letters, **criteria.columns())


async def list_oldest_dead_letter_ids(tx: Tx, criteria: DeadLetterFilter, limit: int) -> list[UUID]:
    """List the dead letters that `replay_matching_dead_letters` would replay first."""
    return [dead_letter.id for dead_letter in await _list_next_dead_letters(tx, criteria, None, limit)]


async def _list_next_dead_letters(
    tx: Tx, criteria: DeadLetterFilter, after: ReplayCursor | None, limit: int
) -> list[ReplayCursor]:
    return await tx.all(
        ReplayCursor,
        Q.list_next_dead_letters,
        **criteria.columns(),
        after=after and after.failed_at,
        after_id=after and after.id,
        limit=limit,
    )


def replay_obstacle(candidate: ReplayCandidate) -> str | None:
    """Why a dead letter cannot be replayed; None if it can."""
    if candidate.is_resolved:
        return already_resolved_message(candidate.is_replayed, candidate.resolved_by_actor)
    if candidate.status not in {None, "failed"}:
        return f"Event {candidate.original_event_id} is {candidate.status}. Only a failed event can be replayed"
    if candidate.is_expired:
        return f"Event {candidate.original_event_id} has expired"
    if not candidate.services_exist:
        return "The source or target service no longer exists"
    return None
