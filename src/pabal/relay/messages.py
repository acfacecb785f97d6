"""Messages as they stand: a list of them, and one with its reply."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args
from uuid import UUID

from pabal.core.errors import Invalid, MessageNotFound
from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)

Status = Literal["QUEUED", "DELIVERED", "ACKED", "EXPIRED", "CANCELLED"]
ALL: tuple[Status, ...] = get_args(Status)
PLACE = re.compile(r"(\d{1,18})\.([0-9a-f]{32})", re.ASCII)
END = ((1 << 63) - 1, UUID(int=(1 << 128) - 1))


@dataclass(frozen=True, slots=True)
class Message:
    """What a person wrote, and what became of it. `reply` is how its answer stands, if one came or is awaited."""

    id: UUID
    seq: int
    account_id: UUID
    conversation_key: str
    text: str | None
    status: Status
    reason: str | None
    created_at: datetime
    delivered_at: datetime | None
    delivery_count: int
    held_by: str | None
    leased_until: datetime | None
    expires_at: datetime
    callback_expires_at: datetime | None
    acked_at: datetime | None
    ended_at: datetime | None
    reply: str | None


@dataclass(frozen=True, slots=True)
class Reply:
    """What was answered to a message, and what became of its one callback. `kakao` is Kakao's own answer."""

    id: UUID
    state: str
    spent_by: str | None
    outcome: str | None
    response: dict[str, Any] | None
    created_at: datetime
    spent_at: datetime | None
    settled_at: datetime | None
    answered_at: datetime | None
    status_code: int | None
    kakao: dict[str, Any] | None
    error: str | None
    kept_until: datetime | None
    shown_at: datetime | None
    shown_with: UUID | None


@dataclass(frozen=True, slots=True)
class Whole:
    """A message with what Kakao sent, but for the callback URL, and with its reply."""

    message: Message
    payload: dict[str, Any]
    reply: Reply | None


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which messages: an account's own, or for an operator anybody's. What is not said does not matter."""

    account: UUID | None = None
    conversation: str | None = None
    status: Status | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Some messages. `cursor` asks for the next page, and is None on the last."""

    items: list[Message]
    cursor: str | None


async def every(tx: Tx, chosen: Chosen, limit: int, cursor: str | None = None) -> Page:
    """The newest `limit` messages, or those before `cursor`."""
    seq, row = place(cursor)
    statuses = [chosen.status] if chosen.status else ALL
    among = {"account": chosen.account, "limit": limit + 1}
    if chosen.conversation is not None:
        ids = await tx.column(Q.said, conversation=chosen.conversation, statuses=statuses, before=seq, **among)
    elif chosen.account or chosen.status:
        ids = await tx.column(Q.some, statuses=statuses, before=seq, **among)
    else:
        ids = await tx.column(Q.newest, before=row, **among)
    found = await these(tx, ids[:limit], chosen.account)
    more = len(ids) > limit and found
    return Page(found, f"{found[-1].seq}.{found[-1].id.hex}" if more else None)


async def these(tx: Tx, ids: list[UUID], account: UUID | None = None) -> list[Message]:
    """Those among these that are there, in this order."""
    return await tx.all(Message, Q.these, ids=ids, account=account)


async def show(tx: Tx, message_id: UUID, account: UUID | None = None) -> Whole:
    """One message, of the account or for an operator of any."""
    found = await these(tx, [message_id], account)
    if not found:
        raise MessageNotFound
    payload = await tx.value(Q.payload, id=message_id, account=account)
    return Whole(found[0], payload or {}, await tx.maybe(Reply, Q.reply, id=message_id, account=account))


def place(cursor: str | None) -> tuple[int, UUID]:
    if cursor is None:
        return END
    written = PLACE.fullmatch(cursor)
    if written is None:
        raise Invalid.one("cursor", "is not one this list gave")
    return int(written[1]), UUID(written[2])
