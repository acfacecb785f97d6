"""The sync client."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, cast
from uuid import UUID

import httpx2

from pabal_client import requests
from pabal_client.batching import Buffer
from pabal_client.errors import ApiError, HubUnavailableError, RateLimitError
from pabal_client.gathering import Gatherer
from pabal_client.requests import (
    BatchPublishItem,
    Nack,
    NackOutcome,
    PublishedEvent,
    PulledEvent,
    SettleItem,
    ack_flow,
    build_nack,
    cancel_event_flow,
    claim_flow,
    encode_event,
    encode_events,
    extend_flow,
    get_event_flow,
    nack_flow,
    nack_from_result,
    publish_many_flow,
)
from pabal_client.transport import (
    NO_RESPONSE,
    Flow,
    FlowStep,
    HubResponse,
    RunExclusively,
    SendRequest,
    ServiceCredentials,
    SleepFor,
)

ResultT = TypeVar("ResultT")

log = logging.getLogger(__name__)

POLL_WAIT = 20.0
RETRY_PAUSE = 2.0
"""Seconds between claims while the hub is unavailable."""


class Client:
    """A sync client for one service; threads may share it. Use it as a context manager, or close it."""

    def __init__(self, address: str, service: str, secret: str, *, timeout: float = 30.0) -> None:
        self._http = httpx2.Client(base_url=address, follow_redirects=False)
        self._credentials = ServiceCredentials(service, secret)
        self._timeout = timeout
        self._token_lock = threading.Lock()
        self._gatherer = Gatherer(self._run_flow, self._credentials)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def publish(self, event_type: str, payload: Mapping[str, Any] | None = None, **options: Any) -> PublishedEvent:
        """Publish an event. Options are the other fields of the endpoint, such as target_service or priority.

        Returns when the event is durable. Concurrent calls share a request.
        """
        return self._gatherer.publish(encode_event(event_type, payload, options))

    def publish_many(self, events: Sequence[Mapping[str, Any]]) -> list[BatchPublishItem]:
        """Publish events in this order, up to 1,000 per request; return one result per event."""
        return self._run_flow(publish_many_flow(self._credentials, encode_events(events)))

    def buffer(self, *, max_events: int = 10_000, flush_interval: float = 0.1, retry_timeout: float = 60.0) -> Buffer:
        """Publish in batches. See Buffer."""
        return Buffer(
            lambda drafts: self._run_flow(publish_many_flow(self._credentials, drafts)),
            max_events,
            flush_interval,
            retry_timeout,
        )

    def claim(self, limit: int = 10, *, wait: float = 0.0, lease: int = 30) -> list[PulledEvent]:
        """Claim due events. If there are none, wait up to `wait` seconds (at most 30) for the first."""
        return self._run_flow(claim_flow(self._credentials, limit=limit, wait=wait, lease=lease))

    def ack(self, *receipts: str) -> list[SettleItem]:
        return self._run_flow(ack_flow(self._credentials, receipts))

    def nack(
        self, *receipts: str, error: str, delay: float | None = None, outcome: NackOutcome = "retry"
    ) -> list[SettleItem]:
        """Report failed events: retry after `delay` seconds or the backoff. `outcome` may also be dead or snooze."""
        return self._run_flow(nack_flow(self._credentials, receipts, build_nack(error, outcome, delay=delay)))

    def extend(self, *receipts: str, lease: int = 30) -> list[SettleItem]:
        """Extend the lease of events."""
        return self._run_flow(extend_flow(self._credentials, receipts, lease))

    def get_event(self, event_id: UUID | str) -> dict[str, Any]:
        """Get an event with its attempts, deliveries, dead letters and trace."""
        return self._run_flow(get_event_flow(self._credentials, str(event_id)))

    def cancel(self, event_id: UUID | str) -> None:
        self._run_flow(cancel_event_flow(self._credentials, str(event_id)))

    def consume(
        self,
        handle: Callable[[PulledEvent], object],
        *,
        limit: int = 10,
        lease: int = 30,
        wait: float = POLL_WAIT,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Claim, handle and settle events, one after the other, until `should_stop` returns true.

        Waits while the hub is unavailable. Releases unhandled events at the end. If a handler takes longer than the
        lease, another consumer gets the event.
        """
        while not should_stop():
            try:
                events = self.claim(limit, wait=wait, lease=lease)
                self._handle_batch(events, handle, lease, should_stop)
            except (HubUnavailableError, RateLimitError) as error:
                log.warning("hub unavailable: %s", error)
                time.sleep(RETRY_PAUSE)

    def _handle_batch(
        self,
        events: list[PulledEvent],
        handle: Callable[[PulledEvent], object],
        lease: int,
        should_stop: Callable[[], bool],
    ) -> None:
        extended_at = time.monotonic()
        try:
            while events and not should_stop():
                if time.monotonic() - extended_at > lease / 3:
                    held = {item.receipt for item in self.extend(*event_receipts(events), lease=lease) if item.held}
                    events[:] = [event for event in events if event.receipt in held]
                    extended_at = time.monotonic()
                    continue
                self._settle(events[0], nack_from_handler(handle, events[0]))
                events.pop(0)
        finally:
            if events:
                self._run_flow(nack_flow(self._credentials, event_receipts(events), requests.RELEASE_NACK))

    def _settle(self, event: PulledEvent, nack: Nack | None) -> None:
        receipts = [event.receipt]
        try:
            [result] = self._run_flow(
                nack_flow(self._credentials, receipts, nack) if nack else ack_flow(self._credentials, receipts)
            )
        except RateLimitError:
            raise  # handled but not settled: consume waits
        except ApiError as error:
            log.error("settle refused: %s %s", event.id, error)
            return
        if not result.held:
            log.warning("lease lost: %s", event.id)

    def _run_flow(self, flow: Flow[ResultT]) -> ResultT:
        try:
            step = next(flow)
            while True:
                step = flow.send(self._run_step(step))
        except StopIteration as end:
            return cast("ResultT", end.value)

    def _run_step(self, step: FlowStep) -> HubResponse:
        match step:
            case SendRequest():
                return self._send(step)
            case SleepFor():
                time.sleep(step.seconds)
            case RunExclusively():
                with self._token_lock:
                    self._run_flow(step.flow())
        return NO_RESPONSE

    def _send(self, request: SendRequest) -> HubResponse:
        try:
            response = self._http.request(
                request.method,
                request.path,
                content=request.body,
                data=request.form,
                headers=dict(request.headers),
                auth=request.basic_auth,
                timeout=self._timeout + request.extra_timeout,
            )
        except httpx2.HTTPError as error:
            return HubResponse(0, {}, f"{type(error).__name__}: {error}".encode())
        return HubResponse(response.status_code, response.headers, response.content)


def event_receipts(events: Sequence[PulledEvent]) -> list[str]:
    return [event.receipt for event in events]


def nack_from_handler(handle: Callable[[PulledEvent], object], event: PulledEvent) -> Nack | None:
    try:
        return nack_from_result(handle(event))
    except Exception as error:  # noqa: BLE001 any exception is a failed attempt
        return nack_from_result(error)
