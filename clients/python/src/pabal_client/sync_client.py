"""The sync client."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack, cast
from uuid import UUID

import httpx2

from pabal_client.async_client import AsyncClient
from pabal_client.batching import Buffer
from pabal_client.gathering import Gatherer
from pabal_client.options import (
    DeadLetterFilters,
    EventFilters,
    HttpNotifyOptions,
    NotificationFilters,
    PublishOptions,
    RecipientType,
    ReplayFilters,
    check_options,
)
from pabal_client.requests import (
    BatchPublishItem,
    NackOutcome,
    PublishedEvent,
    PulledEvent,
    ResultPage,
    SettleItem,
    ack_flow,
    build_nack,
    cancel_event_flow,
    claim_flow,
    encode_event,
    encode_events,
    extend_flow,
    get_event_flow,
    list_events_flow,
    nack_flow,
    publish_many_flow,
)
from pabal_client.resources import (
    AcceptedNotification,
    BatchNotifyItem,
    cancel_notification_flow,
    encode_notification,
    get_dead_letter_flow,
    get_notification_flow,
    introspect_flow,
    list_dead_letters_flow,
    list_notifications_flow,
    notify_flow,
    notify_many_flow,
    replay_dead_letter_flow,
    replay_dead_letters_flow,
    resolve_dead_letter_flow,
    revoke_flow,
)
from pabal_client.threaded_consumer import run_until_stopped_in_thread
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


class Client:
    """A sync client for one service; threads may share it. Use it as a context manager, or close it."""

    def __init__(self, address: str, service: str, secret: str, *, timeout: float = 30.0) -> None:
        self._http = httpx2.Client(base_url=address, follow_redirects=False)
        self._credentials = ServiceCredentials(service, secret)
        self._timeout = timeout
        self._token_lock = threading.Lock()
        self._new_async_client = lambda: AsyncClient(address, service, secret, timeout=timeout)
        self._gatherer = Gatherer(self._run_flow, self._credentials)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def publish(
        self, event_type: str, payload: Mapping[str, Any] | None = None, **options: Unpack[PublishOptions]
    ) -> PublishedEvent:
        """Publish an event to the service `target`, or to all subscribers. For the other options see PublishOptions.

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

    def list_events(self, **filters: Unpack[EventFilters]) -> ResultPage:
        """List events that the service sent or received, the newest first."""
        check_options("list_events", filters, EventFilters)
        return self._run_flow(list_events_flow(self._credentials, filters))

    # Notifications

    def notify(
        self,
        recipient_type: RecipientType,
        recipient_id: str,
        template_key: str,
        payload: Mapping[str, Any] | None = None,
        **options: Unpack[HttpNotifyOptions],
    ) -> AcceptedNotification:
        """Request a notification. `payload` holds the variables of the template. Returns when it is durable."""
        body = encode_notification(recipient_type, recipient_id, template_key, payload, options)
        return self._run_flow(notify_flow(self._credentials, body))

    def notify_many(self, notifications: Sequence[Mapping[str, Any]]) -> list[BatchNotifyItem]:
        """Request notifications in this order, up to 500 per request; return one result per notification."""
        return self._run_flow(notify_many_flow(self._credentials, notifications))

    def list_notifications(self, **filters: Unpack[NotificationFilters]) -> ResultPage:
        """List notifications of the service, the newest first."""
        check_options("list_notifications", filters, NotificationFilters)
        return self._run_flow(list_notifications_flow(self._credentials, filters))

    def get_notification(self, notification_id: UUID | str) -> dict[str, Any]:
        """Get a notification with its attempts and trace."""
        return self._run_flow(get_notification_flow(self._credentials, str(notification_id)))

    def cancel_notification(self, notification_id: UUID | str) -> None:
        self._run_flow(cancel_notification_flow(self._credentials, str(notification_id)))

    # Dead letters

    def list_dead_letters(self, **filters: Unpack[DeadLetterFilters]) -> ResultPage:
        """List dead letters of events that the service sent or received, the newest first."""
        check_options("list_dead_letters", filters, DeadLetterFilters)
        return self._run_flow(list_dead_letters_flow(self._credentials, filters))

    def get_dead_letter(self, dead_letter_id: UUID | str) -> dict[str, Any]:
        """Get a dead letter with its payload and the error of each attempt."""
        return self._run_flow(get_dead_letter_flow(self._credentials, str(dead_letter_id)))

    def replay_dead_letter(self, dead_letter_id: UUID | str) -> UUID:
        """Queue the event of a dead letter again; return the event's id. ConflictError if it was already replayed."""
        return self._run_flow(replay_dead_letter_flow(self._credentials, str(dead_letter_id)))

    def replay_dead_letters(self, **filters: Unpack[ReplayFilters]) -> int:
        """Replay all unresolved dead letters that match; return their number."""
        check_options("replay_dead_letters", filters, ReplayFilters)
        return self._run_flow(replay_dead_letters_flow(self._credentials, filters))

    def resolve_dead_letter(self, dead_letter_id: UUID | str, note: str) -> dict[str, Any]:
        """Resolve a dead letter with a note, without replaying it."""
        return self._run_flow(resolve_dead_letter_flow(self._credentials, str(dead_letter_id), note))

    # Tokens

    def access_token(self) -> str:
        """A valid access token of the service, for requests of your own."""
        return self._run_flow(self._credentials.token())

    def introspect(self, token: str) -> dict[str, Any]:
        """Get the state of a token of any service. `active` is false if it is invalid."""
        return self._run_flow(introspect_flow(self._credentials, token))

    def revoke(self, token: str) -> None:
        """Revoke a token of the service. Revoking a refresh token revokes every token of its grant."""
        self._run_flow(revoke_flow(self._credentials, token))

    # Consuming

    def consume(
        self,
        handle: Callable[[PulledEvent], Any],
        *,
        limit: int = 100,
        concurrency: int = 10,
        lease: int = 30,
        wait: float = 5.0,
        grace: float = 10.0,
        stop: threading.Event | None = None,
    ) -> None:
        """Claim, handle and settle events, up to `concurrency` at once, until `stop` is set.

        `handle` runs in a thread per event; `concurrency=1` handles one event after the other. Leases are extended
        while it runs. After `stop` or Ctrl-C, handlers have `grace` seconds to finish; the remaining events are
        released. A claim in progress is awaited, for at most `wait` seconds, so that its events are not stuck until
        their lease ends.
        """

        async def consume(stopping: asyncio.Event) -> None:
            async with self._new_async_client() as client:
                await client.consume(
                    handle, limit=limit, concurrency=concurrency, lease=lease, wait=wait, grace=grace, stop=stopping
                )

        run_until_stopped_in_thread(consume, stop)

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
