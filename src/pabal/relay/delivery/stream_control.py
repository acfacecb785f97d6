"""Apply control events to open streams: pairings, unpairings, disabled accounts, revoked tokens, ended waits."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Literal
from uuid import UUID

from pabal.core.errors import PabalError
from pabal.core.log import get_logger
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.queue.open_streams import OpenStreams
from pabal.relay.delivery import control_events
from pabal.relay.delivery.control_events import ControlEvent, ControlEventKind, list_recent_control_events
from pabal.relay.delivery.stream import RelayStream, StreamFrame
from pabal.relay.delivery.takeover import hold_parked_messages, requeue_parked_messages

Q = load_queries(__file__)
log = get_logger()

EndedWaitReason = Literal["lapsed", "refused", "disabled"]

DISABLED_ERROR = {"code": "ACCOUNT_DISABLED", "message": "the account is disabled"}
REVOKED_ERROR = {"code": "UNAUTHORIZED", "message": "the token is no longer valid"}
ENDED_WAIT_FRAMES: dict[EndedWaitReason, tuple[str, dict[str, str]]] = {
    "lapsed": ("pairing_expired", {"reason": "the code was not used in time"}),
    "refused": ("pairing_expired", {"reason": "the pairing was not approved"}),
    "disabled": ("error", DISABLED_ERROR),
}
"""The last event of a stream whose session no longer waits for a user."""


@dataclass(frozen=True, slots=True)
class EndedWait:
    session_id: UUID
    reason: EndedWaitReason


class StreamController:
    """Reads control events and applies them to the streams of this process.

    `start` lets a stream's messages come after its first pairing; `stop` ends them before its last frame; `park` ends
    them because a newer stream of the token gets them.
    """

    def __init__(
        self,
        db: Database,
        streams: OpenStreams[UUID, RelayStream],
        start: Callable[[RelayStream], None],
        stop: Callable[[RelayStream], None],
        park: Callable[[RelayStream], None],
    ) -> None:
        self._db = db
        self._streams = streams
        self._start = start
        self._stop = stop
        self._park = park
        self._last_read = monotonic()

    def reset(self) -> None:
        """Start reading from now: no stream was open before."""
        self._last_read = monotonic()

    async def dispatch_events(self) -> None:
        """Read the events since the previous read and apply each once to every stream it concerns."""
        elapsed = timedelta(seconds=monotonic() - self._last_read)
        if elapsed > control_events.CONTROL_EVENT_RETENTION:
            self._streams.close_all()  # some events are purged unread; reconnecting clients are authenticated anew
        waiting = [stream for stream in self._streams if stream.session_id and stream.awaits_pairing]
        started = monotonic()
        async with self._db.autocommit() as tx:
            events = await list_recent_control_events(tx, elapsed)
            ended_waits = await self._find_ended_waits(tx, waiting) if waiting else {}
            for event in events:
                await self._dispatch(tx, event)
        self._last_read = started
        for stream in waiting:
            if stream.awaits_pairing and (reason := ended_waits.get(stream.session_id)):
                name, data = ENDED_WAIT_FRAMES[reason]
                self._end_stream(stream, name, data)

    async def _dispatch(self, tx: Tx, event: ControlEvent) -> None:
        for stream in self._affected_streams(event):
            if event.id in stream.seen_ids:
                continue
            try:
                await self._apply(tx, stream, event)
            except PabalError:  # the next read tries again
                raise
            except Exception:  # a malformed event must not block the events after it
                log.exception("control event failed", event_id=event.id)
            stream.seen_ids.add(event.id)

    def _affected_streams(self, event: ControlEvent) -> list[RelayStream]:
        """The account's streams, and those of the event's session that has no account yet."""
        streams = self._streams.of_key(event.account_id)
        if event.session_id is not None:
            streams += [
                stream for stream in self._streams if stream.session_id == event.session_id and stream not in streams
            ]
        match event.kind:
            case ControlEventKind.REVOKED if not event.data.get("all"):
                return [stream for stream in streams if stream.session_id is None]
            case ControlEventKind.PARKED | ControlEventKind.ACTIVATED:
                return [stream for stream in streams if str(stream.id) in event.data["streams"]]
            case _:
                return streams

    async def _apply(self, tx: Tx, stream: RelayStream, event: ControlEvent) -> None:
        match event.kind:
            case ControlEventKind.PAIRED:
                await self._apply_pairing(tx, stream, event)
            case ControlEventKind.UNPAIRED:
                stream.drop_conversation(str(event.data.get("conversationKey")))
                stream.enqueue_frame(StreamFrame("unpaired", event.data))
            case ControlEventKind.DISABLED:
                self._end_stream(stream, "error", DISABLED_ERROR)
            case ControlEventKind.REVOKED:
                self._end_stream(stream, "error", REVOKED_ERROR)
            case ControlEventKind.PARKED:
                self._park(stream)
                await requeue_parked_messages(tx, stream)
                if str(stream.id) in event.data["reset"]:
                    stream.reset()
            case ControlEventKind.ACTIVATED:
                stream.is_parked = False
                await hold_parked_messages(tx, stream)
                self._start(stream)
            case _:
                log.warning("unknown control event", kind=event.kind)

    async def _apply_pairing(self, tx: Tx, stream: RelayStream, event: ControlEvent) -> None:
        is_first = stream.account_id is None and event.account_id is not None
        if is_first:
            await tx.run(Q.set_stream_account, id=stream.id, account=event.account_id)
            if stream not in self._streams:  # closed meanwhile
                return
            stream.account_id = event.account_id
            self._streams.add(stream, event.account_id)
        stream.awaits_pairing = False
        stream.enqueue_frame(StreamFrame("pairing_complete", event.data))
        if is_first:
            self._start(stream)

    def _end_stream(self, stream: RelayStream, name: str, data: dict[str, str]) -> None:
        if stream.ended:
            return
        stream.ended = True
        self._stop(stream)
        stream.enqueue_frame(StreamFrame(name, dict[str, object](data), is_last=True))

    @staticmethod
    async def _find_ended_waits(tx: Tx, waiting: Iterable[RelayStream]) -> dict[UUID | None, EndedWaitReason]:
        rows = await tx.all(EndedWait, Q.find_ended_waits, sessions=[stream.session_id for stream in waiting])
        return {row.session_id: row.reason for row in rows}
