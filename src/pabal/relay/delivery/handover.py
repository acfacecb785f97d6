"""Hand new messages to the open streams of this process, in the statement that stores them.

The statement leases the message to the stream, so no claim and no notification is needed. It decides by itself: the
stream must be active, and nothing of the account may be waiting. Otherwise the message is queued as usual.

The ids of a stream's events ascend, because a client that reconnects names the last one it has. So one statement at a
time numbers the messages of a stream: while one that may hand over is under way, nothing is claimed for the stream, and
during a claim nothing is handed over.
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

from pabal.core.ids import new_id
from pabal.queue.long_poll import LongPoll
from pabal.queue.open_streams import OpenStreams
from pabal.relay.delivery.lane import ClaimedMessage, MessagePollRequest
from pabal.relay.delivery.stream import RelayStream

MAX_REMEMBERED_CONVERSATIONS = 10_000
"""Conversations whose account is kept in memory; the one that was stored first is forgotten first."""
MAX_UNCLEAR_MESSAGES = 10_000
"""Further ones are delivered when their lease ends."""


@dataclass(frozen=True, slots=True)
class ReservedStreams:
    """The stream that each message of a statement may be handed to, and their common lease."""

    streams: Sequence[RelayStream | None]
    lease: UUID = field(default_factory=new_id)


class StreamHandover:
    """Reserves streams for messages, and delivers those that were handed over.

    The account of a conversation is only known to the database, so the account of its previous message is a hint. The
    statement checks it.
    """

    def __init__(
        self, streams: OpenStreams[UUID, RelayStream], long_poll: LongPoll[MessagePollRequest, ClaimedMessage]
    ) -> None:
        self._streams = streams
        self._long_poll = long_poll
        self._accounts: dict[str, UUID] = {}
        self.unclear: dict[UUID, UUID] = {}
        """Messages, with their leases, of statements whose answer was lost: if one was handed over, its stream did not
        learn of it. They are queued before the next message is stored, so that a conversation stays in order."""

    def remember_account(self, conversation_key: str, account_id: UUID) -> None:
        """Keep the account of a paired conversation for its next message."""
        self._accounts.pop(conversation_key, None)
        self._accounts[conversation_key] = account_id
        if len(self._accounts) > MAX_REMEMBERED_CONVERSATIONS:
            del self._accounts[next(iter(self._accounts))]

    def find_account(self, conversation_key: str) -> UUID | None:
        """The account that the conversation was paired with at its previous message, if this process has stored one."""
        return self._accounts.get(conversation_key)

    @contextmanager
    def reserving(self, conversation_keys: Iterable[str | None]) -> Generator[ReservedStreams]:
        """Reserve a stream for each message, given by its conversation, where there is one. None reserves nothing.

        Messages of one conversation get the same stream. If it has no room for one of them, those after it get none.
        """
        free_slots: dict[RelayStream, int] = {}
        chosen: dict[str, RelayStream | None] = {}
        reserved = [None if key is None else self._reserve(key, chosen, free_slots) for key in conversation_keys]
        try:
            yield ReservedStreams(reserved)
        finally:
            for stream in free_slots:
                stream.finish_handover()

    def add_unclear(self, message_ids: Iterable[UUID | None], reserved: ReservedStreams) -> None:
        """Remember the messages of a statement whose answer was lost."""
        for message_id, stream in zip(message_ids, reserved.streams, strict=True):
            if message_id and stream and len(self.unclear) < MAX_UNCLEAR_MESSAGES:
                self.unclear[message_id] = reserved.lease

    def deliver(self, messages: Iterable[tuple[RelayStream, ClaimedMessage]]) -> None:
        """Deliver the messages of a committed statement. A stream that was closed or parked meanwhile gets none."""
        for stream, message in sorted(messages, key=lambda pair: pair[1].delivery_seq):
            if self._is_subscribed(stream):
                stream.deliver([message])
            else:
                self._long_poll.release([message])

    def _reserve(
        self, key: str, chosen: dict[str, RelayStream | None], free_slots: dict[RelayStream, int]
    ) -> RelayStream | None:
        streams = self._streams.of_key(self._accounts.get(key)) if key not in chosen else (chosen[key],)
        stream = next((stream for stream in streams if stream and self._has_room(stream, free_slots)), None)
        chosen[key] = stream
        if stream is None:
            return None
        if stream not in free_slots:
            free_slots[stream] = stream.waiter.free_slots
            stream.reserve()
        free_slots[stream] -= 1
        return stream

    def _has_room(self, stream: RelayStream, free_slots: dict[RelayStream, int]) -> bool:
        if stream in free_slots:
            return free_slots[stream] > 0
        return (
            stream.waiter.free_slots > 0
            and self._is_subscribed(stream)
            and not self._long_poll.is_claiming(stream.poll_request)
        )

    def _is_subscribed(self, stream: RelayStream) -> bool:
        return stream.account_id is not None and self._long_poll.is_subscribed(stream.poll_request, stream.waiter)
