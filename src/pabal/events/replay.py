"""Replay: let events live again whose cause of death is mended."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.core.ids import new_id
from pabal.db.channels import Channel
from pabal.db.errors import ForeignKeyViolation
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.dead_letters import DeadLetterFilter, already_closed_message, database_now

Q = load_queries(__file__)

REPLAY_BATCH_SIZE = 500
"""Most letters of one transaction: whoever else wants one of them waits for no more than these."""

TransactionFactory = Callable[[], AbstractAsyncContextManager[Tx]]


@dataclass(frozen=True, slots=True)
class ReplayCandidate:
    """A letter nobody else can replay now, and how its event stands; without a status its row is gone."""

    id: UUID
    original_event_id: UUID
    is_resolved: bool
    is_replayed: bool
    resolved_by_actor: str | None
    is_untargeted: bool
    status: str | None
    is_expired: bool
    services_exist: bool

    @property
    def needs_new_event(self) -> bool:
        """A row that is gone comes back under a new id; one for everybody is published anew."""
        return self.status is None or self.is_untargeted


@dataclass(frozen=True, slots=True)
class ReplayCount:
    """How many letters match, all of them older than `at`."""

    count: int
    at: datetime


@dataclass(frozen=True, slots=True)
class ReplayCursor:
    id: UUID
    failed_at: datetime


async def replay_dead_letters(
    tx: Tx, ids: Sequence[UUID], actor: Actor, *, resolved_by: UUID | None = None
) -> dict[UUID, UUID]:
    """Revive the events of those that can be replayed; gives each such letter and the event that lives again.

    All unresolved letters of one event are replayed as one, asked for or not: it lives again once. What cannot be
    replayed is passed over.
    """
    good = await lock_replayable_dead_letters(tx, ids)
    return await requeue_dead_letters(tx, good, actor, resolved_by=resolved_by) if good else {}


async def lock_replayable_dead_letters(tx: Tx, ids: Sequence[UUID]) -> list[ReplayCandidate]:
    """What a replay of these would replay: nobody else does before this transaction ends."""
    await tx.run(Q.lock_events, ids=ids)
    return [
        each for each in await tx.all(ReplayCandidate, Q.lock_dead_letters, ids=ids) if replay_obstacle(each) is None
    ]


async def requeue_dead_letters(
    tx: Tx, candidates: Sequence[ReplayCandidate], actor: Actor, *, resolved_by: UUID | None = None
) -> dict[UUID, UUID]:
    """Let the events of these live again; each letter and its event."""
    anew = {each.original_event_id: (each.id, new_id()) for each in candidates if each.needs_new_event}
    if anew:
        letters, events = zip(*anew.values(), strict=True)
        await tx.run(Q.recreate_events, letters=[*letters], events=[*events])
    lives = {
        each.id: anew[each.original_event_id][1] if each.needs_new_event else each.original_event_id
        for each in candidates
    }
    await tx.run(Q.requeue_events, events=[*{*lives.values()}])
    try:
        await tx.run(
            Q.mark_replayed,
            letters=[*lives],
            events=[*lives.values()],
            resolved_by=resolved_by,
            actor=actor.name,
            client_ip=actor.client_ip,
            request_id=actor.request_id,
        )
    except ForeignKeyViolation:
        raise Invalid.of_field("resolved_by", f"there is nobody {resolved_by} in auth.users") from None
    tx.notify(Channel.EVENTS)
    return lives


async def replay_dead_letter(tx: Tx, dead_letter_id: UUID, actor: Actor, *, resolved_by: UUID | None = None) -> UUID:
    """Replay one letter, or say why not; the event that lives again."""
    lives = await replay_dead_letters(tx, [dead_letter_id], actor, resolved_by=resolved_by)
    if dead_letter_id not in lives:
        held = {each.id: each for each in await tx.all(ReplayCandidate, Q.lock_dead_letters, ids=[dead_letter_id])}
        if dead_letter_id not in held:
            raise NotFound(f"there is no dead letter {dead_letter_id}")
        raise Conflict(replay_obstacle(held[dead_letter_id]) or "somebody else had to do with it this moment")
    return lives[dead_letter_id]


async def replay_matching_dead_letters(
    open_transaction: TransactionFactory,
    criteria: DeadLetterFilter,
    actor: Actor,
    *,
    limit: int | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Replay all unresolved letters that match, or the oldest `limit` of them; how many.

    Batch by batch, each its own transaction; `step` hears how many each went through. What dies meanwhile is left
    alone, or an event that dies at once would be replayed for ever.
    """
    async with open_transaction() as tx:
        at = await database_now(tx)
    criteria = replace(criteria, until=min(criteria.until or at, at))
    replayed, after = 0, None
    while limit is None or replayed < limit:
        room = REPLAY_BATCH_SIZE if limit is None else min(REPLAY_BATCH_SIZE, limit - replayed)
        async with open_transaction() as tx:
            places = await _list_next_dead_letters(tx, criteria, after, room)
            if not places:
                break
            replayed += len(await replay_dead_letters(tx, [each.id for each in places], actor))
        after = places[-1]
        on_progress(len(places))
    return replayed


async def count_replayable_dead_letters(tx: Tx, criteria: DeadLetterFilter) -> ReplayCount:
    """How many unresolved letters match now: what `replay_all` would go through."""
    return await tx.one(ReplayCount, Q.count_replayable_dead_letters, **criteria.columns())


async def list_oldest_dead_letter_ids(tx: Tx, criteria: DeadLetterFilter, limit: int) -> list[UUID]:
    """The letters a replay of all that match would begin with."""
    return [each.id for each in await _list_next_dead_letters(tx, criteria, None, limit)]


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
    """Why a letter cannot be replayed; None if it can."""
    if candidate.is_resolved:
        return already_closed_message(candidate.is_replayed, candidate.resolved_by_actor)
    if candidate.status not in {None, "failed"}:
        return f"its event {candidate.original_event_id} lives, or has ended otherwise: it is {candidate.status}"
    if candidate.is_expired:
        return f"its event {candidate.original_event_id} has expired: nobody would be handed it"
    if not candidate.services_exist:
        return "its source or its target is no longer a service"
    return None
