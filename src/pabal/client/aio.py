"""A client that awaits."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, cast
from uuid import UUID

import httpx2

from pabal.client import calls
from pabal.client.buffer import AsyncBuffer
from pabal.client.calls import Claimed, Item, Published, Settled
from pabal.client.consumer import Consumer
from pabal.client.wire import NOTHING, Alone, Answer, Credentials, Flow, Send, Step, Wait

Got = TypeVar("Got")


class AsyncClient:
    """A service's way to its hub; tasks may share it. Use it as a context manager, or close it."""

    def __init__(self, address: str, service: str, secret: str, *, timeout: float = 30.0) -> None:
        self._http = httpx2.AsyncClient(base_url=address, follow_redirects=False)
        self._who = Credentials(service, secret)
        self._timeout = timeout
        self._alone = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def publish(self, event_type: str, payload: Mapping[str, Any] | None = None, **more: Any) -> Published:
        """Publish an event; `more` is what the door takes besides, such as target_service or priority."""
        return await self._do(calls.publish(self._who, calls.draft(event_type, payload, more)))

    async def publish_many(self, events: Sequence[Mapping[str, Any]]) -> list[Item]:
        """Publish many, a thousand at a time, in this order; each is told what became of it."""
        return await self._do(calls.publish_many(self._who, calls.drafts(events)))

    def buffer(self, *, most: int = 10_000, every: float = 0.1, patience: float = 60.0) -> AsyncBuffer:
        """Publish in batches: see AsyncBuffer."""
        return AsyncBuffer(lambda drafts: self._do(calls.publish_many(self._who, drafts)), most, every, patience)

    async def claim(self, limit: int = 10, *, wait: float = 0.0, lease: int = 30) -> list[Claimed]:
        """Fetch due events; `wait` (seconds, at most 30) for the first if there are none."""
        return await self._do(calls.claim(self._who, limit=limit, wait=wait, lease=lease))

    async def ack(self, *receipts: str) -> list[Settled]:
        return await self._do(calls.ack(self._who, receipts))

    async def nack(
        self, *receipts: str, error: str, after: float | None = None, outcome: str = "retry"
    ) -> list[Settled]:
        """Say that events failed: again `after` seconds, or as the backoff says. `outcome` may be dead or snooze."""
        return await self._do(calls.nack(self._who, receipts, calls.nacked(error, outcome, after=after)))

    async def extend(self, *receipts: str, lease: int = 30) -> list[Settled]:
        """Hold events longer."""
        return await self._do(calls.extend(self._who, receipts, lease))

    async def event(self, event_id: UUID | str) -> dict[str, Any]:
        """An event with everything that became of it."""
        return await self._do(calls.show(self._who, str(event_id)))

    async def cancel(self, event_id: UUID | str) -> None:
        await self._do(calls.cancel(self._who, str(event_id)))

    async def consume(
        self,
        handle: Callable[[Claimed], Any],
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
        consumer = Consumer(self._do, self._who, handle, limit, concurrency, lease, wait, grace)
        await consumer.run(stop or asyncio.Event())

    async def _do(self, flow: Flow[Got]) -> Got:
        try:
            step = next(flow)
            while True:
                step = flow.send(await self._step(step))
        except StopIteration as end:
            return cast("Got", end.value)

    async def _step(self, step: Step) -> Answer:
        match step:
            case Send():
                return await self._send(step)
            case Wait():
                await asyncio.sleep(step.seconds)
            case Alone():
                async with self._alone:
                    await self._do(step.flow())
        return NOTHING

    async def _send(self, send: Send) -> Answer:
        try:
            answer = await self._http.request(
                send.method,
                send.path,
                content=send.body,
                data=send.form,
                headers=dict(send.headers),
                auth=send.basic,
                timeout=self._timeout + send.longer,
            )
        except httpx2.HTTPError as error:
            return Answer(0, {}, f"{type(error).__name__}: {error}".encode())
        return Answer(answer.status_code, answer.headers, answer.content)
