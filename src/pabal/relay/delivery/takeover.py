"""Which of a token's streams gets the messages: one token is one client.

The newest stream of a token is active. Its older streams are parked: they stay open and are pinged, but get no messages
and count against no limit. A client that lost its connection without noticing, or without telling us, therefore gets
its messages as soon as it reconnects. A parked stream is not closed: a client that reconnects without a delay would
take over again at once, and two clients with the same token would evict each other for ever.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.core.errors import RateLimited
from pabal.core.ids import new_id
from pabal.db.doorbell.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.auth import RelayPrincipal, RelayTokenRow, principal_of_token
from pabal.relay.delivery.control_events import (
    CONTROL_EVENT_LOOKBACK,
    CONTROL_EVENT_RETENTION,
    ControlEventKind,
    send_control_event,
)
from pabal.relay.delivery.decrypted_claims import decrypt_messages
from pabal.relay.delivery.lane import ClaimedMessage
from pabal.relay.delivery.stream import MAX_MESSAGES_IN_FLIGHT, STREAM_LEASE_DURATION, RelayStream
from pabal.relay.encryption.message_cipher import MessageCipher

Q = load_queries(__file__)

MAX_STREAMS = 5
"""Active streams that one account may have, in all processes: one for each of its tokens."""
MAX_PARKED_STREAMS = 5
"""Parked streams that one token may have, in all processes. The oldest above it are reset."""
STREAM_LIFETIME = timedelta(seconds=35)  # a little longer than the leases it holds
TOO_MANY_STREAMS_RETRY_AFTER = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class StreamOpeningRow(RelayTokenRow):
    """The owner of a token, what became of its streams, and a message that moved to the new one, if any."""

    seen_ids: list[int]
    is_open: bool
    """False if the token is invalid, or other tokens of the account have too many active streams."""
    parked: list[UUID] | None
    reset: list[UUID] | None
    message_id: UUID | None
    delivery_seq: int | None
    conversation_key: str | None
    kakao_payload: dict[str, Any] | None
    normalized: dict[str, Any] | None
    callback_expires_at: datetime | None
    seq: int | None
    created_at: datetime | None
    attempt: int | None
    is_offered: bool | None
    """Whether the message is delivered again; otherwise the client has it already."""

    def to_claimed_message(self, stream: RelayStream, lease: UUID) -> ClaimedMessage:
        """The message, as a claim returns it."""
        fields: Any = self  # all of them are set
        return ClaimedMessage(
            fields.message_id,
            lease,
            fields.account_id,
            stream.holder,
            None,
            fields.delivery_seq,
            fields.conversation_key,
            fields.kakao_payload,
            fields.normalized,
            self.callback_expires_at,
            fields.seq,
            fields.created_at,
            fields.attempt,
            max_attempts=0,
        )


@dataclass(frozen=True, slots=True)
class StreamOpening:
    """A stream that is the active one of its token now, and those that were before."""

    stream: RelayStream
    principal: RelayPrincipal
    earlier_ids: set[UUID]


@dataclass(frozen=True, slots=True)
class ActivatedStream:
    id: UUID
    account_id: UUID | None
    token_id: UUID


async def register_stream(
    tx: Tx, process_id: UUID, token_hash: str, last_event_id: int | None, cipher: MessageCipher | None = None
) -> StreamOpening:
    """Open the active stream of a token, with the messages that its client lacks, in one statement.

    Raises RateLimited if other tokens of the account have too many active streams.
    """
    stream_id, lease = new_id(), new_id()
    rows = await tx.all(
        StreamOpeningRow,
        Q.open_stream,
        token_hash=token_hash,
        id=stream_id,
        process=process_id,
        last=last_event_id,
        life=STREAM_LIFETIME,
        window=CONTROL_EVENT_RETENTION + CONTROL_EVENT_LOOKBACK,
        max_streams=MAX_STREAMS,
        max_parked=MAX_PARKED_STREAMS,
        lease=lease,
        hold=STREAM_LEASE_DURATION,
        max_messages=MAX_MESSAGES_IN_FLIGHT,
    )
    principal = principal_of_token(rows[0] if rows else None)
    if not rows[0].is_open:
        raise RateLimited("streams open for this account", TOO_MANY_STREAMS_RETRY_AFTER)
    earlier_ids = {*(rows[0].parked or ()), *(rows[0].reset or ())}
    if earlier_ids:
        tx.notify(Channel.RELAY)  # the function sent a control event to their processes
    stream = RelayStream(stream_id, principal.token_id, principal.session_id, principal.account_id, last_event_id)
    stream.awaits_pairing = principal.session_id is not None and not principal.paired
    stream.seen_ids = {*rows[0].seen_ids}
    stream.add_in_flight([row.message_id for row in rows if row.message_id and not row.is_offered], lease)
    offered = [row.to_claimed_message(stream, lease) for row in rows if row.is_offered]
    stream.deliver(await decrypt_messages(tx, cipher, offered))
    return StreamOpening(stream, principal, earlier_ids)


async def requeue_parked_messages(tx: Tx, stream: RelayStream) -> None:
    """Queue the messages that were claimed for a parked stream before this process knew."""
    if stream.account_id is None:
        return
    if await tx.column(Q.requeue_parked_messages, account=stream.account_id, holder=stream.holder):
        tx.notify(Channel.MESSAGES, str(stream.account_id))


async def hold_parked_messages(tx: Tx, stream: RelayStream) -> None:
    """Hold again what the client of a parked stream still has, because the stream is active again."""
    if stream.account_id is None:
        return
    lease = new_id()
    message_ids = await tx.column(
        Q.hold_parked_messages,
        account=stream.account_id,
        holder=stream.holder,
        lease=lease,
        hold=STREAM_LEASE_DURATION,
    )
    stream.add_in_flight(message_ids, lease)


async def find_tokens_without_active_stream(tx: Tx, tokens: Iterable[UUID]) -> list[UUID]:
    """Tokens whose active stream vanished with its process, while parked ones are open."""
    return await tx.column(Q.find_tokens_without_active_stream, tokens=[*tokens])


async def activate_parked_streams(tx: Tx, tokens: Iterable[UUID]) -> None:
    """Make the newest parked stream of each token active, if no other is and its account has room for one.

    Without room it stays parked; its process tries again at its next keepalive.
    """
    ids = sorted(tokens)
    async with tx.atomic():
        await tx.run(Q.lock_stream_accounts, tokens=ids)
        await tx.run(Q.lock_stream_tokens, tokens=ids)
        for stream in await tx.all(ActivatedStream, Q.activate_parked_streams, tokens=ids, max_streams=MAX_STREAMS):
            await send_control_event(
                tx,
                ControlEventKind.ACTIVATED,
                account=stream.account_id,
                session=None if stream.token_id == stream.account_id else stream.token_id,
                streams=[str(stream.id)],
            )
