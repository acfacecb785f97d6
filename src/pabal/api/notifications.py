"""Notifications: request, list, show and cancel them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from starlette.responses import Response

from pabal import limits
from pabal.api.events import TraceEntryView, trace_entry_views
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound, PabalError, RateLimited
from pabal.hub import Hub
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.notifications import (
    Notification,
    NotificationAccess,
    NotificationAttempt,
    NotificationFilter,
    find_notification,
    list_notification_attempts,
    scan_notifications,
)
from pabal.notifications.recipient_forms import LOCALE_FORM, RECIPIENT_ID_FORM
from pabal.notifications.requests import (
    NotificationDraft,
    RequestedNotification,
    cancel_notification,
    emergency_rate_limit,
    notification_rate_limit,
    request_notifications,
    try_request_notifications,
)
from pabal.notifications.states import NotificationReason, NotificationState, RecipientType
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.trace.notifications import trace_notification
from pabal.web.endpoint import decode_json_body, read_body
from pabal.web.errors import error_status
from pabal.web.field_types import FilterText, RawPayload
from pabal.web.pagination import PageQuery, decode_cursor, encode_cursor
from pabal.web.request import NUL_MESSAGE, RequestContext, find_nul_field
from pabal.web.route import RequestBody, ResponseBody, Route
from pabal.web.untyped_json import decode_untyped_json

MAX_NOTIFICATION_BATCH = 500
MAX_RAW_PAYLOAD_BYTES = 262_144

NotificationText = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
NotificationTime = Annotated[datetime, msgspec.Meta(tz=True)]


class NotificationBody(RequestBody, frozen=True, kw_only=True):
    """A notification to one recipient through one channel. `payload` holds the template's variables.

    `idempotency_key`: repeating the request with the same key returns the first notification. `dedupe_key`: at most one
    notification exists per key, with any content. `incident`: emergencies of one incident are sent once a minute.
    """

    recipient_type: RecipientType
    recipient_id: Annotated[str, msgspec.Meta(pattern=rf"^{RECIPIENT_ID_FORM}$(?!\n)")]
    template_key: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    payload: RawPayload = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
    guild_id: UUID | None = None
    locale: Annotated[str, msgspec.Meta(pattern=rf"^{LOCALE_FORM}$(?!\n)")] | None = None
    scheduled_at: NotificationTime | None = None
    expires_at: NotificationTime | None = None
    idempotency_key: NotificationText | None = None
    dedupe_key: NotificationText | None = None
    incident: NotificationText | None = None
    correlation_id: NotificationText | None = None


class RequestedNotificationView(ResponseBody, frozen=True):
    """A stored notification: pending, or suppressed with a reason."""

    id: UUID
    state: NotificationState
    reason: NotificationReason | None
    scheduled_at: datetime
    created_at: datetime


class NotificationBatchItemView(ResponseBody, frozen=True, omit_defaults=True):
    """The result of one item of a list: 202 accepted, 200 repeated key, or an error."""

    status: int
    id: UUID | None = None
    state: NotificationState | None = None
    reason: NotificationReason | None = None
    code: str | None = None
    detail: str | None = None


class NotificationView(ResponseBody, frozen=True):
    """A notification. `decision` lists why it is sent or not, step by step; `reason` is why it was not sent.

    `again_of` is the failed notification that this one resends.
    """

    id: UUID
    recipient_type: RecipientType
    recipient_id: str
    guild_id: UUID | None
    template_key: str
    payload: dict[str, Any]
    state: NotificationState
    reason: NotificationReason | None
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


class NotificationDetailView(NotificationView, frozen=True, kw_only=True):
    """A notification with its attempts and its trace."""

    attempts: list[NotificationAttempt]
    trace: list[TraceEntryView]


class NotificationPage(ResponseBody, frozen=True):
    items: list[NotificationView]
    cursor: str | None


class NotificationQuery(PageQuery, frozen=True, kw_only=True):
    """Which notifications to list."""

    recipient: FilterText | None = None
    state: NotificationState | None = None
    template: FilterText | None = None


NOTIFICATION_DECODER = msgspec.json.Decoder(NotificationBody)
NOTIFICATION_BATCH_DECODER = msgspec.json.Decoder(list[msgspec.Raw])


async def post_notification(hub: Hub, context: RequestContext, caller: AuthenticatedService) -> Response:
    """Request a notification, or a list of up to 500.

    Returns after it is durable: 202, or 200 if the key was used before for the same content. A notification that the
    recipient's preferences exclude is stored as suppressed. A list returns a list of results; an invalid item does not
    affect the others. Requests are limited per service and minute; every item of a list counts.
    """
    body = await read_body(context.request, hub.settings.body_limit)
    if body.lstrip()[:1] == b"[":
        items = await request_notification_batch(hub, caller, body, context.actor(caller.service))
        return Response(msgspec.json.encode(items), 202, media_type="application/json")
    draft = decode_notification_draft(hub, caller, body)
    await apply_notification_limits(hub, caller, 1, [draft])
    async with hub.transaction() as tx:
        [requested] = await request_notifications(tx, [draft], context.actor(caller.service))
    view = RequestedNotificationView(
        requested.id, requested.state, requested.reason, requested.scheduled_at, requested.created_at
    )
    return Response(msgspec.json.encode(view), 200 if requested.repeated else 202, media_type="application/json")


async def request_notification_batch(
    hub: Hub, caller: AuthenticatedService, body: bytes, actor: Actor
) -> list[NotificationBatchItemView]:
    """Request a list of notifications. Return one result per item, in order."""
    raw_items: list[msgspec.Raw] = decode_json_body(body, NOTIFICATION_BATCH_DECODER)
    if not 0 < len(raw_items) <= MAX_NOTIFICATION_BATCH:
        raise Invalid.of_field("body", f"must be a list of 1 to {MAX_NOTIFICATION_BATCH} notifications")
    items = [try_decode_notification(hub, caller, bytes(raw)) for raw in raw_items]
    drafts = [item for item in items if isinstance(item, NotificationDraft)]
    await apply_notification_limits(hub, caller, len(items), drafts)
    async with hub.transaction() as tx:
        results = iter(await try_request_notifications(tx, drafts, actor) if drafts else ())
    return [notification_batch_item(next(results) if isinstance(item, NotificationDraft) else item) for item in items]


async def apply_notification_limits(
    hub: Hub, caller: AuthenticatedService, count: int, drafts: Sequence[NotificationDraft]
) -> None:
    """Count items against the limits of the service, emergencies apart. Raise RateLimited beyond one of them."""
    per_minute = hub.settings.notifications_per_service
    emergencies = sum(draft.urgent for draft in drafts)
    for limit, items in (
        (notification_rate_limit(per_minute), count - emergencies),
        (emergency_rate_limit(per_minute), emergencies),
    ):
        if limit is not None and items:
            async with hub.autocommit() as tx:
                await limits.consume_rate_limit(tx, limit, caller.service, items)


async def get_notifications(hub: Hub, caller: AuthenticatedService, query: NotificationQuery) -> NotificationPage:
    """List the service's notifications, and those that rules made of its events, the newest first.

    With `hub:admin` those of all services. One request scans at most 20,000 notifications, so a page may have fewer
    items than requested, or none. There are more as long as there is a cursor.
    """
    criteria = NotificationFilter(query.recipient, query.state, query.template)
    async with hub.autocommit() as tx:
        page = await scan_notifications(
            tx, notification_access(caller), criteria, before=decode_cursor(query.cursor), limit=query.limit
        )
    return NotificationPage(
        [NotificationView(**notification_view_fields(row)) for row in page.rows], encode_cursor(page.end)
    )


async def get_notification(hub: Hub, caller: AuthenticatedService, id: UUID) -> NotificationDetailView:
    """Get a notification with its decision, attempts and trace."""
    async with hub.autocommit() as tx:
        notification = await find_notification(tx, id, notification_access(caller))
        attempts = await list_notification_attempts(tx, id)
        entries = (await trace_notification(tx, id)).entries
    return NotificationDetailView(
        **notification_view_fields(notification), attempts=attempts, trace=trace_entry_views(entries)
    )


async def post_notification_cancel(
    hub: Hub,
    context: RequestContext,
    caller: AuthenticatedService,
    id: UUID,
) -> NotificationView:
    """Cancel a notification. Returns 409 if it has ended or is being sent."""
    async with hub.transaction() as tx:
        cancelled = await cancel_notification(tx, id, notification_access(caller), context.actor(caller.service))
    return NotificationView(**notification_view_fields(cancelled))


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
    fields: NotificationBody = decode_json_body(body, NOTIFICATION_DECODER)
    return NotificationDraft(
        channel=NotificationChannel(fields.recipient_type),
        recipient=fields.recipient_id,
        template=hub.templates.get(fields.template_key),
        payload=decode_notification_payload(bytes(fields.payload)),
        guild=fields.guild_id,
        locale=fields.locale,
        scheduled_at=fields.scheduled_at,
        expires_at=fields.expires_at,
        idempotency_key=fields.idempotency_key,
        dedupe_key=fields.dedupe_key,
        incident=fields.incident,
        source=caller.service,
        correlation_id=fields.correlation_id,
    )


def decode_notification_payload(raw: bytes) -> dict[str, Any]:
    """Decode the payload, which may hold more than the template uses."""
    if not raw.startswith(b"{"):
        raise Invalid.of_field("payload", "is not an object")
    if len(raw) > MAX_RAW_PAYLOAD_BYTES:
        raise Invalid.of_field("payload", f"is longer than {MAX_RAW_PAYLOAD_BYTES} bytes")
    return decode_untyped_json(raw, "payload")


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
        max_body_bytes=None,
        response=RequestedNotificationView | list[NotificationBatchItemView],
        other_statuses={200: "The key was used before for the same content."},
        may_raise=(Conflict, RateLimited),
        tag="notifications",
    ),
    Route(
        "GET",
        "/v1/notifications",
        get_notifications,
        permission=Permission.READ_NOTIFICATIONS,
        or_admin=True,
        tag="notifications",
    ),
    Route(
        "GET",
        "/v1/notifications/{id}",
        get_notification,
        permission=Permission.READ_NOTIFICATIONS,
        or_admin=True,
        may_raise=(NotFound,),
        tag="notifications",
    ),
    Route(
        "POST",
        "/v1/notifications/{id}/cancel",
        post_notification_cancel,
        permission=Permission.SEND,
        or_admin=True,
        may_raise=(NotFound, Conflict),
        tag="notifications",
    ),
)
