"""Read messages: lists, and one message with its reply."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, get_args
from uuid import UUID

from pabal.core.errors import Invalid, MessageNotFound
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.callback_url import strip_callback_url

if TYPE_CHECKING:  # commands that decrypt nothing start without the cryptography package
    from pabal.relay.encryption.message_cipher import MessageCipher

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
    """A user's message and its state. `reply` is the state of its reply, `shown` for a late reply that was shown.

    `text` is None for a message without one, and for an encrypted one that was not decrypted.
    """

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
    is_encrypted: bool = False


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
    """A message with Kakao's payload, without the callback URL, and its reply.

    The payload is empty, and the reply has no response, if they are encrypted and were not decrypted.
    """

    message: InboundMessage
    payload: dict[str, Any]
    reply: MessageReply | None

    @property
    def is_encrypted(self) -> bool:
        """Whether the message, or its reply, is stored encrypted."""
        has_hidden_reply = self.reply is not None and self.reply.answered_at is not None and self.reply.response is None
        return self.message.is_encrypted or has_hidden_reply


@dataclass(frozen=True, slots=True)
class EncryptedPayload:
    """The payload column of an encrypted message."""

    id: UUID
    account_id: UUID
    kakao_payload: dict[str, Any]


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
    tx: Tx,
    message_filter: MessageFilter,
    limit: int,
    cursor: str | None = None,
    cipher: "MessageCipher | None" = None,
) -> InboundMessagePage:
    """The newest `limit` messages, or those before `cursor`. `cipher` is for callers that may read the texts."""
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
    messages = await find_messages(tx, ids[:limit], message_filter.account_id, cipher)
    has_more = len(ids) > limit and messages
    return InboundMessagePage(messages, f"{messages[-1].seq}.{messages[-1].id.hex}" if has_more else None)


async def find_messages(
    tx: Tx, ids: list[UUID], account: UUID | None = None, cipher: "MessageCipher | None" = None
) -> list[InboundMessage]:
    """The messages with these ids that exist, in this order."""
    messages = await tx.all(InboundMessage, Q.find_messages, ids=ids, account=account)
    encrypted = [message.id for message in messages if message.is_encrypted]
    if cipher is None or not encrypted:
        return messages
    rows = await tx.all(EncryptedPayload, Q.find_encrypted_payloads, ids=encrypted, account=account)
    texts = {
        message_id: normalized.get("text")
        for message_id, (_, normalized) in (await cipher.decrypt_payloads(tx, rows)).items()
    }
    return [replace(message, text=texts.get(message.id, message.text)) for message in messages]


async def find_message(
    tx: Tx, message_id: UUID, account: UUID | None = None, cipher: "MessageCipher | None" = None
) -> MessageDetails:
    """One message. Without an account: of any account, for operators only."""
    messages = await find_messages(tx, [message_id], account, cipher)
    if not messages:
        raise MessageNotFound
    payload: dict[str, Any] = await tx.value(Q.find_payload, id=message_id, account=account) or {}
    if messages[0].is_encrypted:
        row = EncryptedPayload(message_id, messages[0].account_id, payload)
        payloads = await cipher.decrypt_payloads(tx, [row]) if cipher else {}
        payload = strip_callback_url(payloads[message_id][0]) if message_id in payloads else {}
    reply = await tx.maybe(MessageReply, Q.find_reply, id=message_id, account=account)
    if reply and is_encrypted_response(reply.response):
        responses = await decrypt_responses(tx, {reply.id: reply.response}, cipher)
        reply = replace(reply, response=responses.get(reply.id))
    return MessageDetails(messages[0], payload, reply)


def is_encrypted_response(response: dict[str, Any] | None) -> bool:
    match response:
        case {"template": {"outputs": [{"envelope": str(), "reply": str()}, *_]}} | {"envelope": str(), "reply": str()}:
            return True
        case _:
            return False


async def decrypt_responses(
    tx: Tx, responses: Mapping[UUID, dict[str, Any] | None], cipher: "MessageCipher | None"
) -> dict[UUID, dict[str, Any] | None]:
    """The responses by the ids of their replies; None for one that is encrypted and cannot be read."""
    encrypted = {reply_id: response for reply_id, response in responses.items() if is_encrypted_response(response)}
    decrypted = await cipher.decrypt_responses(tx, encrypted) if cipher and encrypted else {}
    return {**responses, **dict.fromkeys(encrypted), **decrypted}


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

    id: UUID
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
    tx: Tx,
    message_ids: Collection[UUID],
    account: UUID | None = None,
    cipher: "MessageCipher | None" = None,
) -> dict[UUID, ReplySummary]:
    """The replies to these messages. Without an account: of all accounts, for operators and the conversation's page."""
    replies = await tx.all(ReplySummary, Q.find_reply_summaries, messages=[*message_ids], account=account)
    responses = await decrypt_responses(tx, {reply.id: reply.response for reply in replies}, cipher)
    return {reply.message_id: replace(reply, response=responses[reply.id]) for reply in replies}


async def list_failed_callbacks(
    tx: Tx, *, before: tuple[datetime, UUID] | None = None, limit: int = 50
) -> list[FailedCallback]:
    """Failed callbacks of all accounts, newest first. `before` is the end of the previous page."""
    before_time, before_id = before or (None, None)
    return await tx.all(FailedCallback, Q.list_failed_callbacks, before=before_time, before_id=before_id, limit=limit)
