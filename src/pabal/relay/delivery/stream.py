"""A stream: one client that stays connected, what it is to be told next, and what it holds."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, cast
from uuid import UUID

from pabal.db.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.queue.long_poll import StreamWaiter
from pabal.relay.delivery.lane import ClaimedMessage, MessagePollRequest

STREAM_LEASE_DURATION = timedelta(seconds=30)
MAX_MESSAGES_IN_FLIGHT = 256
"""Messages a stream may have in hand; a client that answers none of them is not buried."""


@dataclass(frozen=True, slots=True)
class StreamFrame:
    """One event on the wire. `message` is what it hands out, if it does; `ends` closes the stream after it."""

    name: str
    data: dict[str, Any]
    message: ClaimedMessage | None = None
    is_last: bool = False


@dataclass(slots=True, eq=False)
class RelayStream:
    """An open stream. `token` is what opened it: a session, or the account itself by its relay token."""

    id: UUID
    token_id: UUID
    session_id: UUID | None
    account_id: UUID | None
    last_event_id: int | None
    """The last id the client has: that of the newest message it was sent."""
    awaits_pairing: bool = False
    """Whether its session has no user: until one is let in, or the wait is over."""
    seen_ids: set[int] | None = None
    """News that are none to it: what was so when it was opened, and what it was told. None while it is being opened."""
    waiter: StreamWaiter[ClaimedMessage] = field(init=False)
    in_flight: dict[UUID, UUID] = field(init=False, default_factory=dict[UUID, UUID])
    """What it was handed and has not answered, with the lease of each."""
    ended: bool = field(init=False, default=False)
    _frames: deque[StreamFrame] = field(init=False, default_factory=deque[StreamFrame])
    _has_frames: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.waiter = StreamWaiter(MAX_MESSAGES_IN_FLIGHT, self.deliver)

    @property
    def holder(self) -> str:
        return f"stream:{self.token_id}:{self.id}"

    @property
    def poll_request(self) -> MessagePollRequest:
        assert self.account_id is not None
        return MessagePollRequest(self.account_id, self.holder, STREAM_LEASE_DURATION)

    def add_in_flight(self, ids: Iterable[UUID], lease: UUID) -> None:
        """Hold what the client has already, from an earlier stream."""
        self.in_flight.update(dict.fromkeys(ids, lease))
        self._update_free_slots()

    def deliver(self, messages: Sequence[ClaimedMessage]) -> None:
        for message in messages:
            self.in_flight[message.id] = message.lease
            self.enqueue_frame(StreamFrame("message", serialize_message(message), message))
        self._update_free_slots()

    def enqueue_frame(self, frame: StreamFrame) -> None:
        self._frames.append(frame)
        self._has_frames.set()

    def remove_in_flight(self, ids: Iterable[UUID]) -> bool:
        """Let go of what was answered, acknowledged or lost; True when a full stream has room again."""
        full = self.waiter.free_slots <= 0
        for each in ids:
            self.in_flight.pop(each, None)
        self._update_free_slots()
        return full and self.waiter.free_slots > 0

    def drop_conversation(self, conversation_key: str) -> None:
        """Do not hand out what is no longer its: the conversation left before this was sent."""
        gone = {
            frame.message.id
            for frame in self._frames
            if frame.message and frame.message.conversation_key == conversation_key
        }
        self._frames = deque(frame for frame in self._frames if not (frame.message and frame.message.id in gone))
        self.remove_in_flight(gone)

    def unsent_messages(self) -> list[ClaimedMessage]:
        return [frame.message for frame in self._frames if frame.message]

    def close(self) -> None:
        """End without a word: the client has gone, or the hub is about to."""
        self._frames.appendleft(StreamFrame("", {}, is_last=True))
        self._has_frames.set()

    def drop_unsent_messages(self) -> None:
        """Hand out nothing more of what waits to be sent."""
        unsent = [message.id for message in self.unsent_messages()]
        self._frames = deque(frame for frame in self._frames if not frame.message)
        self.remove_in_flight(unsent)

    async def frames(self, heartbeat_interval: timedelta) -> AsyncGenerator[StreamFrame | None]:
        """What to send, as it comes; None when there has been nothing for a while."""
        while True:
            while self._frames:
                frame = self._frames.popleft()
                if frame.message:
                    self.last_event_id = frame.message.delivery_seq
                yield frame
                if frame.is_last:
                    return
            self._has_frames.clear()
            try:
                async with asyncio.timeout(heartbeat_interval.total_seconds()):
                    await self._has_frames.wait()
            except TimeoutError:
                yield None

    def _update_free_slots(self) -> None:
        self.waiter.free_slots = MAX_MESSAGES_IN_FLIGHT - len(self.in_flight)


def serialize_message(message: ClaimedMessage) -> dict[str, Any]:
    """A message as clients read it. Its callback URL is not for them."""
    return {
        "id": str(message.id),
        "conversationKey": message.conversation_key,
        "kakaoPayload": strip_callback_url(message.kakao_payload),
        "normalized": message.normalized,
        "createdAt": format_rfc3339(message.created_at),
        "callbackExpiresAt": to_epoch_ms(message.callback_expires_at) if message.callback_expires_at else None,
        "deliveryCount": message.attempt,
    }


def strip_callback_url(payload: dict[str, Any]) -> dict[str, Any]:
    """What Kakao sent, but for the callback: whoever has its URL can answer in the bot's name."""
    request = payload.get("userRequest")
    if not isinstance(request, dict):
        return payload
    kept = cast("dict[str, Any]", request)
    return payload | {"userRequest": {name: value for name, value in kept.items() if name != "callbackUrl"}}


def format_rfc3339(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_epoch_ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


Q = load_queries(__file__)

CONTROL_EVENT_LOOKBACK = timedelta(minutes=1)
CONTROL_EVENT_RETENTION = timedelta(minutes=10)


class ControlEventKind(StrEnum):
    PAIRED = "paired"
    UNPAIRED = "unpaired"
    DISABLED = "disabled"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class ControlEvent:
    """Something that happened to an account, or to one session of it."""

    id: int
    kind: str
    account_id: UUID | None
    session_id: UUID | None
    data: dict[str, Any]


async def send_control_event(
    tx: Tx, kind: ControlEventKind, *, account: UUID | None, session: UUID | None = None, **data: object
) -> None:
    """Let every open stream of the account know, or only those of one session."""
    await tx.run(Q.insert_control_event, kind=kind, account=account, session=session, data=data)
    tx.notify(Channel.RELAY)


async def list_recent_control_events(tx: Tx, elapsed: timedelta) -> list[ControlEvent]:
    """Everything that happened since somebody last looked, and in the minute before, the oldest first."""
    return await tx.all(ControlEvent, Q.list_recent_control_events, back=CONTROL_EVENT_LOOKBACK + elapsed)


async def find_seen_control_event_ids(tx: Tx, account: UUID | None, session: UUID | None) -> set[int]:
    """The news that are no news to somebody who comes now."""
    return {
        *await tx.column(
            Q.find_seen_control_event_ids,
            back=CONTROL_EVENT_RETENTION + CONTROL_EVENT_LOOKBACK,
            account=account,
            session=session,
        )
    }


async def purge_control_events(tx: Tx, batch: int) -> int:
    return await tx.run(Q.purge_control_events, keep=CONTROL_EVENT_RETENTION, batch=batch)
