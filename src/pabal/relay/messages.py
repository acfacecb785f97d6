"""Messages as they stand: a list of them, and one with its reply."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args
from uuid import UUID

from pabal.core.errors import Invalid, MessageNotFound
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)

MessageStatus = Literal["QUEUED", "DELIVERED", "ACKED", "EXPIRED", "CANCELLED"]
MESSAGE_STATUSES: tuple[MessageStatus, ...] = get_args(MessageStatus)
MESSAGE_CURSOR_PATTERN = re.compile(r"(\d{1,18})\.([0-9a-f]{32})", re.ASCII)
FIRST_PAGE_CURSOR = ((1 << 63) - 1, UUID(int=(1 << 128) - 1))


@dataclass(frozen=True, slots=True)
class InboundMessage:
    """What a person wrote, and what became of it. `reply` is how its answer stands, if one came or is awaited."""

    id: UUID
    seq: int
    account_id: UUID
    conversation_key: str
    text: str | None
    status: MessageStatus
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
class MessageReply:
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
class MessageDetails:
    """A message with what Kakao sent, but for the callback URL, and with its reply."""

    message: InboundMessage
    payload: dict[str, Any]
    reply: MessageReply | None


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages: an account's own, or for an operator anybody's. What is not said does not matter."""

    account_id: UUID | None = None
    conversation_key: str | None = None
    status: MessageStatus | None = None


@dataclass(frozen=True, slots=True)
class InboundMessagePage:
    """Some messages. `cursor` asks for the next page, and is None on the last."""

    items: list[InboundMessage]
    cursor: str | None


async def list_messages(
    tx: Tx, message_filter: MessageFilter, limit: int, cursor: str | None = None
) -> InboundMessagePage:
    """The newest `limit` messages, or those before `cursor`."""
    seq, row = parse_message_cursor(cursor)
    statuses = [message_filter.status] if message_filter.status else MESSAGE_STATUSES
    among = {"account": message_filter.account_id, "limit": limit + 1}
    if message_filter.conversation_key is not None:
        ids = await tx.column(
            Q.list_ids_in_conversation,
            conversation=message_filter.conversation_key,
            statuses=statuses,
            before=seq,
            **among,
        )
    elif message_filter.account_id or message_filter.status:
        ids = await tx.column(Q.list_ids_by_status, statuses=statuses, before=seq, **among)
    else:
        ids = await tx.column(Q.list_newest_ids, before=row, **among)
    found = await find_messages(tx, ids[:limit], message_filter.account_id)
    more = len(ids) > limit and found
    return InboundMessagePage(found, f"{found[-1].seq}.{found[-1].id.hex}" if more else None)


async def find_messages(tx: Tx, ids: list[UUID], account: UUID | None = None) -> list[InboundMessage]:
    """Those among these that are there, in this order."""
    return await tx.all(InboundMessage, Q.find_messages, ids=ids, account=account)


async def find_message(tx: Tx, message_id: UUID, account: UUID | None = None) -> MessageDetails:
    """One message, of the account or for an operator of any."""
    found = await find_messages(tx, [message_id], account)
    if not found:
        raise MessageNotFound
    payload = await tx.value(Q.find_payload, id=message_id, account=account)
    return MessageDetails(
        found[0], payload or {}, await tx.maybe(MessageReply, Q.find_reply, id=message_id, account=account)
    )


def parse_message_cursor(cursor: str | None) -> tuple[int, UUID]:
    if cursor is None:
        return FIRST_PAGE_CURSOR
    written = MESSAGE_CURSOR_PATTERN.fullmatch(cursor)
    if written is None:
        raise Invalid.of_field("cursor", "is not one this list gave")
    return int(written[1]), UUID(written[2])


@dataclass(frozen=True, slots=True)
class ReplySummary:
    """What was answered to a message, and what became of that. `response` is empty while only the hub has spoken."""

    message_id: UUID
    state: str
    spent_by: str | None
    response: dict[str, Any] | None
    answered_at: datetime | None
    shown_at: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class FailedCallback:
    """A callback that Kakao refused, or of which nothing was heard."""

    id: UUID
    message_id: UUID
    account_id: UUID
    conversation_key: str
    spent_by: str
    outcome: str
    settled_at: datetime
    status_code: int | None
    error: str | None


async def find_reply_summaries(
    tx: Tx, message_ids: Collection[UUID], account: UUID | None = None
) -> dict[UUID, ReplySummary]:
    """What was answered to these: an account's own, or for an operator and for the person who asked, anybody's."""
    found = await tx.all(ReplySummary, Q.find_reply_summaries, messages=[*message_ids], account=account)
    return {each.message_id: each for each in found}


async def list_failed_callbacks(
    tx: Tx, *, before: tuple[datetime, UUID] | None = None, limit: int = 50
) -> list[FailedCallback]:
    """Callbacks that failed, the newest first, for an operator; `before` is where the page before ended."""
    at, row = before or (None, None)
    return await tx.all(FailedCallback, Q.list_failed_callbacks, before=at, before_id=row, limit=limit)
