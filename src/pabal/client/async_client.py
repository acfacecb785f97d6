"""A client that awaits."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, cast
from uuid import UUID

import httpx2

from pabal.client.batching import AsyncBuffer
from pabal.client.consumer import Consumer
from pabal.client.requests import (
    BatchPublishItem,
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


class AsyncClient:
    """A service's way to its hub; tasks may share it. Use it as a context manager, or close it."""

    def __init__(self, address: str, service: str, secret: str, *, timeout: float = 30.0) -> None:
        self._http = httpx2.AsyncClient(base_url=address, follow_redirects=False)
        self._credentials = ServiceCredentials(service, secret)
        self._timeout = timeout
        self._token_lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def publish(
        self, event_type: str, payload: Mapping[str, Any] | None = None, **options: Any
    ) -> PublishedEvent:
        """Publish an event; `more` is what the door takes besides, such as target_service or priority."""
        return await self._run_flow(publish_flow(self._credentials, encode_event(event_type, payload, options)))

    async def publish_many(self, events: Sequence[Mapping[str, Any]]) -> list[BatchPublishItem]:
        """Publish many, a thousand at a time, in this order; each is told what became of it."""
        return await self._run_flow(publish_many_flow(self._credentials, encode_events(events)))

    def buffer(
        self, *, max_events: int = 10_000, flush_interval: float = 0.1, retry_timeout: float = 60.0
    ) -> AsyncBuffer:
        """Publish in batches: see AsyncBuffer."""
        return AsyncBuffer(
            lambda drafts: self._run_flow(publish_many_flow(self._credentials, drafts)),
            max_events,
            flush_interval,
            retry_timeout,
        )

    async def claim(self, limit: int = 10, *, wait: float = 0.0, lease: int = 30) -> list[PulledEvent]:
        """Fetch due events; `wait` (seconds, at most 30) for the first if there are none."""
        return await self._run_flow(claim_flow(self._credentials, limit=limit, wait=wait, lease=lease))

    async def ack(self, *receipts: str) -> list[SettleItem]:
        return await self._run_flow(ack_flow(self._credentials, receipts))

    async def nack(
        self, *receipts: str, error: str, delay: float | None = None, outcome: str = "retry"
    ) -> list[SettleItem]:
        """Say that events failed: again `after` seconds, or as the backoff says. `outcome` may be dead or snooze."""
        return await self._run_flow(nack_flow(self._credentials, receipts, build_nack(error, outcome, delay=delay)))

    async def extend(self, *receipts: str, lease: int = 30) -> list[SettleItem]:
        """Hold events longer."""
        return await self._run_flow(extend_flow(self._credentials, receipts, lease))

    async def get_event(self, event_id: UUID | str) -> dict[str, Any]:
        """An event with everything that became of it."""
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
        """Fetch and handle events, `concurrency` at once, until `stop`; what `handle` says or raises is settled.

        `handle` may be a plain function: it runs in a thread. Leases are kept while it runs; if one is lost, its
        handler is cancelled. After `stop`, handlers have `grace` seconds to finish; what is left is given back. A look
        for events that is under way is waited for, at most `wait` seconds, so that what it brings is not left lying.
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
            answer = await self._http.request(
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
