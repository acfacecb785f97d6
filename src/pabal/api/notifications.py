"""Notifications: ask for them, look at them, call them off."""

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from starlette.responses import Response

from pabal import limits
from pabal.api.bind import decoded, read_body
from pabal.api.door import Answer, Body, Door
from pabal.api.errors import status_of
from pabal.api.moment import MomentView, traced
from pabal.api.nul import NO_NUL, field_with_nul
from pabal.api.page import PageQuery, cursor_at, place_of
from pabal.api.visit import Visit
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound, PabalError, TooMany
from pabal.limits import Limit
from pabal.notifications import read
from pabal.notifications.cancel import cancel
from pabal.notifications.glance import every
from pabal.notifications.plan import Channel
from pabal.notifications.read import Filter, Notification, Reader
from pabal.notifications.request import Asked, Draft, ask, ask_each
from pabal.notifications.story import story
from pabal.tokens.permission import Permission
from pabal.tokens.verify import Caller
from pabal.wiring import Hub

MOST = 500
"""Notifications that may be asked for at once."""
MINUTE = timedelta(minutes=1)

RecipientType = Literal["user_dm", "guild_audit_channel", "dashboard_toast"]
State = Literal["pending", "sent", "failed", "suppressed"]
ShortText = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class NotificationDraft(Body, frozen=True, kw_only=True):
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
    scheduled_at: Moment | None = None
    expires_at: Moment | None = None
    idempotency_key: ShortText | None = None
    dedupe_key: ShortText | None = None
    incident: ShortText | None = None
    correlation_id: ShortText | None = None


class AskedView(Answer, frozen=True):
    """A notification that is recorded: pending, or suppressed at once for a reason."""

    id: UUID
    state: str
    reason: str | None
    scheduled_at: datetime
    created_at: datetime


class AskedItem(Answer, frozen=True, omit_defaults=True):
    """What became of one of many: 202 recorded, 200 recorded before under the same key, or an error."""

    status: int
    id: UUID | None = None
    state: str | None = None
    reason: str | None = None
    code: str | None = None
    detail: str | None = None


class NotificationView(Answer, frozen=True):
    """A notification as it stands. `decision` says step by step why it is sent or not, `reason` why it was not.

    `again_of` is one that failed, and that an operator had sent again as this.
    """

    id: UUID
    recipient_type: RecipientType
    recipient_id: str
    guild_id: UUID | None
    template_key: str
    payload: dict[str, Any]
    state: State
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


class AttemptView(Answer, frozen=True):
    """One try at sending it."""

    attempt: int
    worker: str | None
    started_at: datetime
    ended_at: datetime
    outcome: Literal["done", "retry", "snooze", "dead", "suppressed", "unknown"]
    why: str | None


class NotificationStory(NotificationView, frozen=True, kw_only=True):
    """A notification with every attempt at it, and all that happened to it in one line of time."""

    attempts: list[AttemptView]
    trace: list[MomentView]


class NotificationPage(Answer, frozen=True):
    items: list[NotificationView]
    cursor: str | None


class NotificationQuery(PageQuery, frozen=True, kw_only=True):
    """Which notifications."""

    recipient: str | None = None
    state: State | None = None
    template: str | None = None


ONE = msgspec.json.Decoder(NotificationDraft)
SOME = msgspec.json.Decoder(list[msgspec.Raw])


async def ask_for_notification(hub: Hub, visit: Visit, caller: Caller) -> Response:
    """Ask for a notification, or for a list of up to 500.

    Answered when it is durable: 202, or 200 if the same was asked for under this key before. What its recipient does
    not want is recorded as suppressed. A list is answered with a list: one that is wrong does not hold up the others.
    A service that asks for too many in a minute is told when to come back; each of a list counts.
    """
    body = await read_body(visit.request, hub.settings.body_limit)
    if body.lstrip()[:1] == b"[":
        items = await ask_for_many(hub, caller, body, visit.by(caller.service))
        return Response(msgspec.json.encode(items), 202, media_type="application/json")
    draft = read_draft(hub, caller, body)
    await count(hub, caller, 1)
    async with hub.transaction() as tx:
        [asked] = await ask(tx, [draft], visit.by(caller.service))
    view = AskedView(asked.id, asked.state, asked.reason, asked.scheduled_at, asked.created_at)
    return Response(msgspec.json.encode(view), 200 if asked.repeated else 202, media_type="application/json")


async def ask_for_many(hub: Hub, caller: Caller, body: bytes, by: Actor) -> list[AskedItem]:
    brought: list[msgspec.Raw] = decoded(body, SOME)
    if not 0 < len(brought) <= MOST:
        raise Invalid.one("body", f"is a list of 1 to {MOST} notifications")
    await count(hub, caller, len(brought))
    read_ones = [tried(hub, caller, bytes(each)) for each in brought]
    good = [each for each in read_ones if isinstance(each, Draft)]
    async with hub.transaction() as tx:
        results = iter(await ask_each(tx, good, by) if good else ())
    return [item_of(next(results) if isinstance(each, Draft) else each) for each in read_ones]


async def count(hub: Hub, caller: Caller, notifications: int) -> None:
    """Count what a service asks for, or turn it away."""
    if most := hub.settings.notifications_per_service:
        async with hub.autocommit() as tx:
            await limits.take(tx, Limit("notifications of this service", most, MINUTE), caller.service, notifications)


async def list_notifications(hub: Hub, caller: Caller, query: NotificationQuery) -> NotificationPage:
    """Those one asked for, or that rules made of one's events, the newest first; with `hub:admin` everybody's.

    A page is looked for among 20,000 at most. Where what is chosen is rare it may hold fewer than asked for, or none,
    and there may still be more: as long as there is a cursor.
    """
    chosen = Filter(query.recipient, query.state, query.template)
    async with hub.autocommit() as tx:
        sight = await every(tx, reader(caller), chosen, before=place_of(query.cursor), limit=query.limit)
    return NotificationPage([NotificationView(**fields_of(row)) for row in sight.rows], cursor_at(sight.end))


async def show_notification(hub: Hub, caller: Caller, id: UUID) -> NotificationStory:  # noqa: A002 as the path names it
    """Show a notification with what was decided about it, every attempt at it, and what happened to it when."""
    async with hub.autocommit() as tx:
        notification = await read.find(tx, id, reader(caller))
        tries = await read.attempts(tx, id)
        moments = (await story(tx, id)).moments
    seen = [AttemptView(**{name: getattr(each, name) for name in AttemptView.__struct_fields__}) for each in tries]
    return NotificationStory(**fields_of(notification), attempts=seen, trace=traced(moments))


async def cancel_notification(
    hub: Hub,
    visit: Visit,
    caller: Caller,
    id: UUID,  # noqa: A002 as above
) -> NotificationView:
    """Call a notification of one's own off. One that has ended, or is being sent this moment, is 409."""
    async with hub.transaction() as tx:
        return NotificationView(**fields_of(await cancel(tx, id, reader(caller), visit.by(caller.service))))


def reader(caller: Caller) -> Reader:
    return Reader(caller.service, all=Permission.ADMIN in caller.permissions)


def tried(hub: Hub, caller: Caller, body: bytes) -> Draft | PabalError:
    try:
        return read_draft(hub, caller, body)
    except PabalError as error:
        return error


def read_draft(hub: Hub, caller: Caller, body: bytes) -> Draft:
    if field := field_with_nul(body, "body"):
        raise Invalid.one(field, NO_NUL)
    brought: NotificationDraft = decoded(body, ONE)
    return Draft(
        channel=Channel(brought.recipient_type),
        recipient=brought.recipient_id,
        template=hub.catalogue.get(brought.template_key),
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


def item_of(result: Asked | PabalError) -> AskedItem:
    if isinstance(result, PabalError):
        return AskedItem(status_of(type(result)), code=result.code, detail=str(result))
    return AskedItem(200 if result.repeated else 202, result.id, result.state, result.reason)


def fields_of(notification: Notification) -> dict[str, Any]:
    return {name: getattr(notification, name) for name in NotificationView.__struct_fields__}


DOORS = (
    Door(
        "POST",
        "/v1/notifications",
        ask_for_notification,
        needs=Permission.SEND,
        answers=202,
        takes=NotificationDraft,
        many=MOST,
        gives=AskedView | list[AskedItem],
        also={200: "the same was asked for under this key before"},
        may_raise=(Conflict, TooMany),
        tag="notifications",
    ),
    Door("GET", "/v1/notifications", list_notifications, needs=Permission.READ_NOTIFICATIONS, tag="notifications"),
    Door(
        "GET",
        "/v1/notifications/{id}",
        show_notification,
        needs=Permission.READ_NOTIFICATIONS,
        may_raise=(NotFound,),
        tag="notifications",
    ),
    Door(
        "POST",
        "/v1/notifications/{id}/cancel",
        cancel_notification,
        needs=Permission.SEND,
        may_raise=(NotFound, Conflict),
        tag="notifications",
    ),
)
