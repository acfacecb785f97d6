"""The toast inbox of a person: insert, list, mark, and read changes by sequence number."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal
from uuid import UUID

from pabal.core.errors import NotFound
from pabal.db.doorbell.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.lane import ClaimedNotification
from pabal.notifications.states import CategoryName, CriticalityName
from pabal.notifications.templates.render import RenderedText

Q = load_queries(__file__)

ToastState = Literal["unseen", "seen", "read", "archived"]


class ToastAction(StrEnum):
    """What a person does with a toast. READ and ARCHIVE imply SEEN."""

    SEEN = "seen"
    READ = "read"
    ARCHIVE = "archive"


@dataclass(frozen=True, slots=True)
class Toast:
    """A notification in a person's dashboard. `seq` numbers its latest change; `age` is the time since it arrived."""

    id: UUID
    category: CategoryName
    criticality: CriticalityName
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
    """The latest change of a toast. `unread` is the person's current number of unread toasts."""

    recipient_id: str
    unread: int


@dataclass(frozen=True, slots=True)
class InboxState:
    """The number of unread toasts, and the number of the latest change."""

    unread: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class NewToast:
    """A notification for the dashboard with its rendered text."""

    notification: ClaimedNotification
    rendered: RenderedText
    locale: str | None = None


async def add_toast(
    tx: Tx, notification: ClaimedNotification, rendered: RenderedText, locale: str | None = None
) -> bool:
    """Insert a toast. Return False if it exists already."""
    return notification.id in await add_toasts(tx, [NewToast(notification, rendered, locale)])


async def add_toasts(tx: Tx, new_toasts: Sequence[NewToast]) -> set[UUID]:
    """Insert toasts and return the ids of those that did not exist."""
    await tx.column(Q.lock_inboxes, recipients=[toast.notification.recipient_id for toast in new_toasts])
    added = await tx.all(
        AddedToast,
        Q.insert_toasts,
        ids=[toast.notification.id for toast in new_toasts],
        locales=[toast.locale for toast in new_toasts],
        titles=[toast.rendered.title for toast in new_toasts],
        bodies=[toast.rendered.body for toast in new_toasts],
    )
    for recipient in {toast.recipient_id for toast in added}:
        notify_toast_streams(tx, recipient)
    return {toast.id for toast in added}


@dataclass(frozen=True, slots=True)
class AddedToast:
    """The row of `insert_toasts`."""

    id: UUID
    recipient_id: str


async def list_toasts(
    tx: Tx, recipient: str, *, archived: bool = False, before: tuple[datetime, UUID] | None = None, limit: int
) -> list[Toast]:
    """Return a page of a person's toasts, or of the archived ones, the newest first."""
    before_time, before_id = before or (None, None)
    return await tx.all(
        Toast,
        Q.list_toasts,
        recipient=recipient,
        archived=archived,
        before=before_time,
        before_id=before_id,
        limit=limit,
    )


async def load_inbox_state(tx: Tx, recipient: str) -> InboxState:
    """Read the state of an inbox. Read it before the toasts: a change in between is then repeated, not lost."""
    return await tx.one(InboxState, Q.read_inbox_state, recipient=recipient)


async def mark_toast(tx: Tx, recipient: str, toast_id: UUID, action: ToastAction) -> Toast:
    """Record what a person did with a toast. Repeating it changes nothing."""
    await tx.column(Q.lock_inboxes, recipients=[recipient])
    toast = await tx.maybe(Toast, Q.mark_toast, recipient=recipient, id=toast_id, action=action)
    if toast is None:
        raise NotFound("No such toast")
    notify_toast_streams(tx, recipient)
    return toast


async def mark_all_toasts_read(tx: Tx, recipient: str) -> int:
    """Mark all toasts of an inbox as read. Return how many were unread."""
    await tx.column(Q.lock_inboxes, recipients=[recipient])
    count = await tx.run(Q.mark_all_read, recipient=recipient)
    if count:
        notify_toast_streams(tx, recipient)
    return count


async def list_toast_changes(tx: Tx, since: Mapping[str, int], limit: int) -> list[ToastChange]:
    """Return the changes of these inboxes after the given numbers, at most `limit` per inbox, in order."""
    return await tx.all(ToastChange, Q.list_changes, recipients=[*since], lasts=[*since.values()], limit=limit)


def notify_toast_streams(tx: Tx, recipient: str) -> None:
    """Wake the person's open streams after the commit."""
    tx.notify(Channel.TOASTS, toast_topic(recipient))


def toast_topic(recipient: str) -> str:
    """The NOTIFY topic of a person. Hashed: every database login can LISTEN, and an id may have any characters."""
    return hashlib.sha256(recipient.encode()).hexdigest()[:16]
