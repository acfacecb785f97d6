"""Toasts: what waits in a person's dashboard, what they did with it, and every change since a number."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal
from uuid import UUID

from pabal.core.errors import NotFound
from pabal.db.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.lane import ClaimedNotification
from pabal.notifications.templates.render import RenderedText

Q = load_queries(__file__)

ToastState = Literal["unseen", "seen", "read", "archived"]


class ToastAction(StrEnum):
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
    def state(self) -> ToastState:
        if self.archived_at:
            return "archived"
        if self.read_at:
            return "read"
        return "seen" if self.seen_at else "unseen"


@dataclass(frozen=True, slots=True)
class ToastChange(Toast):
    """A toast as its newest change left it. `unread` counts what its person has not read by now."""

    recipient_id: str
    unread: int


@dataclass(frozen=True, slots=True)
class InboxState:
    """How an inbox stands: how much of it is unread, and the number of its newest change."""

    unread: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class NewToast:
    """A request for the dashboard and what was written for it, in the language it was written in."""

    request: ClaimedNotification
    rendered: RenderedText
    locale: str | None = None


async def add_toast(tx: Tx, request: ClaimedNotification, rendered: RenderedText, locale: str | None = None) -> bool:
    """Put the toast into its person's inbox; False when it is there already."""
    return request.id in await add_toasts(tx, [NewToast(request, rendered, locale)])


async def add_toasts(tx: Tx, new_toasts: Sequence[NewToast]) -> set[UUID]:
    """Put many toasts into many inboxes; those that were not there already.

    The inboxes are taken in one order, so that two who fill the same ones never wait for each other in a circle.
    """
    await tx.column(Q.lock_inboxes, recipients=sorted({each.request.recipient_id for each in new_toasts}))
    came = await tx.all(
        AddedToast,
        Q.insert_toasts,
        ids=[each.request.id for each in new_toasts],
        locales=[each.locale for each in new_toasts],
        titles=[each.rendered.title for each in new_toasts],
        bodies=[each.rendered.body for each in new_toasts],
    )
    for recipient in {each.recipient_id for each in came}:
        notify_toast_streams(tx, recipient)
    return {each.id for each in came}


@dataclass(frozen=True, slots=True)
class AddedToast:
    id: UUID
    recipient_id: str


async def list_toasts(
    tx: Tx, recipient: str, *, archived: bool = False, before: tuple[datetime, UUID] | None = None, limit: int
) -> list[Toast]:
    """A person's toasts, the newest first: those in the inbox, or those put away."""
    at, id_ = before or (None, None)
    return await tx.all(Toast, Q.list_toasts, recipient=recipient, archived=archived, at=at, id=id_, limit=limit)


async def load_inbox_state(tx: Tx, recipient: str) -> InboxState:
    """How an inbox stands. Ask before the inbox itself: what changes in between is then told again, not lost."""
    return await tx.one(InboxState, Q.read_inbox_state, recipient=recipient)


async def mark_toast(tx: Tx, recipient: str, toast_id: UUID, action: ToastAction) -> Toast:
    """Write down what a person did with a toast of theirs; doing it twice changes nothing."""
    await tx.column(Q.lock_inboxes, recipients=[recipient])
    marked = await tx.maybe(Toast, Q.mark_toast, recipient=recipient, id=toast_id, mark=action)
    if marked is None:
        raise NotFound("there is no such toast")
    notify_toast_streams(tx, recipient)
    return marked


async def mark_all_toasts_read(tx: Tx, recipient: str) -> int:
    """Count everything in a person's inbox as read; how many were not."""
    await tx.column(Q.lock_inboxes, recipients=[recipient])
    count = await tx.run(Q.mark_all_read, recipient=recipient)
    if count:
        notify_toast_streams(tx, recipient)
    return count


async def list_toast_changes(tx: Tx, since: Mapping[str, int], limit: int) -> list[ToastChange]:
    """What changed in these inboxes after these numbers, for each at most `limit`, in the order of the changes."""
    return await tx.all(ToastChange, Q.list_changes, recipients=[*since], lasts=[*since.values()], limit=limit)


def notify_toast_streams(tx: Tx, recipient: str) -> None:
    """Let every open stream of a person look, once this is committed."""
    tx.notify(Channel.TOASTS, toast_topic(recipient))


def toast_topic(recipient: str) -> str:
    """How a ring names a person: whoever may LISTEN need not know whom, and an id may hold what a ring may not."""
    return hashlib.sha256(recipient.encode()).hexdigest()[:16]
