"""A client that waits."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, cast
from uuid import UUID

import httpx2

from pabal.client import calls
from pabal.client.buffer import Buffer
from pabal.client.calls import Claimed, Item, Nack, Published, Settled
from pabal.client.errors import Refused, TooMany, Unavailable
from pabal.client.wire import NOTHING, Alone, Answer, Credentials, Flow, Send, Step, Wait

Got = TypeVar("Got")

log = logging.getLogger(__name__)

POLL = 20.0
PAUSE = 2.0
"""Seconds between two looks while the hub is away."""


class Client:
    """A service's way to its hub; threads may share it. Use it as a context manager, or close it."""

    def __init__(self, address: str, service: str, secret: str, *, timeout: float = 30.0) -> None:
        self._http = httpx2.Client(base_url=address, follow_redirects=False)
        self._who = Credentials(service, secret)
        self._timeout = timeout
        self._alone = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def publish(self, event_type: str, payload: Mapping[str, Any] | None = None, **more: Any) -> Published:
        """Publish an event; `more` is what the door takes besides, such as target_service or priority."""
        return self._do(calls.publish(self._who, calls.draft(event_type, payload, more)))

    def publish_many(self, events: Sequence[Mapping[str, Any]]) -> list[Item]:
        """Publish many, a thousand at a time, in this order; each is told what became of it."""
        return self._do(calls.publish_many(self._who, calls.drafts(events)))

    def buffer(self, *, most: int = 10_000, every: float = 0.1, patience: float = 60.0) -> Buffer:
        """Publish in batches: see Buffer."""
        return Buffer(lambda drafts: self._do(calls.publish_many(self._who, drafts)), most, every, patience)

    def claim(self, limit: int = 10, *, wait: float = 0.0, lease: int = 30) -> list[Claimed]:
        """Fetch due events; `wait` (seconds, at most 30) for the first if there are none."""
        return self._do(calls.claim(self._who, limit=limit, wait=wait, lease=lease))

    def ack(self, *receipts: str) -> list[Settled]:
        return self._do(calls.ack(self._who, receipts))

    def nack(self, *receipts: str, error: str, after: float | None = None, outcome: str = "retry") -> list[Settled]:
        """Say that events failed: again `after` seconds, or as the backoff says. `outcome` may be dead or snooze."""
        return self._do(calls.nack(self._who, receipts, calls.nacked(error, outcome, after=after)))

    def extend(self, *receipts: str, lease: int = 30) -> list[Settled]:
        """Hold events longer."""
        return self._do(calls.extend(self._who, receipts, lease))

    def event(self, event_id: UUID | str) -> dict[str, Any]:
        """An event with everything that became of it."""
        return self._do(calls.show(self._who, str(event_id)))

    def cancel(self, event_id: UUID | str) -> None:
        self._do(calls.cancel(self._who, str(event_id)))

    def consume(
        self,
        handle: Callable[[Claimed], object],
        *,
        limit: int = 10,
        lease: int = 30,
        wait: float = POLL,
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        """Fetch and handle events one after the other until `until` says so; what `handle` says or raises is settled.

        While the hub is away it waits. What it holds when it ends is given back. One event that takes longer than the
        lease is handed to somebody else meanwhile.
        """
        while not until():
            try:
                held = self.claim(limit, wait=wait, lease=lease)
                self._work(held, handle, lease, until)
            except (Unavailable, TooMany) as error:
                log.warning("hub away: %s", error)
                time.sleep(PAUSE)

    def _work(
        self, held: list[Claimed], handle: Callable[[Claimed], object], lease: int, until: Callable[[], bool]
    ) -> None:
        since = time.monotonic()
        try:
            while held and not until():
                if time.monotonic() - since > lease / 3:
                    kept = {each.receipt for each in self.extend(*receipts(held), lease=lease) if each.held}
                    held[:] = [each for each in held if each.receipt in kept]
                    since = time.monotonic()
                    continue
                self._settle(held[0], said_by(handle, held[0]))
                held.pop(0)
        finally:
            if held:
                self._do(calls.nack(self._who, receipts(held), calls.GIVEN_BACK))

    def _settle(self, event: Claimed, said: Nack | None) -> None:
        mine = [event.receipt]
        try:
            [end] = self._do(calls.nack(self._who, mine, said) if said else calls.ack(self._who, mine))
        except TooMany:
            raise  # it is done and not yet settled: whoever runs us decides how long to wait
        except Refused as error:
            log.error("settle refused: %s %s", event.id, error)
            return
        if not end.held:
            log.warning("lease lost: %s", event.id)

    def _do(self, flow: Flow[Got]) -> Got:
        try:
            step = next(flow)
            while True:
                step = flow.send(self._step(step))
        except StopIteration as end:
            return cast("Got", end.value)

    def _step(self, step: Step) -> Answer:
        match step:
            case Send():
                return self._send(step)
            case Wait():
                time.sleep(step.seconds)
            case Alone():
                with self._alone:
                    self._do(step.flow())
        return NOTHING

    def _send(self, send: Send) -> Answer:
        try:
            answer = self._http.request(
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


def receipts(held: Sequence[Claimed]) -> list[str]:
    return [each.receipt for each in held]


def said_by(handle: Callable[[Claimed], object], event: Claimed) -> Nack | None:
    try:
        return calls.meant(handle(event))
    except Exception as error:  # noqa: BLE001 whatever it is, the hub hears of it
        return calls.meant(error)
