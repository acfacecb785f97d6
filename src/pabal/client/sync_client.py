"""A client that waits."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, cast
from uuid import UUID

import httpx2

from pabal.client import requests
from pabal.client.batching import Buffer
from pabal.client.errors import ApiError, HubUnavailableError, RateLimitError
from pabal.client.requests import (
    BatchPublishItem,
    Nack,
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
    publish_flow,
    publish_many_flow,
)
from pabal.client.transport import (
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
"""Seconds between two looks while the hub is away."""


class Client:
    """A service's way to its hub; threads may share it. Use it as a context manager, or close it."""

    def __init__(self, address: str, service: str, secret: str, *, timeout: float = 30.0) -> None:
        self._http = httpx2.Client(base_url=address, follow_redirects=False)
        self._credentials = ServiceCredentials(service, secret)
        self._timeout = timeout
        self._token_lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def publish(self, event_type: str, payload: Mapping[str, Any] | None = None, **options: Any) -> PublishedEvent:
        """Publish an event; `more` is what the door takes besides, such as target_service or priority."""
        return self._run_flow(publish_flow(self._credentials, encode_event(event_type, payload, options)))

    def publish_many(self, events: Sequence[Mapping[str, Any]]) -> list[BatchPublishItem]:
        """Publish many, a thousand at a time, in this order; each is told what became of it."""
        return self._run_flow(publish_many_flow(self._credentials, encode_events(events)))

    def buffer(self, *, max_events: int = 10_000, flush_interval: float = 0.1, retry_timeout: float = 60.0) -> Buffer:
        """Publish in batches: see Buffer."""
        return Buffer(
            lambda drafts: self._run_flow(publish_many_flow(self._credentials, drafts)),
            max_events,
            flush_interval,
            retry_timeout,
        )

    def claim(self, limit: int = 10, *, wait: float = 0.0, lease: int = 30) -> list[PulledEvent]:
        """Fetch due events; `wait` (seconds, at most 30) for the first if there are none."""
        return self._run_flow(claim_flow(self._credentials, limit=limit, wait=wait, lease=lease))

    def ack(self, *receipts: str) -> list[SettleItem]:
        return self._run_flow(ack_flow(self._credentials, receipts))

    def nack(self, *receipts: str, error: str, delay: float | None = None, outcome: str = "retry") -> list[SettleItem]:
        """Say that events failed: again `after` seconds, or as the backoff says. `outcome` may be dead or snooze."""
        return self._run_flow(nack_flow(self._credentials, receipts, build_nack(error, outcome, delay=delay)))

    def extend(self, *receipts: str, lease: int = 30) -> list[SettleItem]:
        """Hold events longer."""
        return self._run_flow(extend_flow(self._credentials, receipts, lease))

    def get_event(self, event_id: UUID | str) -> dict[str, Any]:
        """An event with everything that became of it."""
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
        """Fetch and handle events one after the other until `until` says so; what `handle` says or raises is settled.

        While the hub is away it waits. What it holds when it ends is given back. One event that takes longer than the
        lease is handed to somebody else meanwhile.
        """
        while not should_stop():
            try:
                held = self.claim(limit, wait=wait, lease=lease)
                self._handle_batch(held, handle, lease, should_stop)
            except (HubUnavailableError, RateLimitError) as error:
                log.warning("hub away: %s", error)
                time.sleep(RETRY_PAUSE)

    def _handle_batch(
        self,
        held: list[PulledEvent],
        handle: Callable[[PulledEvent], object],
        lease: int,
        should_stop: Callable[[], bool],
    ) -> None:
        since = time.monotonic()
        try:
            while held and not should_stop():
                if time.monotonic() - since > lease / 3:
                    kept = {each.receipt for each in self.extend(*event_receipts(held), lease=lease) if each.held}
                    held[:] = [each for each in held if each.receipt in kept]
                    since = time.monotonic()
                    continue
                self._settle(held[0], nack_from_handler(handle, held[0]))
                held.pop(0)
        finally:
            if held:
                self._run_flow(nack_flow(self._credentials, event_receipts(held), requests.RELEASE_NACK))

    def _settle(self, event: PulledEvent, nack: Nack | None) -> None:
        mine = [event.receipt]
        try:
            [end] = self._run_flow(
                nack_flow(self._credentials, mine, nack) if nack else ack_flow(self._credentials, mine)
            )
        except RateLimitError:
            raise  # it is done and not yet settled: whoever runs us decides how long to wait
        except ApiError as error:
            log.error("settle refused: %s %s", event.id, error)
            return
        if not end.held:
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
            answer = self._http.request(
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
        return HubResponse(answer.status_code, answer.headers, answer.content)


def event_receipts(events: Sequence[PulledEvent]) -> list[str]:
    return [each.receipt for each in events]


def nack_from_handler(handle: Callable[[PulledEvent], object], event: PulledEvent) -> Nack | None:
    try:
        return nack_from_result(handle(event))
    except Exception as error:  # noqa: BLE001 whatever it is, the hub hears of it
        return nack_from_result(error)
