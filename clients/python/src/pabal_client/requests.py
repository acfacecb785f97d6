"""The API calls of both clients: request bodies and response types."""

import traceback
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlencode
from uuid import UUID, uuid4

import msgspec

from pabal_client.app import Event
from pabal_client.errors import ERRORS_BY_STATUS, ApiError, HubUnavailableError, ValidationFailedError
from pabal_client.options import PublishOptions, check_options
from pabal_client.outcomes import Dead, HandlerOutcome, Retry, Snooze
from pabal_client.transport import Flow, SendRequest, ServiceCredentials, call_flow, decode_response

ResponseT = TypeVar("ResponseT")
NackOutcome = Literal["retry", "dead", "snooze"]

FIELD_NAMES = {"target": "target_service", "source": "source_service"}
"""Options whose field in the API has another name."""
MAX_BATCH = 1000
"""Events or receipts per request."""
MAX_BODY_BYTES = 1_000_000
"""Bytes per request; a hub accepts 1 MiB by default."""
MAX_ERROR_CHARS, MAX_CODE_CHARS = 8000, 100
MAX_RETRY_DELAY = 86_400.0


class PublishedEvent(msgspec.Struct, frozen=True):
    """A recorded event."""

    id: UUID
    status: str
    created_at: datetime


class BatchPublishItem(msgspec.Struct, frozen=True):
    """The result for one event of a batch: status 202 or 200 with its id, or an error."""

    status: int
    id: UUID | None = None
    code: str | None = None
    detail: str | None = None
    event_status: str | None = None
    created_at: datetime | None = None

    @property
    def error(self) -> ApiError:
        """The error of an event without an id."""
        return ERRORS_BY_STATUS.get(self.status, ApiError)(
            self.status, self.code or "refused", self.detail or "no reason given"
        )


class BatchPublishResponse(msgspec.Struct, frozen=True):
    results: list[BatchPublishItem]


class PulledEvent(Event, frozen=True, kw_only=True):
    """An event claimed until its lease ends. Settle it with `receipt`."""

    receipt: str
    attempt: int = 0
    retry_count: int = 0
    max_retries: int = 3

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "attempt", self.retry_count + 1)


class ClaimResponse(msgspec.Struct, frozen=True):
    events: list[PulledEvent]


class ResultPage(msgspec.Struct, frozen=True):
    """A page of a list, as the API describes its items. Pass `cursor` to get the next page; None on the last."""

    items: list[dict[str, Any]]
    cursor: str | None = None


class SettleItem(msgspec.Struct, frozen=True):
    """The result for a receipt: 200, or 409 if its lease is lost."""

    receipt: str
    status: int

    @property
    def held(self) -> bool:
        return self.status == 200  # noqa: PLR2004 an HTTP status


class SettleResponse(msgspec.Struct, frozen=True):
    results: list[SettleItem]


class Nack(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of events that are not done. Equal ones are sent in one request."""

    error: str
    outcome: NackOutcome = "retry"
    retry_after: float | None = None
    error_code: str | None = None
    error_stack: str | None = None


def encode_event(event_type: str, payload: Mapping[str, Any] | None, options: Mapping[str, Any]) -> msgspec.Raw:
    """Encode an event. It gets an idempotency key, so that sending it twice publishes it once."""
    check_options("publish", options, PublishOptions)
    return encode_draft({**options, "event_type": event_type, "payload": payload})


def encode_events(events: Iterable[Mapping[str, Any]]) -> list[msgspec.Raw]:
    """Encode events. The hub refuses one with an unknown field, and only that one."""
    return [encode_draft({**check_names(event), "event_type": event["event_type"]}) for event in events]


def check_names(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raise TypeError for an option under its name in the API: it has one name in this package."""
    for name, field in FIELD_NAMES.items():
        if field in event:
            raise TypeError(f"publish_many() got an event with {field}; the option is {name}")
    return event


def encode_draft(event: Mapping[str, Any]) -> msgspec.Raw:
    fields = {FIELD_NAMES.get(name, name): value for name, value in event.items() if value is not None}
    return msgspec.Raw(msgspec.json.encode({"idempotency_key": str(uuid4()), "payload": {}, **fields}))


def post_flow(
    credentials: ServiceCredentials, path: str, body: Any, response_type: type[ResponseT], extra_timeout: float = 0.0
) -> Flow[ResponseT]:
    return decode_response(
        response_type,
        (
            yield from call_flow(
                credentials, SendRequest("POST", path, msgspec.json.encode(body), extra_timeout=extra_timeout)
            )
        ),
    )


def publish_flow(credentials: ServiceCredentials, event: msgspec.Raw) -> Flow[PublishedEvent]:
    return post_flow(credentials, "/v1/queue/events", event, PublishedEvent)


def publish_many_flow(credentials: ServiceCredentials, events: Sequence[msgspec.Raw]) -> Flow[list[BatchPublishItem]]:
    """Publish events in this order, as many per request as fit."""
    results: list[BatchPublishItem] = []
    while len(results) < len(events):
        results += yield from publish_batch_flow(
            credentials, fit_batch(events[len(results) : len(results) + MAX_BATCH])
        )
    return results


def publish_batch_flow(credentials: ServiceCredentials, events: Sequence[msgspec.Raw]) -> Flow[list[BatchPublishItem]]:
    """Publish events in one request. If the hub rejects it, split it until the invalid event fails alone."""
    try:
        return (yield from send_batch_flow(credentials, events))
    except ValidationFailedError as error:
        if len(events) == 1:
            return [BatchPublishItem(error.status, code=error.code, detail=error.detail)]
    middle = len(events) // 2
    first = yield from publish_batch_flow(credentials, events[:middle])
    return first + (yield from publish_batch_flow(credentials, events[middle:]))


def send_batch_flow(credentials: ServiceCredentials, events: Sequence[msgspec.Raw]) -> Flow[list[BatchPublishItem]]:
    """Publish events in one request."""
    response = yield from post_flow(credentials, "/v1/queue/events/batch", {"events": events}, BatchPublishResponse)
    if len(response.results) != len(events):
        raise HubUnavailableError(f"sent {len(events)} events, got {len(response.results)} results")
    return response.results


def fit_batch(events: Sequence[msgspec.Raw]) -> Sequence[msgspec.Raw]:
    """Return the first events that fit into one body; at least one, which the hub may then refuse."""
    size = 0
    for count, event in enumerate(events):
        size += len(bytes(event)) + 1
        if size > MAX_BODY_BYTES and count:
            return events[:count]
    return events


def claim_flow(credentials: ServiceCredentials, *, limit: int, wait: float, lease: int) -> Flow[list[PulledEvent]]:
    body = {"limit": limit, "wait": round(wait * 1000), "lease_seconds": lease}
    return (yield from post_flow(credentials, "/v1/queue/claim", body, ClaimResponse, extra_timeout=wait)).events


def ack_flow(credentials: ServiceCredentials, receipts: Sequence[str]) -> Flow[list[SettleItem]]:
    return settle_flow(credentials, "/v1/queue/ack", receipts, {})


def nack_flow(credentials: ServiceCredentials, receipts: Sequence[str], failure: Nack) -> Flow[list[SettleItem]]:
    return settle_flow(credentials, "/v1/queue/nack", receipts, msgspec.to_builtins(failure))


def extend_flow(credentials: ServiceCredentials, receipts: Sequence[str], lease: int) -> Flow[list[SettleItem]]:
    return settle_flow(credentials, "/v1/queue/extend", receipts, {"lease_seconds": lease})


def settle_flow(
    credentials: ServiceCredentials, path: str, receipts: Sequence[str], fields: dict[str, Any]
) -> Flow[list[SettleItem]]:
    results: list[SettleItem] = []
    for start in range(0, len(receipts), MAX_BATCH):
        body = {"receipts": receipts[start : start + MAX_BATCH], **fields}
        results += (yield from post_flow(credentials, path, body, SettleResponse)).results
    return results


def get_flow(
    credentials: ServiceCredentials, path: str, response_type: type[ResponseT], query: Mapping[str, Any] | None = None
) -> Flow[ResponseT]:
    filters = {name: value for name, value in (query or {}).items() if value is not None}
    path = f"{path}?{urlencode(msgspec.to_builtins(filters))}" if filters else path
    return decode_response(response_type, (yield from call_flow(credentials, SendRequest("GET", path))))


def get_event_flow(credentials: ServiceCredentials, event_id: str) -> Flow[dict[str, Any]]:
    return get_flow(credentials, f"/v1/queue/events/{quote(event_id, '')}", dict[str, Any])


def list_events_flow(credentials: ServiceCredentials, query: Mapping[str, Any]) -> Flow[ResultPage]:
    return get_flow(credentials, "/v1/queue/events", ResultPage, query)


def cancel_event_flow(credentials: ServiceCredentials, event_id: str) -> Flow[dict[str, Any]]:
    return post_flow(credentials, f"/v1/queue/events/{quote(event_id, '')}/cancel", {}, dict[str, Any])


def nack_from_result(result: object) -> Nack | None:
    """Map what a handler returned or raised; None for done. An outcome with wrong arguments is a failed attempt."""
    try:
        return build_nack_of_result(result)
    except Exception as error:  # noqa: BLE001 without a nack the event would keep its slot and its lease
        name = type(result).__name__
        return build_nack(f"{name} cannot be reported: {type(error).__name__}", code=name[:MAX_CODE_CHARS])


def build_nack_of_result(result: object) -> Nack | None:
    match result:
        case Dead():
            return build_nack(result.error, "dead")
        case Snooze():
            return build_nack(result.error, "snooze", delay=result.delay)
        case Retry():
            return build_nack(result.error, delay=result.delay)
        case HandlerOutcome():
            return build_nack(result.error)
        case BaseException():
            stack = "".join(traceback.format_exception(result))[-MAX_ERROR_CHARS:]
            name = type(result).__name__
            return build_nack(f"{name}: {result}", code=name[:MAX_CODE_CHARS], stack=stack)
        case _:
            return None


def build_nack(
    error: str,
    outcome: NackOutcome = "retry",
    *,
    delay: float | None = None,
    code: str | None = None,
    stack: str | None = None,
) -> Nack:
    """Build a nack within the limits of the API: one that the hub rejects would never be settled."""
    bounded = None if delay is None else min(max(delay, 0.0), MAX_RETRY_DELAY)
    text = storable_text(str(error))[:MAX_ERROR_CHARS] or "failed"
    return Nack(text, outcome, bounded, code, stack and storable_text(stack))


def storable_text(text: str) -> str:
    """Replace NUL and lone surrogates, which JSON or PostgreSQL cannot store."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


RELEASE_NACK = build_nack("released", "snooze", delay=0.0)
"""Releases events: counts no attempt, and another consumer may claim them at once."""
