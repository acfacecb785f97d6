"""Replay: let events live again whose cause of death is mended."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.core.ids import new_id
from pabal.db.bells import Bell
from pabal.db.faults import Orphan
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.events.letters import Filter, clock, closed

Q = beside(__file__)

BATCH = 500
"""Most letters of one transaction: whoever else wants one of them waits for no more than these."""

Open = Callable[[], AbstractAsyncContextManager[Tx]]


@dataclass(frozen=True, slots=True)
class Held:
    """A letter nobody else can replay now, and how its event stands; without a status its row is gone."""

    id: UUID
    original_event_id: UUID
    is_resolved: bool
    is_replayed: bool
    resolved_by_actor: str | None
    is_untargeted: bool
    status: str | None
    is_expired: bool
    has_services: bool

    @property
    def comes_anew(self) -> bool:
        """A row that is gone comes back under a new id; one for everybody is published anew."""
        return self.status is None or self.is_untargeted


@dataclass(frozen=True, slots=True)
class Tally:
    """How many letters match, all of them older than `at`."""

    count: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Place:
    id: UUID
    failed_at: datetime


async def replay(tx: Tx, ids: Sequence[UUID], by: Actor, *, resolved_by: UUID | None = None) -> dict[UUID, UUID]:
    """Revive the events of those that can be replayed; gives each such letter and the event that lives again.

    All unresolved letters of one event are replayed as one, asked for or not: it lives again once. What cannot be
    replayed is passed over.
    """
    good = await willing(tx, ids)
    return await revive(tx, good, by, resolved_by=resolved_by) if good else {}


async def willing(tx: Tx, ids: Sequence[UUID]) -> list[Held]:
    """What a replay of these would replay: nobody else does before this transaction ends."""
    await tx.run(Q.hold_events, ids=ids)
    return [each for each in await tx.all(Held, Q.hold, ids=ids) if obstacle(each) is None]


async def revive(tx: Tx, good: Sequence[Held], by: Actor, *, resolved_by: UUID | None = None) -> dict[UUID, UUID]:
    """Let the events of these live again; each letter and its event."""
    anew = {each.original_event_id: (each.id, new_id()) for each in good if each.comes_anew}
    if anew:
        letters, events = zip(*anew.values(), strict=True)
        await tx.run(Q.bring_back, letters=[*letters], events=[*events])
    lives = {each.id: anew[each.original_event_id][1] if each.comes_anew else each.original_event_id for each in good}
    await tx.run(Q.revive, events=[*{*lives.values()}])
    try:
        await tx.run(
            Q.close,
            letters=[*lives],
            events=[*lives.values()],
            resolved_by=resolved_by,
            actor=by.name,
            client_ip=by.client_ip,
            request_id=by.request_id,
        )
    except Orphan:
        raise Invalid.one("resolved_by", f"there is nobody {resolved_by} in auth.users") from None
    tx.ring(Bell.EVENTS)
    return lives


async def replay_one(tx: Tx, letter_id: UUID, by: Actor, *, resolved_by: UUID | None = None) -> UUID:
    """Replay one letter, or say why not; the event that lives again."""
    lives = await replay(tx, [letter_id], by, resolved_by=resolved_by)
    if letter_id not in lives:
        held = {each.id: each for each in await tx.all(Held, Q.hold, ids=[letter_id])}
        if letter_id not in held:
            raise NotFound(f"there is no dead letter {letter_id}")
        raise Conflict(obstacle(held[letter_id]) or "somebody else had to do with it this moment")
    return lives[letter_id]


async def replay_all(
    transaction: Open,
    chosen: Filter,
    by: Actor,
    *,
    limit: int | None = None,
    step: Callable[[int], None] = lambda _: None,
) -> int:
    """Replay all unresolved letters that match, or the oldest `limit` of them; how many.

    Batch by batch, each its own transaction; `step` hears how many each went through. What dies meanwhile is left
    alone, or an event that dies at once would be replayed for ever.
    """
    async with transaction() as tx:
        at = await clock(tx)
    chosen = replace(chosen, until=min(chosen.until or at, at))
    replayed, after = 0, None
    while limit is None or replayed < limit:
        room = BATCH if limit is None else min(BATCH, limit - replayed)
        async with transaction() as tx:
            places = await _next(tx, chosen, after, room)
            if not places:
                break
            replayed += len(await replay(tx, [each.id for each in places], by))
        after = places[-1]
        step(len(places))
    return replayed


async def count(tx: Tx, chosen: Filter) -> Tally:
    """How many unresolved letters match now: what `replay_all` would go through."""
    return await tx.one(Tally, Q.count, **chosen.columns())


async def oldest(tx: Tx, chosen: Filter, limit: int) -> list[UUID]:
    """The letters a replay of all that match would begin with."""
    return [each.id for each in await _next(tx, chosen, None, limit)]


async def _next(tx: Tx, chosen: Filter, after: Place | None, limit: int) -> list[Place]:
    return await tx.all(
        Place,
        Q.next,
        **chosen.columns(),
        after=after and after.failed_at,
        after_id=after and after.id,
        limit=limit,
    )


def obstacle(letter: Held) -> str | None:
    """Why a letter cannot be replayed; None if it can."""
    if letter.is_resolved:
        return closed(letter.is_replayed, letter.resolved_by_actor)
    if letter.status not in {None, "failed"}:
        return f"its event {letter.original_event_id} lives, or has ended otherwise: it is {letter.status}"
    if letter.is_expired:
        return f"its event {letter.original_event_id} has expired: nobody would be handed it"
    if not letter.has_services:
        return "its source or its target is no longer a service"
    return None
