"""Read messages: lists, and one message with its reply."""

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
EndReason = Literal[
    "acked", "answered", "queue_life", "unpaired", "replaced", "blocked", "disabled", "erased", "cancelled"
]
"""Why a message ended."""
ReplyState = Literal["sending", "sent", "refused", "unknown", "late", "awaited"]
"""`late`: kept to be shown later. `awaited`: so far the hub has only sent its own text."""
CallbackSpender = Literal["agent", "hub"]
MESSAGE_STATUSES: tuple[MessageStatus, ...] = get_args(MessageStatus)
MESSAGE_CURSOR_PATTERN = re.compile(r"(\d{1,18})\.([0-9a-f]{32})", re.ASCII)
FIRST_PAGE_CURSOR = ((1 << 63) - 1, UUID(int=(1 << 128) - 1))


@dataclass(frozen=True, slots=True)
class InboundMessage:
    """A user's message and its state. `reply` is the state of its reply, `shown` for a late reply that was shown."""

    id: UUID
    seq: int
    account_id: UUID
    conversation_key: str
    text: str | None
    status: MessageStatus
    reason: EndReason | None
    created_at: datetime
    delivered_at: datetime | None
    delivery_count: int
    held_by: str | None
    leased_until: datetime | None
    expires_at: datetime
    callback_expires_at: datetime | None
    acked_at: datetime | None
    ended_at: datetime | None
    reply: ReplyState | Literal["shown"] | None


@dataclass(frozen=True, slots=True)
class MessageReply:
    """The reply to a message and the outcome of its only callback. `kakao` is Kakao's response.

    `in_webhook`: it was given in the response to the webhook instead.
    """

    id: UUID
    state: ReplyState
    spent_by: CallbackSpender | None
    outcome: Literal["sending", "sent", "refused", "unknown"] | None
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
    in_webhook: bool


@dataclass(frozen=True, slots=True)
class MessageDetails:
    """A message with Kakao's payload, without the callback URL, and its reply."""

    message: InboundMessage
    payload: dict[str, Any]
    reply: MessageReply | None


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages to list. Without an account: of all accounts, for operators only."""

    account_id: UUID | None = None
    conversation_key: str | None = None
    status: MessageStatus | None = None


@dataclass(frozen=True, slots=True)
class InboundMessagePage:
    """One page of messages. `cursor` is None on the last page."""

    items: list[InboundMessage]
    cursor: str | None


async def list_messages(
    tx: Tx, message_filter: MessageFilter, limit: int, cursor: str | None = None
) -> InboundMessagePage:
    """The newest `limit` messages, or those before `cursor`."""
    before_seq, before_id = parse_message_cursor(cursor)
    statuses = [message_filter.status] if message_filter.status else MESSAGE_STATUSES
    page = {"account": message_filter.account_id, "limit": limit + 1}
    if message_filter.conversation_key is not None:
        ids = await tx.column(
            Q.list_ids_in_conversation,
            conversation=message_filter.conversation_key,
            statuses=statuses,
            before=before_seq,
            **page,
        )
    elif message_filter.account_id or message_filter.status:
        ids = await tx.column(Q.list_ids_by_status, statuses=statuses, before=before_seq, **page)
    else:
        ids = await tx.column(Q.list_newest_ids, before=before_id, **page)
    messages = await find_messages(tx, ids[:limit], message_filter.account_id)
    has_more = len(ids) > limit and messages
    return InboundMessagePage(messages, f"{messages[-1].seq}.{messages[-1].id.hex}" if has_more else None)


async def find_messages(tx: Tx, ids: list[UUID], account: UUID | None = None) -> list[InboundMessage]:
    """The messages with these ids that exist, in this order."""
    return await tx.all(InboundMessage, Q.find_messages, ids=ids, account=account)


async def find_message(tx: Tx, message_id: UUID, account: UUID | None = None) -> MessageDetails:
    """One message. Without an account: of any account, for operators only."""
    messages = await find_messages(tx, [message_id], account)
    if not messages:
        raise MessageNotFound
    payload = await tx.value(Q.find_payload, id=message_id, account=account)
    return MessageDetails(
        messages[0], payload or {}, await tx.maybe(MessageReply, Q.find_reply, id=message_id, account=account)
    )


def parse_message_cursor(cursor: str | None) -> tuple[int, UUID]:
    if cursor is None:
        return FIRST_PAGE_CURSOR
    parts = MESSAGE_CURSOR_PATTERN.fullmatch(cursor)
    if parts is None:
        raise Invalid.of_field("cursor", "is not a cursor of this list")
    return int(parts[1]), UUID(parts[2])


@dataclass(frozen=True, slots=True)
class ReplySummary:
    """The reply to a message, short. `response` is None while only the hub has sent its own text."""

    message_id: UUID
    state: ReplyState
    spent_by: CallbackSpender | None
    response: dict[str, Any] | None
    answered_at: datetime | None
    shown_at: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class FailedCallback:
    """A callback that Kakao refused or did not confirm."""

    id: UUID
    message_id: UUID
    account_id: UUID
    conversation_key: str
    spent_by: CallbackSpender
    outcome: Literal["refused", "unknown"]
    settled_at: datetime
    status_code: int | None
    error: str | None


async def find_reply_summaries(
    tx: Tx, message_ids: Collection[UUID], account: UUID | None = None
) -> dict[UUID, ReplySummary]:
    """The replies to these messages. Without an account: of all accounts, for operators and the conversation's page."""
    replies = await tx.all(ReplySummary, Q.find_reply_summaries, messages=[*message_ids], account=account)
    return {reply.message_id: reply for reply in replies}


async def list_failed_callbacks(
    tx: Tx, *, before: tuple[datetime, UUID] | None = None, limit: int = 50
) -> list[FailedCallback]:
    """Failed callbacks of all accounts, newest first. `before` is the end of the previous page."""
    before_time, before_id = before or (None, None)
    return await tx.all(FailedCallback, Q.list_failed_callbacks, before=before_time, before_id=before_id, limit=limit)
