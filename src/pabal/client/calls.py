"""The calls both clients make: what is sent, and what its answer means."""

import traceback
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import UUID, uuid4

import msgspec

from pabal.client.errors import KINDS, Invalid, Refused, Unavailable
from pabal.client.hub import Event
from pabal.client.outcomes import Dead, Retry, Said, Snooze
from pabal.client.wire import Credentials, Flow, Send, call, read

Kind = TypeVar("Kind")

MOST = 1000
"""Events or receipts in one call."""
HEAVIEST = 1_000_000
"""Bytes in one call; a hub takes 1 MiB unless it was told otherwise."""
LONGEST_TEXT, LONGEST_CODE = 8000, 100
LONGEST_WAIT = 86_400.0


class Published(msgspec.Struct, frozen=True):
    """An event the hub has recorded."""

    id: UUID
    status: str
    created_at: datetime


class Item(msgspec.Struct, frozen=True):
    """What became of one event of a batch: 202 or 200 with its id, else why not."""

    status: int
    id: UUID | None = None
    code: str | None = None
    detail: str | None = None

    @property
    def refusal(self) -> Refused:
        """Why it was not published, if it has no id."""
        return KINDS.get(self.status, Refused)(self.status, self.code or "refused", self.detail or "no reason given")


class Items(msgspec.Struct, frozen=True):
    results: list[Item]


class Claimed(Event, frozen=True, kw_only=True):
    """An event in our hands until its lease ends; `receipt` is what to show when it is done."""

    receipt: str
    attempt: int = 0
    retry_count: int = 0
    max_retries: int = 3

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "attempt", self.retry_count + 1)


class ClaimedEvents(msgspec.Struct, frozen=True):
    events: list[Claimed]


class Settled(msgspec.Struct, frozen=True):
    """Whether a receipt still held (200) or its lease is lost (409)."""

    receipt: str
    status: int

    @property
    def held(self) -> bool:
        return self.status == 200  # noqa: PLR2004 HTTP's own


class SettledAll(msgspec.Struct, frozen=True):
    results: list[Settled]


class Nack(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is said of events that are not done. Equal ones are sent together."""

    error: str
    outcome: str = "retry"
    retry_after: float | None = None
    error_code: str | None = None
    error_stack: str | None = None


def draft(event_type: str, payload: Mapping[str, Any] | None, more: Mapping[str, Any]) -> msgspec.Raw:
    """An event as the door takes it. It gets a key, so that sending it twice publishes it once."""
    said = {name: value for name, value in more.items() if value is not None}
    said = {"idempotency_key": str(uuid4()), **said, "event_type": event_type, "payload": payload or {}}
    return msgspec.Raw(msgspec.json.encode(said))


def drafts(events: Iterable[Mapping[str, Any]]) -> list[msgspec.Raw]:
    return [draft(each["event_type"], each.get("payload"), each) for each in events]


def post(who: Credentials, door: str, body: Any, kind: type[Kind], longer: float = 0.0) -> Flow[Kind]:
    return read(kind, (yield from call(who, Send("POST", door, msgspec.json.encode(body), longer=longer))))


def publish(who: Credentials, event: msgspec.Raw) -> Flow[Published]:
    return post(who, "/v1/queue/events", event, Published)


def publish_many(who: Credentials, events: Sequence[msgspec.Raw]) -> Flow[list[Item]]:
    """Publish these in their order, as many in one call as it takes."""
    results: list[Item] = []
    while len(results) < len(events):
        results += yield from publish_batch(who, first_of(events[len(results) : len(results) + MOST]))
    return results


def publish_batch(who: Credentials, events: Sequence[msgspec.Raw]) -> Flow[list[Item]]:
    """Publish these in one call. If the hub cannot read it, find the event it cannot read: that one fails alone."""
    try:
        items = yield from post(who, "/v1/queue/events/batch", {"events": events}, Items)
    except Invalid as error:
        if len(events) == 1:
            return [Item(error.status, code=error.code, detail=error.detail)]
    else:
        if len(items.results) != len(events):
            raise Unavailable(f"{len(events)} events, and an answer about {len(items.results)}")
        return items.results
    middle = len(events) // 2
    first = yield from publish_batch(who, events[:middle])
    return first + (yield from publish_batch(who, events[middle:]))


def first_of(events: Sequence[msgspec.Raw]) -> Sequence[msgspec.Raw]:
    """As many from the front as one body may hold; at least one, which the hub may then refuse."""
    size = 0
    for count, event in enumerate(events):
        size += len(bytes(event)) + 1
        if size > HEAVIEST and count:
            return events[:count]
    return events


def claim(who: Credentials, *, limit: int, wait: float, lease: int) -> Flow[list[Claimed]]:
    body = {"limit": limit, "wait": round(wait * 1000), "lease_seconds": lease}
    return (yield from post(who, "/v1/queue/claim", body, ClaimedEvents, longer=wait)).events


def ack(who: Credentials, receipts: Sequence[str]) -> Flow[list[Settled]]:
    return settled(who, "/v1/queue/ack", receipts, {})


def nack(who: Credentials, receipts: Sequence[str], said: Nack) -> Flow[list[Settled]]:
    return settled(who, "/v1/queue/nack", receipts, msgspec.to_builtins(said))


def extend(who: Credentials, receipts: Sequence[str], lease: int) -> Flow[list[Settled]]:
    return settled(who, "/v1/queue/extend", receipts, {"lease_seconds": lease})


def settled(who: Credentials, door: str, receipts: Sequence[str], said: dict[str, Any]) -> Flow[list[Settled]]:
    results: list[Settled] = []
    for start in range(0, len(receipts), MOST):
        body = {"receipts": receipts[start : start + MOST], **said}
        results += (yield from post(who, door, body, SettledAll)).results
    return results


def show(who: Credentials, event_id: str) -> Flow[dict[str, Any]]:
    return read(dict[str, Any], (yield from call(who, Send("GET", f"/v1/queue/events/{quote(event_id, '')}"))))


def cancel(who: Credentials, event_id: str) -> Flow[dict[str, Any]]:
    return post(who, f"/v1/queue/events/{quote(event_id, '')}/cancel", {}, dict[str, Any])


def meant(said: object) -> Nack | None:
    """What a handler said or raised, as the hub takes it; None for done."""
    match said:
        case Dead():
            return nacked(said.why, "dead")
        case Snooze():
            return nacked(said.why, "snooze", after=said.after)
        case Retry():
            return nacked(said.why, after=said.after)
        case Said():
            return nacked(said.why)
        case BaseException():
            stack = "".join(traceback.format_exception(said))[-LONGEST_TEXT:]
            name = type(said).__name__
            return nacked(f"{name}: {said}", code=name[:LONGEST_CODE], stack=stack)
        case _:
            return None


def nacked(
    why: str, outcome: str = "retry", *, after: float | None = None, code: str | None = None, stack: str | None = None
) -> Nack:
    """Whatever was said, within what the hub takes: a failure that cannot be told would never end."""
    bounded = None if after is None else min(max(after, 0.0), LONGEST_WAIT)
    return Nack(plain(why)[:LONGEST_TEXT] or "failed", outcome, bounded, code, stack and plain(stack))


def plain(text: str) -> str:
    """Without what neither JSON nor PostgreSQL can keep."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


GIVEN_BACK = nacked("given back", "snooze", after=0.0)
"""Nobody's fault, and somebody else's turn."""
