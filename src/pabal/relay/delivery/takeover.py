"""Which of a token's streams gets the messages: one token is one client.

The newest stream of a token is active. Its older streams are parked: they stay open and are pinged, but get no messages
and count against no limit. A client that lost its connection without noticing, or without telling us, therefore gets
its messages as soon as it reconnects. A parked stream is not closed: a client that reconnects without a delay would
take over again at once, and two clients with the same token would evict each other for ever.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal
from uuid import UUID

from pabal.core.errors import RateLimited
from pabal.core.ids import new_id
from pabal.db.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.auth import RelayPrincipal, RelayTokenRow, principal_of_token
from pabal.relay.delivery.control_events import (
    CONTROL_EVENT_LOOKBACK,
    CONTROL_EVENT_RETENTION,
    ControlEventKind,
    send_control_event,
)
from pabal.relay.delivery.lane import ClaimedMessage
from pabal.relay.delivery.stream import MAX_MESSAGES_IN_FLIGHT, STREAM_LEASE_DURATION, RelayStream

Q = load_queries(__file__)

MAX_STREAMS = 5
"""Active streams that one account may have, in all processes: one for each of its tokens."""
MAX_PARKED_STREAMS = 5
"""Parked streams that one token may have, in all processes. The oldest above it are reset."""
STREAM_LIFETIME = timedelta(seconds=35)  # a little longer than the leases it holds
TOO_MANY_STREAMS_RETRY_AFTER = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class StreamChange:
    """What became of a token's streams when a new one opened. `held`: there are messages for it to resume."""

    id: UUID
    change: Literal["opened", "held", "parked", "reset"]


@dataclass(frozen=True, slots=True)
class StreamTokenRow(RelayTokenRow):
    seen_ids: list[int]


@dataclass(frozen=True, slots=True)
class ResumedMessage(ClaimedMessage):
    """A message that moved to the new stream. Its client has it already unless it is offered again."""

    is_offered: bool


@dataclass(frozen=True, slots=True)
class ActivatedStream:
    id: UUID
    account_id: UUID | None
    token_id: UUID


async def authenticate_stream(tx: Tx, token_hash: str) -> tuple[RelayPrincipal, set[int]]:
    """Find the owner of a token, and the control events from before. Locks both until the stream is registered."""
    row = await tx.maybe(
        StreamTokenRow,
        Q.authenticate_stream,
        token_hash=token_hash,
        window=CONTROL_EVENT_RETENTION + CONTROL_EVENT_LOOKBACK,
    )
    return principal_of_token(row), {*row.seen_ids} if row else set()


async def register_stream(tx: Tx, stream: RelayStream) -> list[StreamChange]:
    """Make a stream the active one of its token, with the messages that its client lacks; returns the parked ones.

    Call it after `authenticate_stream`, which holds the locks.
    Raises RateLimited if other tokens of the account have too many active streams.
    """
    changes = await tx.all(
        StreamChange,
        Q.open_stream,
        id=stream.id,
        account=stream.account_id,
        token=stream.token_id,
        session=stream.session_id,
        last=stream.last_event_id,
        life=STREAM_LIFETIME,
        max_streams=MAX_STREAMS,
        max_parked=MAX_PARKED_STREAMS,
    )
    if not changes:
        raise RateLimited("streams open for this account", TOO_MANY_STREAMS_RETRY_AFTER)
    earlier = [change for change in changes if change.change in {"parked", "reset"}]
    if earlier:
        await send_control_event(
            tx,
            ControlEventKind.PARKED,
            account=stream.account_id,
            session=stream.session_id,
            streams=[str(change.id) for change in earlier],
            reset=[str(change.id) for change in earlier if change.change == "reset"],
        )
    if any(change.change == "held" for change in changes):
        await resume_messages(tx, stream)
    return earlier


async def resume_messages(tx: Tx, stream: RelayStream) -> None:
    """Move the messages of the token's earlier streams to a new one, and enqueue those that its client lacks."""
    assert stream.account_id is not None
    lease = new_id()
    messages = await tx.all(
        ResumedMessage,
        Q.resume_messages,
        account=stream.account_id,
        token=stream.token_id,
        stream=stream.id,
        holder=stream.holder,
        lease=lease,
        hold=STREAM_LEASE_DURATION,
        last=stream.last_event_id,
        max_messages=MAX_MESSAGES_IN_FLIGHT,
    )
    stream.add_in_flight([message.id for message in messages if not message.is_offered], lease)
    stream.deliver([message for message in messages if message.is_offered])


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
    """Make the newest parked stream of each token active, if no other is."""
    ids = sorted(tokens)
    async with tx.atomic():
        await tx.run(Q.lock_stream_tokens, tokens=ids)
        for stream in await tx.all(ActivatedStream, Q.activate_parked_streams, tokens=ids):
            await send_control_event(
                tx,
                ControlEventKind.ACTIVATED,
                account=stream.account_id,
                session=None if stream.token_id == stream.account_id else stream.token_id,
                streams=[str(stream.id)],
            )
