"""The async client."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, cast
from uuid import UUID

import httpx2

from pabal_client.batching import AsyncBuffer
from pabal_client.consumer import Consumer
from pabal_client.gathering import AsyncGatherer
from pabal_client.requests import (
    BatchPublishItem,
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


class AsyncClient:
    """An async client for one service; tasks may share it. Use it as a context manager, or close it."""

    def __init__(self, address: str, service: str, secret: str, *, timeout: float = 30.0) -> None:
        self._http = httpx2.AsyncClient(base_url=address, follow_redirects=False)
        self._credentials = ServiceCredentials(service, secret)
        self._timeout = timeout
        self._token_lock = asyncio.Lock()
        self._gatherer = AsyncGatherer(self._run_flow, self._credentials)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def publish(
        self, event_type: str, payload: Mapping[str, Any] | None = None, **options: Any
    ) -> PublishedEvent:
        """Publish an event. Options are the other fields of the endpoint, such as target_service or priority.

        Returns when the event is durable. Concurrent calls share a request.
        """
        return await self._gatherer.publish(encode_event(event_type, payload, options))

    async def publish_many(self, events: Sequence[Mapping[str, Any]]) -> list[BatchPublishItem]:
        """Publish events in this order, up to 1,000 per request; return one result per event."""
        return await self._run_flow(publish_many_flow(self._credentials, encode_events(events)))

    def buffer(
        self, *, max_events: int = 10_000, flush_interval: float = 0.1, retry_timeout: float = 60.0
    ) -> AsyncBuffer:
        """Publish in batches. See AsyncBuffer."""
        return AsyncBuffer(
            lambda drafts: self._run_flow(publish_many_flow(self._credentials, drafts)),
            max_events,
            flush_interval,
            retry_timeout,
        )

    async def claim(self, limit: int = 10, *, wait: float = 0.0, lease: int = 30) -> list[PulledEvent]:
        """Claim due events. If there are none, wait up to `wait` seconds (at most 30) for the first."""
        return await self._run_flow(claim_flow(self._credentials, limit=limit, wait=wait, lease=lease))

    async def ack(self, *receipts: str) -> list[SettleItem]:
        return await self._run_flow(ack_flow(self._credentials, receipts))

    async def nack(
        self, *receipts: str, error: str, delay: float | None = None, outcome: NackOutcome = "retry"
    ) -> list[SettleItem]:
        """Report failed events: retry after `delay` seconds or the backoff. `outcome` may also be dead or snooze."""
        return await self._run_flow(nack_flow(self._credentials, receipts, build_nack(error, outcome, delay=delay)))

    async def extend(self, *receipts: str, lease: int = 30) -> list[SettleItem]:
        """Extend the lease of events."""
        return await self._run_flow(extend_flow(self._credentials, receipts, lease))

    async def get_event(self, event_id: UUID | str) -> dict[str, Any]:
        """Get an event with its attempts, deliveries, dead letters and trace."""
        return await self._run_flow(get_event_flow(self._credentials, str(event_id)))

    async def cancel(self, event_id: UUID | str) -> None:
        await self._run_flow(cancel_event_flow(self._credentials, str(event_id)))

    async def consume(
        self,
        handle: Callable[[PulledEvent], Any],
        *,
        limit: int = 100,
        concurrency: int = 10,
        lease: int = 30,
        wait: float = 5.0,
        grace: float = 10.0,
        stop: asyncio.Event | None = None,
    ) -> None:
        """Claim, handle and settle events, up to `concurrency` at once, until `stop` is set.

        A sync `handle` runs in a thread. Leases are extended while it runs; if one is lost, its handler is cancelled.
        After `stop`, handlers have `grace` seconds to finish; the remaining events are released. A claim in progress
        is awaited, for at most `wait` seconds, so that its events are not stuck until their lease ends.
        """
        consumer = Consumer(self._run_flow, self._credentials, handle, limit, concurrency, lease, wait, grace)
        await consumer.run(stop or asyncio.Event())

    async def _run_flow(self, flow: Flow[ResultT]) -> ResultT:
        try:
            step = next(flow)
            while True:
                step = flow.send(await self._run_step(step))
        except StopIteration as end:
            return cast("ResultT", end.value)

    async def _run_step(self, step: FlowStep) -> HubResponse:
        match step:
            case SendRequest():
                return await self._send(step)
            case SleepFor():
                await asyncio.sleep(step.seconds)
            case RunExclusively():
                async with self._token_lock:
                    await self._run_flow(step.flow())
        return NO_RESPONSE

    async def _send(self, request: SendRequest) -> HubResponse:
        try:
            response = await self._http.request(
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
