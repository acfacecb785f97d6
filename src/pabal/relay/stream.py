"""A stream: one client that stays connected, what it is to be told next, and what it holds."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

from pabal.queue.desk import Seat
from pabal.relay.lane import HeldMessage, Waiting

HOLD = timedelta(seconds=30)
MOST_HELD = 256
"""Messages a stream may have in hand; a client that answers none of them is not buried."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One event on the wire. `message` is what it hands out, if it does; `ends` closes the stream after it."""

    name: str
    data: dict[str, Any]
    message: HeldMessage | None = None
    ends: bool = False


@dataclass(slots=True, eq=False)
class Stream:
    """An open stream. `token` is what opened it: a session, or the account itself by its relay token."""

    id: UUID
    token: UUID
    session: UUID | None
    account: UUID | None
    last: int | None
    """The last id the client has: that of the newest message it was sent."""
    waits: bool = False
    """Whether its session has no user: until one is let in, or the wait is over."""
    knew: set[int] | None = None
    """News that are none to it: what was so when it was opened, and what it was told. None while it is being opened."""
    seat: Seat[HeldMessage] = field(init=False)
    held: dict[UUID, UUID] = field(init=False, default_factory=dict[UUID, UUID])
    """What it was handed and has not answered, with the lease of each."""
    ended: bool = field(init=False, default=False)
    _frames: deque[Frame] = field(init=False, default_factory=deque[Frame])
    _more: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.seat = Seat(MOST_HELD, self.hand)

    @property
    def holder(self) -> str:
        return f"stream:{self.token}:{self.id}"

    @property
    def waiting(self) -> Waiting:
        assert self.account is not None
        return Waiting(self.account, self.holder, HOLD)

    def hold(self, ids: Iterable[UUID], lease: UUID) -> None:
        """Hold what the client has already, from an earlier stream."""
        self.held.update(dict.fromkeys(ids, lease))
        self._count()

    def hand(self, messages: Sequence[HeldMessage]) -> None:
        for message in messages:
            self.held[message.id] = message.lease
            self.tell(Frame("message", as_told(message), message))
        self._count()

    def tell(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._more.set()

    def settled(self, ids: Iterable[UUID]) -> bool:
        """Let go of what was answered, acknowledged or lost; True when a full stream has room again."""
        full = self.seat.free <= 0
        for each in ids:
            self.held.pop(each, None)
        self._count()
        return full and self.seat.free > 0

    def take_back(self, conversation_key: str) -> None:
        """Do not hand out what is no longer its: the conversation left before this was sent."""
        gone = {
            frame.message.id
            for frame in self._frames
            if frame.message and frame.message.conversation_key == conversation_key
        }
        self._frames = deque(frame for frame in self._frames if not (frame.message and frame.message.id in gone))
        self.settled(gone)

    def unsent(self) -> list[HeldMessage]:
        return [frame.message for frame in self._frames if frame.message]

    def hang_up(self) -> None:
        """End without a word: the client has gone, or the hub is about to."""
        self._frames.appendleft(Frame("", {}, ends=True))
        self._more.set()

    def clear(self) -> None:
        """Hand out nothing more of what waits to be sent."""
        unsent = [message.id for message in self.unsent()]
        self._frames = deque(frame for frame in self._frames if not frame.message)
        self.settled(unsent)

    async def frames(self, pulse: timedelta) -> AsyncGenerator[Frame | None]:
        """What to send, as it comes; None when there has been nothing for a while."""
        while True:
            while self._frames:
                frame = self._frames.popleft()
                if frame.message:
                    self.last = frame.message.handed
                yield frame
                if frame.ends:
                    return
            self._more.clear()
            try:
                async with asyncio.timeout(pulse.total_seconds()):
                    await self._more.wait()
            except TimeoutError:
                yield None

    def _count(self) -> None:
        self.seat.free = MOST_HELD - len(self.held)


def as_told(message: HeldMessage) -> dict[str, Any]:
    """A message as clients read it. Its callback URL is not for them."""
    return {
        "id": str(message.id),
        "conversationKey": message.conversation_key,
        "kakaoPayload": without_callback(message.kakao_payload),
        "normalized": message.normalized,
        "createdAt": rfc3339(message.created_at),
        "callbackExpiresAt": epoch_ms(message.callback_expires_at) if message.callback_expires_at else None,
        "deliveryCount": message.attempt,
    }


def without_callback(payload: dict[str, Any]) -> dict[str, Any]:
    """What Kakao sent, but for the callback: whoever has its URL can answer in the bot's name."""
    request = payload.get("userRequest")
    if not isinstance(request, dict):
        return payload
    kept = cast("dict[str, Any]", request)
    return payload | {"userRequest": {name: value for name, value in kept.items() if name != "callbackUrl"}}


def rfc3339(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch_ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
