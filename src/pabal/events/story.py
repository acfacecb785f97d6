"""An event's story: everything that is known of it, under whatever name somebody has of it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from pabal.core.errors import Invalid, NotFound
from pabal.core.ids import spanned
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.events.moments import REPLAYED, Death, Deed, Moment, Traced, told

Q = beside(__file__)

FEW = 6
MOST = 500
"""Events of one story. A broadcast to more than so many is told of the first of them."""


@dataclass(frozen=True, slots=True)
class Named:
    """Something whose id was meant: its kind, and the event it is about."""

    named: UUID
    event: UUID
    kind: str


@dataclass(frozen=True, slots=True)
class Story:
    """What became of one event, or of all that share a correlation id. `now` is the database's time."""

    about: str
    kind: str
    now: datetime
    events: list[Traced]
    deaths: list[Death]
    moments: list[Moment]


async def story(tx: Tx, name: str) -> Story:
    """Tell the story of an event, a delivery, a dead letter or a correlation id.

    The beginning of an id is enough if nothing else begins so.
    """
    meant = await whatever_begins(tx, name)
    if len(meant) > 1:
        some = ", ".join(map(str, [*meant][: FEW - 1]))
        raise Invalid.one("id", f"several begin with {name}: {some}{' …' if len(meant) >= FEW else ''}")
    for one in meant.values():
        return await gathered(tx, str(one.named), one.kind, [one.event])
    if correlated := await tx.column(Q.correlated, correlation_id=name, limit=MOST):
        return await gathered(tx, name, "correlation", correlated)
    raise NotFound(f"there is no event, delivery, dead letter or correlation id {name}")


async def whatever_begins(tx: Tx, name: str) -> dict[UUID, Named]:
    """Everything whose id begins so; nothing for what cannot be the beginning of an id."""
    span = spanned(name)
    if span is None:
        return {}
    low, high = span
    return {each.named: each for each in await tx.all(Named, Q.named, low=low, high=high, limit=FEW)}


async def alone(tx: Tx, event_id: UUID, *, notes: bool) -> list[Moment]:
    """What happened to one event, and to nothing that came before or after it.

    What an operator noted when resolving its letter is for operators, unless `notes`.
    """
    row = await _looked_at(tx, [event_id])
    deaths = row.deaths if notes else [replace(death, resolution_notes=None) for death in row.deaths]
    return told(row.events, deaths, row.deeds, row.lives)


async def gathered(tx: Tx, about: str, kind: str, seeds: Iterable[UUID]) -> Story:
    """Follow an event to its deliveries, to what it was before and to what it was replayed as."""
    known, look = dict[UUID, None](), dict.fromkeys(seeds)
    events, deaths, deeds = dict[UUID, Traced](), dict[UUID, Death](), list[Deed]()
    lives: dict[UUID, UUID] = {}
    while look:
        known |= look
        rows = await _looked_at(tx, [*look])
        events |= {event.id: event for event in rows.events}
        deaths |= {death.id: death for death in rows.deaths}
        deeds += rows.deeds
        lives |= rows.lives
        spread = [event.id for event in rows.events if event.parent_id is None]
        after = await tx.column(Q.deliveries, ids=spread, limit=MOST) if spread else []
        before = [event.origin_id for event in rows.events if event.origin_id]
        before += [death.origin_id for death in rows.deaths]
        room = max(0, MOST - len(known))
        look = dict.fromkeys([each for each in (*before, *after, *lives.values()) if each not in known][:room])
    moments = told(events.values(), [*deaths.values()], deeds, lives)
    return Story(about, kind, await tx.value(Q.now), [*events.values()], [*deaths.values()], moments)


@dataclass(frozen=True, slots=True)
class _Rows:
    """All that is written down of some events; `lives` says which event each replayed letter became."""

    events: list[Traced]
    deaths: list[Death]
    deeds: list[Deed]
    lives: dict[UUID, UUID]


async def _looked_at(tx: Tx, ids: list[UUID]) -> _Rows:
    events = await tx.all(Traced, Q.events, ids=ids)
    deaths = await tx.all(Death, Q.letters, ids=ids)
    deeds = await tx.all(Deed, Q.deeds, subjects=[str(each) for each in (*ids, *(death.id for death in deaths))])
    lives = {UUID(deed.subject): UUID(deed.details["event"]) for deed in deeds if deed.action == REPLAYED}
    return _Rows(events, deaths, deeds, lives)
