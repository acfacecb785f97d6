"""Notifications: ask for them, look at them, call them off."""

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from starlette.responses import Response

from pabal import limits
from pabal.api.events import TraceEntryView, trace_entry_views
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound, PabalError, RateLimited
from pabal.hub import Hub
from pabal.limits import RateLimit
from pabal.notifications.decide import NotificationChannel
from pabal.notifications.notifications import (
    Notification,
    NotificationAccess,
    NotificationFilter,
    find_notification,
    list_notification_attempts,
    scan_notifications,
)
from pabal.notifications.requests import (
    NotificationDraft,
    RequestedNotification,
    cancel_notification,
    request_notifications,
    try_request_notifications,
)
from pabal.notifications.types import NotificationState, RecipientType
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.trace.notifications import trace_notification
from pabal.web.endpoint import decode_json_body, read_body
from pabal.web.errors import error_status
from pabal.web.pagination import PageQuery, decode_cursor, encode_cursor
from pabal.web.request import NUL_MESSAGE, RequestContext, find_nul_field
from pabal.web.route import RequestBody, ResponseBody, Route

MAX_NOTIFICATION_BATCH = 500
"""Notifications that may be asked for at once."""
NOTIFICATION_LIMIT_PERIOD = timedelta(minutes=1)

NotificationText = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
NotificationTime = Annotated[datetime, msgspec.Meta(tz=True)]


class NotificationBody(RequestBody, frozen=True, kw_only=True):
    """A notice to one recipient through one channel. `payload` brings what the template needs to be told.

    `idempotency_key`: asked for again with the same, it is the same notification. `dedupe_key`: whatever else is said,
    there is one notification of this key. `incident`: emergencies of one incident within a minute are told once.
    """

    recipient_type: RecipientType
    recipient_id: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_.:@-]{1,64}$")]
    template_key: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    payload: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    guild_id: UUID | None = None
    locale: Annotated[str, msgspec.Meta(pattern="^[a-z]{2}(-[A-Z]{2})?$")] | None = None
    scheduled_at: NotificationTime | None = None
    expires_at: NotificationTime | None = None
    idempotency_key: NotificationText | None = None
    dedupe_key: NotificationText | None = None
    incident: NotificationText | None = None
    correlation_id: NotificationText | None = None


class RequestedNotificationView(ResponseBody, frozen=True):
    """A notification that is recorded: pending, or suppressed at once for a reason."""

    id: UUID
    state: str
    reason: str | None
    scheduled_at: datetime
    created_at: datetime


class NotificationBatchItemView(ResponseBody, frozen=True, omit_defaults=True):
    """What became of one of many: 202 recorded, 200 recorded before under the same key, or an error."""

    status: int
    id: UUID | None = None
    state: str | None = None
    reason: str | None = None
    code: str | None = None
    detail: str | None = None


class NotificationView(ResponseBody, frozen=True):
    """A notification as it stands. `decision` says step by step why it is sent or not, `reason` why it was not.

    `again_of` is one that failed, and that an operator had sent again as this.
    """

    id: UUID
    recipient_type: RecipientType
    recipient_id: str
    guild_id: UUID | None
    template_key: str
    payload: dict[str, Any]
    state: NotificationState
    reason: str | None
    decision: list[str]
    priority: int
    attempt_count: int
    last_error: str | None
    scheduled_at: datetime
    expires_at: datetime | None
    sent_at: datetime | None
    ended_at: datetime | None
    created_at: datetime
    locale: str | None
    incident: str | None
    event_id: UUID | None
    rule_id: UUID | None
    source_service: str | None
    requested_by: str
    idempotency_key: str | None
    correlation_id: str | None
    again_of: UUID | None


class NotificationAttemptView(ResponseBody, frozen=True):
    """One try at sending it."""

    attempt: int
    worker: str | None
    started_at: datetime
    ended_at: datetime
    outcome: Literal["done", "retry", "snooze", "dead", "suppressed", "unknown"]
    why: str | None


class NotificationDetailView(NotificationView, frozen=True, kw_only=True):
    """A notification with every attempt at it, and all that happened to it in one line of time."""

    attempts: list[NotificationAttemptView]
    trace: list[TraceEntryView]


class NotificationPage(ResponseBody, frozen=True):
    items: list[NotificationView]
    cursor: str | None


class NotificationQuery(PageQuery, frozen=True, kw_only=True):
    """Which notifications."""

    recipient: str | None = None
    state: NotificationState | None = None
    template: str | None = None


NOTIFICATION_DECODER = msgspec.json.Decoder(NotificationBody)
NOTIFICATION_BATCH_DECODER = msgspec.json.Decoder(list[msgspec.Raw])


async def post_notification(hub: Hub, context: RequestContext, caller: AuthenticatedService) -> Response:
    """Ask for a notification, or for a list of up to 500.

    Answered when it is durable: 202, or 200 if the same was asked for under this key before. What its recipient does
    not want is recorded as suppressed. A list is answered with a list: one that is wrong does not hold up the others.
    A service that asks for too many in a minute is told when to come back; each of a list counts.
    """
    body = await read_body(context.request, hub.settings.body_limit)
    if body.lstrip()[:1] == b"[":
        items = await request_notification_batch(hub, caller, body, context.actor(caller.service))
        return Response(msgspec.json.encode(items), 202, media_type="application/json")
    draft = decode_notification_draft(hub, caller, body)
    await apply_notification_limit(hub, caller, 1)
    async with hub.transaction() as tx:
        [asked] = await request_notifications(tx, [draft], context.actor(caller.service))
    view = RequestedNotificationView(asked.id, asked.state, asked.reason, asked.scheduled_at, asked.created_at)
    return Response(msgspec.json.encode(view), 200 if asked.repeated else 202, media_type="application/json")


async def request_notification_batch(
    hub: Hub, caller: AuthenticatedService, body: bytes, actor: Actor
) -> list[NotificationBatchItemView]:
    brought: list[msgspec.Raw] = decode_json_body(body, NOTIFICATION_BATCH_DECODER)
    if not 0 < len(brought) <= MAX_NOTIFICATION_BATCH:
        raise Invalid.of_field("body", f"is a list of 1 to {MAX_NOTIFICATION_BATCH} notifications")
    await apply_notification_limit(hub, caller, len(brought))
    read_ones = [try_decode_notification(hub, caller, bytes(each)) for each in brought]
    good = [each for each in read_ones if isinstance(each, NotificationDraft)]
    async with hub.transaction() as tx:
        results = iter(await try_request_notifications(tx, good, actor) if good else ())
    return [
        notification_batch_item(next(results) if isinstance(each, NotificationDraft) else each) for each in read_ones
    ]


async def apply_notification_limit(hub: Hub, caller: AuthenticatedService, amount: int) -> None:
    """Count what a service asks for, or turn it away."""
    if most := hub.settings.notifications_per_service:
        async with hub.autocommit() as tx:
            await limits.consume_rate_limit(
                tx, RateLimit("notifications of this service", most, NOTIFICATION_LIMIT_PERIOD), caller.service, amount
            )


async def get_notifications(hub: Hub, caller: AuthenticatedService, query: NotificationQuery) -> NotificationPage:
    """Those one asked for, or that rules made of one's events, the newest first; with `hub:admin` everybody's.

    A page is looked for among 20,000 at most. Where what is chosen is rare it may hold fewer than asked for, or none,
    and there may still be more: as long as there is a cursor.
    """
    chosen = NotificationFilter(query.recipient, query.state, query.template)
    async with hub.autocommit() as tx:
        sight = await scan_notifications(
            tx, notification_access(caller), chosen, before=decode_cursor(query.cursor), limit=query.limit
        )
    return NotificationPage(
        [NotificationView(**notification_view_fields(row)) for row in sight.rows], encode_cursor(sight.end)
    )


async def get_notification(hub: Hub, caller: AuthenticatedService, id: UUID) -> NotificationDetailView:
    """Show a notification with what was decided about it, every attempt at it, and what happened to it when."""
    async with hub.autocommit() as tx:
        notification = await find_notification(tx, id, notification_access(caller))
        tries = await list_notification_attempts(tx, id)
        moments = (await trace_notification(tx, id)).entries
    seen = [
        NotificationAttemptView(**{name: getattr(each, name) for name in NotificationAttemptView.__struct_fields__})
        for each in tries
    ]
    return NotificationDetailView(
        **notification_view_fields(notification), attempts=seen, trace=trace_entry_views(moments)
    )


async def post_notification_cancel(
    hub: Hub,
    context: RequestContext,
    caller: AuthenticatedService,
    id: UUID,
) -> NotificationView:
    """Call a notification of one's own off. One that has ended, or is being sent this moment, is 409."""
    async with hub.transaction() as tx:
        return NotificationView(
            **notification_view_fields(
                await cancel_notification(tx, id, notification_access(caller), context.actor(caller.service))
            )
        )


def notification_access(caller: AuthenticatedService) -> NotificationAccess:
    return NotificationAccess(caller.service, all_services=Permission.ADMIN in caller.permissions)


def try_decode_notification(hub: Hub, caller: AuthenticatedService, body: bytes) -> NotificationDraft | PabalError:
    try:
        return decode_notification_draft(hub, caller, body)
    except PabalError as error:
        return error


def decode_notification_draft(hub: Hub, caller: AuthenticatedService, body: bytes) -> NotificationDraft:
    if field := find_nul_field(body, "body"):
        raise Invalid.of_field(field, NUL_MESSAGE)
    brought: NotificationBody = decode_json_body(body, NOTIFICATION_DECODER)
    return NotificationDraft(
        channel=NotificationChannel(brought.recipient_type),
        recipient=brought.recipient_id,
        template=hub.templates.get(brought.template_key),
        payload=brought.payload,
        guild=brought.guild_id,
        locale=brought.locale,
        scheduled_at=brought.scheduled_at,
        expires_at=brought.expires_at,
        idempotency_key=brought.idempotency_key,
        dedupe_key=brought.dedupe_key,
        incident=brought.incident,
        source=caller.service,
        correlation_id=brought.correlation_id,
    )


def notification_batch_item(result: RequestedNotification | PabalError) -> NotificationBatchItemView:
    if isinstance(result, PabalError):
        return NotificationBatchItemView(error_status(type(result)), code=result.code, detail=str(result))
    return NotificationBatchItemView(200 if result.repeated else 202, result.id, result.state, result.reason)


def notification_view_fields(notification: Notification) -> dict[str, Any]:
    return {name: getattr(notification, name) for name in NotificationView.__struct_fields__}


ROUTES = (
    Route(
        "POST",
        "/v1/notifications",
        post_notification,
        permission=Permission.SEND,
        status=202,
        body=NotificationBody,
        max_items=MAX_NOTIFICATION_BATCH,
        response=RequestedNotificationView | list[NotificationBatchItemView],
        other_statuses={200: "the same was asked for under this key before"},
        may_raise=(Conflict, RateLimited),
        tag="notifications",
    ),
    Route("GET", "/v1/notifications", get_notifications, permission=Permission.READ_NOTIFICATIONS, tag="notifications"),
    Route(
        "GET",
        "/v1/notifications/{id}",
        get_notification,
        permission=Permission.READ_NOTIFICATIONS,
        may_raise=(NotFound,),
        tag="notifications",
    ),
    Route(
        "POST",
        "/v1/notifications/{id}/cancel",
        post_notification_cancel,
        permission=Permission.SEND,
        may_raise=(NotFound, Conflict),
        tag="notifications",
    ),
)
