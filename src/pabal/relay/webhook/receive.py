"""Store webhooks: concurrent ones share one statement and one commit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_never
from uuid import UUID

import msgspec

from pabal.core.errors import DecryptionError, RateLimited, Unavailable
from pabal.core.ids import new_id
from pabal.db.doorbell.channels import NOTIFY_CHANNEL, Channel
from pabal.db.errors import RetryableError
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.conversations import ConversationState
from pabal.relay.delivery.handover import ReservedStreams, StreamHandover
from pabal.relay.delivery.lane import ClaimedMessage
from pabal.relay.delivery.remote_waiters import RemoteWaiters
from pabal.relay.delivery.stream import STREAM_LEASE_DURATION
from pabal.relay.encryption.message_cipher import MessageCipher
from pabal.relay.webhook.payload import InboundPayload
from pabal.relay.webhook.skill_response import ChatTexts, SkillResponseDict, callback_response, text_response
from pabal.relay.webhook.stored_texts import StoredTexts, encrypt_texts, plain_texts

Q = load_queries(__file__)

CALLBACK_LIFETIME = timedelta(seconds=55)  # Kakao allows 60; keep five for the network
MINUTE = timedelta(minutes=1)
POLL_MEMORY = MINUTE
"""A bot without a stream is online if it sent a request within this time."""
MAX_NEW_CONVERSATIONS_PER_HUB, MAX_NEW_CONVERSATIONS_PER_CHANNEL = 10_000, 1_000
"""Per hour. Conversations that are not paired are deleted after an hour, so at most twice as many rows exist."""


class InboundDraft(msgspec.Struct, frozen=True):
    """A webhook to be stored. A command only updates its conversation and is not queued."""

    payload: InboundPayload
    is_command: bool
    auto_hold: timedelta | None = None
    hold: timedelta | None = None
    """How long the webhook may be held open for its answer, if the answer mode is `auto` or `synchronous`."""


class ReceiveResult(msgspec.Struct, frozen=True):
    """The state of the webhook's conversation, and the message that it became or repeats, if any.

    `hold`: how long the webhook is held open for its answer; None if it is not. A repeat is held like the first.
    `is_stored` is False for a new user beyond the limits: neither the conversation nor anything else is stored.
    """

    state: ConversationState
    account_id: UUID | None
    is_disabled: bool
    message_id: UUID | None
    duplicate_of: UUID | None
    first_response: dict[str, Any] | None
    has_callback: bool
    hold: timedelta | None = None
    is_stored: bool = True

    @property
    def stored_message_id(self) -> UUID:
        """The message that the webhook became or repeats."""
        message_id = self.message_id or self.duplicate_of
        assert message_id is not None
        return message_id


UNKNOWN_USER = ReceiveResult("UNPAIRED", None, False, None, None, None, False, is_stored=False)


class ReceiveRow(msgspec.Struct, frozen=True):
    position: int
    within_new_limits: bool
    within_conversation_limit: bool
    within_channel_limit: bool
    state: ConversationState | None
    account_id: UUID | None
    is_disabled: bool
    message_id: UUID | None
    duplicate_of: UUID | None
    answer: dict[str, Any] | None
    has_callback: bool
    hold: timedelta | None
    delivery_seq: int | None
    """The event id of a message that was handed to its stream; None if it is queued. The rest is for the stream."""
    seq: int | None
    created_at: datetime | None
    callback_expires_at: datetime | None
    kakao_payload: dict[str, Any] | None
    normalized: dict[str, Any] | None
    has_remote_stream: bool
    """Whether the message is queued and another process has a stream of its account."""
    is_notified: bool
    """Whether the statement has notified the other processes."""

    def to_claimed_message(
        self, lease: UUID, holder: str, payload: InboundPayload, texts: StoredTexts
    ) -> ClaimedMessage:
        """The message that was handed over, as a claim returns it."""
        fields: Any = self  # all of them are set
        if texts.is_encrypted:
            kakao_payload, normalized = texts.decoded[self.position], payload.normalized
        else:
            kakao_payload, normalized = fields.kakao_payload, fields.normalized
        return ClaimedMessage(
            fields.message_id,
            lease,
            fields.account_id,
            holder,
            None,
            fields.delivery_seq,
            payload.conversation_key,
            kakao_payload,
            normalized,
            self.callback_expires_at,
            fields.seq,
            fields.created_at,
            attempt=1,
            max_attempts=0,
        )


@dataclass(frozen=True, slots=True)
class DuplicateMessage:
    duplicate_of: UUID
    answer: dict[str, Any] | None
    has_callback: bool
    hold: timedelta | None


@dataclass(frozen=True, slots=True)
class WebhookReceiver:
    """Stores webhooks under the given limits and lifetimes. `receive` is the write function of a `Batcher`."""

    handover: StreamHandover
    remote_waiters: RemoteWaiters
    queue_lifetime: timedelta
    conversation_rate_limit: int
    channel_rate_limit: int
    cipher: MessageCipher | None = None

    async def receive(self, tx: Tx, drafts: Sequence[InboundDraft]) -> Sequence[ReceiveResult | Exception]:
        """Store a batch in order of arrival."""
        if self.handover.unclear:
            await self._queue_unclear(tx)
        ids = [None if draft.is_command else new_id() for draft in drafts]
        texts = await self._prepare_texts(tx, [draft.payload for draft in drafts], ids)
        results: list[ReceiveResult | Exception | None] = [None] * len(drafts)
        for row in await self._store(tx, drafts, ids, texts):
            error = texts.errors.get((row.position, row.account_id))
            results[row.position] = await self._to_result(tx, row, drafts[row.position], error)
        return [
            RetryableError("another transaction holds the conversation") if result is None else result
            for result in results
        ]

    async def _prepare_texts(
        self, tx: Tx, payloads: Sequence[InboundPayload], ids: Sequence[UUID | None]
    ) -> StoredTexts:
        if self.cipher is None or not self.cipher.is_on:
            return plain_texts(payloads)
        return await encrypt_texts(tx, self.cipher, payloads, ids, self.handover.find_account)

    async def _store(
        self, tx: Tx, drafts: Sequence[InboundDraft], ids: list[UUID | None], texts: StoredTexts
    ) -> list[ReceiveRow]:
        keys = (None if draft.is_command else draft.payload.conversation_key for draft in drafts)
        with self.handover.reserving(keys) as reserved:
            try:
                rows = await self._insert(tx, drafts, ids, texts, reserved)
            except Unavailable:  # it may have been committed
                self.handover.add_unclear(ids, reserved)
                raise
            self.handover.deliver(
                (stream, row.to_claimed_message(reserved.lease, stream.holder, drafts[row.position].payload, texts))
                for row in rows
                if row.delivery_seq is not None and (stream := reserved.streams[row.position])
            )
        for row in rows:
            if row.account_id and row.state == "PAIRED":
                self.handover.remember_account(drafts[row.position].payload.conversation_key, row.account_id)
            if row.message_id and row.delivery_seq is None:
                self._wake_waiters(tx, row)
        return rows

    def _wake_waiters(self, tx: Tx, row: ReceiveRow) -> None:
        account = str(row.account_id)
        if row.is_notified:
            self.remote_waiters.wake_here(account)
        elif row.has_remote_stream or self.remote_waiters.is_awaited(account):
            tx.notify(Channel.MESSAGES, account)
        else:
            self.remote_waiters.wake_here(account)

    async def _queue_unclear(self, tx: Tx) -> None:
        """Queue the messages whose stream did not learn of them. Otherwise they would follow when their lease ends."""
        unclear = self.handover.unclear.copy()
        accounts = await tx.column(Q.queue_unclear, ids=[*unclear], leases=[*unclear.values()])
        for message_id in unclear:
            self.handover.unclear.pop(message_id, None)
        for account in {*accounts}:
            tx.notify(Channel.MESSAGES, str(account))

    async def _insert(
        self,
        tx: Tx,
        drafts: Sequence[InboundDraft],
        ids: list[UUID | None],
        texts: StoredTexts,
        reserved: ReservedStreams,
    ) -> list[ReceiveRow]:
        payloads = [draft.payload for draft in drafts]
        account = self.handover.find_account(payloads[0].conversation_key)
        return await tx.all(
            ReceiveRow,
            Q.receive_messages,
            positions=[*range(len(drafts))],
            keys=[payload.conversation_key for payload in payloads],
            channels=[payload.channel for payload in payloads],
            users=[payload.user_key for payload in payloads],
            source_events=[payload.source_event_id for payload in payloads],
            payloads=texts.payloads,
            normalized=texts.normalized,
            callbacks=texts.callbacks,
            key_accounts=texts.accounts,
            is_encrypted=texts.is_encrypted,
            ids=ids,
            streams=[stream and stream.id for stream in reserved.streams],
            holders=[stream and stream.holder for stream in reserved.streams],
            process=self.remote_waiters.process_id,
            is_awaited=account is not None and self.remote_waiters.is_awaited(str(account)),
            notify_channel=NOTIFY_CHANNEL,
            notify_prefix=self.remote_waiters.notify_prefix() if len(drafts) == 1 else None,
            lease=reserved.lease,
            lease_life=STREAM_LEASE_DURATION,
            auto_holds=[draft.auto_hold for draft in drafts],
            holds=[draft.hold for draft in drafts],
            poll_span=POLL_MEMORY,
            new_per_hub=MAX_NEW_CONVERSATIONS_PER_HUB,
            new_per_channel=MAX_NEW_CONVERSATIONS_PER_CHANNEL,
            per_conversation=self.conversation_rate_limit,
            per_channel=self.channel_rate_limit,
            callback_life=CALLBACK_LIFETIME,
            queue_life=self.queue_lifetime,
        )

    async def _to_result(
        self, tx: Tx, row: ReceiveRow, draft: InboundDraft, encryption_error: Exception | None
    ) -> ReceiveResult | Exception:
        if not row.within_new_limits:
            return UNKNOWN_USER
        if not row.within_conversation_limit:
            return RateLimited("messages in this conversation", MINUTE / self.conversation_rate_limit)
        if not row.within_channel_limit:
            return RateLimited("messages on this channel", MINUTE / self.channel_rate_limit)
        assert row.state is not None  # within its limits, every webhook touches its conversation's row
        duplicate_of, answer, has_callback, hold = row.duplicate_of, row.answer, row.has_callback, row.hold
        is_queued = row.state == "PAIRED" and not row.is_disabled and not draft.is_command
        if is_queued and row.message_id is None and duplicate_of is None:
            first = None if encryption_error else await self._find_duplicate(tx, draft.payload)
            if first is None:
                return encryption_error or RetryableError(
                    "the conversation has another account, or the message it repeats was deleted"
                )
            duplicate_of, answer, has_callback, hold = (
                first.duplicate_of,
                first.answer,
                first.has_callback,
                first.hold,
            )
        if answer is not None and duplicate_of is not None and self.cipher is not None:
            try:
                answer = await self.cipher.decrypt_first_response(tx, duplicate_of, answer)
            except DecryptionError as error:
                return Unavailable(str(error))
        return ReceiveResult(
            row.state, row.account_id, row.is_disabled, row.message_id, duplicate_of, answer, has_callback, hold
        )

    @staticmethod
    async def _find_duplicate(tx: Tx, payload: InboundPayload) -> DuplicateMessage | None:
        return await tx.maybe(
            DuplicateMessage,
            Q.find_duplicate,
            conversation_key=payload.conversation_key,
            channel_id=payload.channel,
            source_event_id=payload.source_event_id,
        )


async def save_first_response(tx: Tx, result: ReceiveResult, response: dict[str, Any]) -> None:
    """Keep the response to a webhook, so that a duplicate gets the same one."""
    await tx.run(Q.save_first_response, id=result.stored_message_id, account_id=result.account_id, answer=response)
    tx.notify(Channel.MESSAGES, str(result.account_id))  # a claim that met our row lock skipped the message


def immediate_response(result: ReceiveResult, texts: ChatTexts, prefix: str) -> SkillResponseDict | None:
    """The hub's own text to a user whose message is not queued; None if it is."""
    match result.state:
        case "BLOCKED":
            return text_response(texts.blocked)
        case "PENDING":
            return text_response(texts.pending)
        case "PAIRED":
            return text_response(texts.disabled) if result.is_disabled else None
        case "UNPAIRED":
            return text_response(texts.hint.format(prefix=prefix), quick_replies=[f"{prefix}help"])
        case _:
            assert_never(result.state)


def queued_response(result: ReceiveResult, waiting_text: str | None) -> SkillResponseDict | None:
    """The response to a queued message: the first response again for a duplicate, else the promise of a callback.

    None without a callback.
    """
    if result.first_response is not None:
        return result.first_response
    return callback_response(waiting_text) if result.has_callback else None
