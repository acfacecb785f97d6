"""A stream: one connected client, the frames to send to it, and the messages it holds."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.queue.long_poll import StreamWaiter
from pabal.relay.callback_url import strip_callback_url
from pabal.relay.delivery.lane import ClaimedMessage, MessagePollRequest

STREAM_LEASE_DURATION = timedelta(seconds=30)
MAX_MESSAGES_IN_FLIGHT = 256
"""Messages that a stream may hold unanswered. Above it, the client gets no more until it answers some."""


@dataclass(frozen=True, slots=True)
class StreamFrame:
    """One server-sent event. `message` is the message it delivers, if any; `is_last` closes the stream after it."""

    name: str
    data: dict[str, Any]
    message: ClaimedMessage | None = None
    is_last: bool = False


@dataclass(slots=True, eq=False)
class RelayStream:
    """An open stream. `token_id` is the session that opened it, or the account for its relay token."""

    id: UUID
    token_id: UUID
    session_id: UUID | None
    account_id: UUID | None
    last_event_id: int | None
    """The id of the newest message sent to the client."""
    awaits_pairing: bool = False
    """Whether its session still waits for its first user."""
    seen_ids: set[int] = field(default_factory=set[int])
    """Control events from before the stream opened, or already sent."""
    waiter: StreamWaiter[ClaimedMessage] = field(init=False)
    in_flight: dict[UUID, UUID] = field(init=False, default_factory=dict[UUID, UUID])
    """The messages it delivered that are not answered yet, with their leases."""
    ended: bool = field(init=False, default=False)
    is_parked: bool = field(init=False, default=False)
    """Whether a newer stream of its token gets the messages."""
    reset_connection: Callable[[], None] | None = None
    """Resets the client's connection, where there is one."""
    on_drained: Callable[[], None] | None = None
    """Called when the stream has free slots again, and messages may have become due meanwhile."""
    _is_sending: bool = field(init=False, default=False)
    """Whether a frame is being sent. Other tasks only see it set while the connection does not drain."""
    is_reserved: bool = field(init=False, default=False)
    """Whether a statement that may hand messages to this stream is under way. Nothing is claimed for it meanwhile."""
    _frames: deque[StreamFrame] = field(init=False, default_factory=deque[StreamFrame])
    _has_frames: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.waiter = StreamWaiter(MAX_MESSAGES_IN_FLIGHT, self.deliver)

    @property
    def holder(self) -> str:
        return f"stream:{self.token_id}:{self.id}"

    @property
    def is_full(self) -> bool:
        return len(self.in_flight) >= MAX_MESSAGES_IN_FLIGHT

    @property
    def poll_request(self) -> MessagePollRequest:
        assert self.account_id is not None
        return MessagePollRequest(self.account_id, self.holder, STREAM_LEASE_DURATION)

    def add_in_flight(self, message_ids: Iterable[UUID], lease: UUID) -> None:
        """Hold messages that the client already has from an earlier stream."""
        self.in_flight.update(dict.fromkeys(message_ids, lease))
        self._update_free_slots()

    def deliver(self, messages: Sequence[ClaimedMessage]) -> None:
        for message in messages:
            self.in_flight[message.id] = message.lease
            self.enqueue_frame(StreamFrame("message", serialize_message(message), message))
        self._update_free_slots()

    def enqueue_frame(self, frame: StreamFrame) -> None:
        self._frames.append(frame)
        self._has_frames.set()

    def remove_in_flight(self, message_ids: Iterable[UUID]) -> bool:
        """Drop messages that were answered, acknowledged or lost; True if a full stream has free slots again."""
        was_full = self.is_full
        for message_id in message_ids:
            self.in_flight.pop(message_id, None)
        self._update_free_slots()
        return was_full and not self.is_full

    def drop_conversation(self, conversation_key: str) -> None:
        """Drop the unsent messages of a conversation that is no longer paired with the account."""
        dropped = {
            frame.message.id
            for frame in self._frames
            if frame.message and frame.message.conversation_key == conversation_key
        }
        self._frames = deque(frame for frame in self._frames if not (frame.message and frame.message.id in dropped))
        self.remove_in_flight(dropped)

    def unsent_messages(self) -> list[ClaimedMessage]:
        return [frame.message for frame in self._frames if frame.message]

    def close(self) -> None:
        """End the stream before anything else is sent: the client disconnected, or the hub stops."""
        self._frames.appendleft(StreamFrame("", {}, is_last=True))
        self._has_frames.set()

    def reset(self) -> None:
        """End the stream without a clean close, after which some clients reconnect without a delay."""
        self.close()
        if self.reset_connection is not None:
            self.reset_connection()

    def park(self) -> None:
        """Hold nothing any more: a newer stream of the token has the messages. Unsent ones are dropped before."""
        self.is_parked = True
        self.in_flight.clear()
        self._update_free_slots()

    def drop_unsent_messages(self) -> None:
        unsent = [message.id for message in self.unsent_messages()]
        self._frames = deque(frame for frame in self._frames if not frame.message)
        self.remove_in_flight(unsent)

    async def frames(self, heartbeat_interval: timedelta) -> AsyncGenerator[StreamFrame | None]:
        """Frames as they arrive; None after an idle heartbeat interval."""
        while True:
            while self._frames:
                frame = self._frames.popleft()
                if frame.message:
                    self.last_event_id = frame.message.delivery_seq
                self._start_sending()
                yield frame
                self._finish_sending()
                if frame.is_last:
                    return
            self._has_frames.clear()
            try:
                async with asyncio.timeout(heartbeat_interval.total_seconds()):
                    await self._has_frames.wait()
            except TimeoutError:
                self._start_sending()
                yield None
                self._finish_sending()

    def reserve(self) -> None:
        """Claim nothing until `finish_handover`: one statement at a time numbers the messages of a stream."""
        self.is_reserved = True
        self._update_free_slots()

    def finish_handover(self) -> None:
        self.is_reserved = False
        self._update_free_slots()
        self._resume_claims()

    def _start_sending(self) -> None:
        self._is_sending = True
        self._update_free_slots()

    def _finish_sending(self) -> None:
        self._is_sending = False
        self._update_free_slots()
        self._resume_claims()

    def _resume_claims(self) -> None:
        """Claim what became due while the stream had no free slot."""
        if self.waiter.was_skipped and self.waiter.free_slots:
            self.waiter.was_skipped = False
            if self.on_drained is not None:
                self.on_drained()

    def _update_free_slots(self) -> None:
        """A stream that does not drain has none: another client of the account may be able to get the messages."""
        is_open = not (self._is_sending or self.is_reserved)
        self.waiter.free_slots = max(MAX_MESSAGES_IN_FLIGHT - len(self.in_flight), 0) if is_open else 0


def serialize_message(message: ClaimedMessage) -> dict[str, Any]:
    """The data of a `message` event."""
    return {
        "id": str(message.id),
        "conversationKey": message.conversation_key,
        "kakaoPayload": strip_callback_url(message.kakao_payload),
        "normalized": message.normalized,
        "createdAt": format_rfc3339(message.created_at),
        "callbackExpiresAt": to_epoch_ms(message.callback_expires_at) if message.callback_expires_at else None,
        "deliveryCount": message.attempt,
    }


def format_rfc3339(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_epoch_ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
