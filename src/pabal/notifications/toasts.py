"""Toasts: what waits in a person's dashboard, what they did with it, and every change since a number."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal
from uuid import UUID

from pabal.core.errors import NotFound
from pabal.db.bells import Bell
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.notifications.lane import HeldRequest
from pabal.notifications.render import Rendered

Q = beside(__file__)

State = Literal["unseen", "seen", "read", "archived"]


class Mark(StrEnum):
    """What a person does with a toast. Whoever reads or puts away has seen."""

    SEEN = "seen"
    READ = "read"
    ARCHIVE = "archive"


@dataclass(frozen=True, slots=True)
class Toast:
    """A notice in somebody's dashboard. `seq` numbers its newest change; `age` is how long ago it arrived."""

    id: UUID
    category: str
    criticality: str
    locale: str
    title: str | None
    body: str
    created_at: datetime
    seen_at: datetime | None
    read_at: datetime | None
    archived_at: datetime | None
    seq: int
    age: timedelta

    @property
    def state(self) -> State:
        if self.archived_at:
            return "archived"
        if self.read_at:
            return "read"
        return "seen" if self.seen_at else "unseen"


@dataclass(frozen=True, slots=True)
class Change(Toast):
    """A toast as its newest change left it. `unread` counts what its person has not read by now."""

    recipient_id: str
    unread: int


@dataclass(frozen=True, slots=True)
class Standing:
    """How an inbox stands: how much of it is unread, and the number of its newest change."""

    unread: int
    last: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request for the dashboard and what was written for it, in the language it was written in."""

    request: HeldRequest
    rendered: Rendered
    locale: str | None = None


async def arrive(tx: Tx, request: HeldRequest, rendered: Rendered, locale: str | None = None) -> bool:
    """Put the toast into its person's inbox; False when it is there already."""
    return request.id in await arrive_all(tx, [Arrival(request, rendered, locale)])


async def arrive_all(tx: Tx, arrivals: Sequence[Arrival]) -> set[UUID]:
    """Put many toasts into many inboxes; those that were not there already.

    The inboxes are taken in one order, so that two who fill the same ones never wait for each other in a circle.
    """
    await tx.column(Q.line_up, recipients=sorted({each.request.recipient_id for each in arrivals}))
    came = await tx.all(
        Came,
        Q.arrive,
        ids=[each.request.id for each in arrivals],
        locales=[each.locale for each in arrivals],
        titles=[each.rendered.title for each in arrivals],
        bodies=[each.rendered.body for each in arrivals],
    )
    for recipient in {each.recipient_id for each in came}:
        tell(tx, recipient)
    return {each.id for each in came}


@dataclass(frozen=True, slots=True)
class Came:
    id: UUID
    recipient_id: str


async def inbox(
    tx: Tx, recipient: str, *, archived: bool = False, before: tuple[datetime, UUID] | None = None, limit: int
) -> list[Toast]:
    """A person's toasts, the newest first: those in the inbox, or those put away."""
    at, id_ = before or (None, None)
    return await tx.all(Toast, Q.inbox, recipient=recipient, archived=archived, at=at, id=id_, limit=limit)


async def standing(tx: Tx, recipient: str) -> Standing:
    """How an inbox stands. Ask before the inbox itself: what changes in between is then told again, not lost."""
    return await tx.one(Standing, Q.standing, recipient=recipient)


async def mark(tx: Tx, recipient: str, toast: UUID, what: Mark) -> Toast:
    """Write down what a person did with a toast of theirs; doing it twice changes nothing."""
    await tx.column(Q.line_up, recipients=[recipient])
    marked = await tx.maybe(Toast, Q.mark, recipient=recipient, id=toast, mark=what)
    if marked is None:
        raise NotFound("there is no such toast")
    tell(tx, recipient)
    return marked


async def read_all(tx: Tx, recipient: str) -> int:
    """Count everything in a person's inbox as read; how many were not."""
    await tx.column(Q.line_up, recipients=[recipient])
    count = await tx.run(Q.read_all, recipient=recipient)
    if count:
        tell(tx, recipient)
    return count


async def changes(tx: Tx, since: Mapping[str, int], limit: int) -> list[Change]:
    """What changed in these inboxes after these numbers, for each at most `limit`, in the order of the changes."""
    return await tx.all(Change, Q.changes, recipients=[*since], lasts=[*since.values()], limit=limit)


def tell(tx: Tx, recipient: str) -> None:
    """Let every open stream of a person look, once this is committed."""
    tx.ring(Bell.TOASTS, topic_of(recipient))


def topic_of(recipient: str) -> str:
    """How a ring names a person: whoever may LISTEN need not know whom, and an id may hold what a ring may not."""
    return hashlib.sha256(recipient.encode()).hexdigest()[:16]
