"""Subscriptions: which events a service wants, and where to."""

from datetime import datetime, timedelta
from typing import Annotated, Literal, assert_never
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from pabal import limits
from pabal.api.door import Answer, Body, Door
from pabal.api.page import PageQuery, cursor_of, place_of
from pabal.api.visit import Visit
from pabal.core.errors import Conflict, Forbidden, Invalid, NotFound, TooMany, Unreadable
from pabal.events import subscriptions
from pabal.events.push import Gone
from pabal.events.read import Reader
from pabal.events.subscriptions import Change, Draft, Subscription
from pabal.limits import Limit
from pabal.queue.outcome import Dead, Done, Outcome, Retry, Snooze
from pabal.tokens.permission import Permission
from pabal.tokens.verify import Caller
from pabal.wiring import Hub

EventTypes = Annotated[
    list[Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_*]+(\.[a-z0-9_*]+)*$", max_length=128)]],
    msgspec.Meta(min_length=1, max_length=50),
]
ServiceName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{1,62}$")]
Url = Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]
Seconds = Annotated[int, msgspec.Meta(ge=1, le=60)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]

TESTS = Limit("tests of this subscription", 10, timedelta(minutes=1))
"""Each is a request to somebody else's server, at once and past the queue."""


class SubscriptionDraft(Body, frozen=True, kw_only=True):
    """Which types, * standing for anything. With `url` the hub posts them there, without it they are pulled."""

    event_types: EventTypes
    service_name: ServiceName | None = None
    url: Url | None = None
    description: Text | None = None
    timeout_seconds: Seconds = 15


class SubscriptionChange(Body, frozen=True, kw_only=True):
    """What shall be otherwise; what is left out stays."""

    event_types: EventTypes | UnsetType = UNSET
    url: Url | UnsetType = UNSET
    description: Text | UnsetType | None = UNSET
    timeout_seconds: Seconds | UnsetType = UNSET


class SubscriptionView(Answer, frozen=True):
    """A subscription; `program` is the one whose handlers take its events, and empty for others.

    `open_until`: the receiver fails, and nothing is sent before this moment.
    """

    id: UUID
    service_name: str
    mode: Literal["pull", "push", "handler", "rule"]
    program: str
    event_types: list[str]
    description: str | None
    url: str | None
    timeout_seconds: int
    paused_at: datetime | None
    disabled_at: datetime | None
    disabled_reason: str | None
    failures: int
    open_until: datetime | None
    previous_secret_until: datetime | None
    created_at: datetime
    updated_at: datetime


class SubscriptionSecret(SubscriptionView, frozen=True, kw_only=True):
    """A subscription with the secret that verifies its pushes, shown this once; one that is pulled has none."""

    secret: str | None


class SubscriptionPage(Answer, frozen=True):
    items: list[SubscriptionView]
    cursor: str | None


class CameBack(Answer, frozen=True):
    """What came back from a test: a 2xx, or why not."""

    delivered: bool
    error: str | None = None
    error_code: str | None = None


class SubscriptionQuery(PageQuery, frozen=True, kw_only=True):
    """Whose; only with `hub:admin` anybody else's."""

    service: str | None = None


async def list_subscriptions(hub: Hub, caller: Caller, query: SubscriptionQuery) -> SubscriptionPage:
    """One's own subscriptions, the oldest first; with `hub:admin` everybody's."""
    async with hub.autocommit() as tx:
        rows = await subscriptions.every(
            tx, reader(caller), of=query.service, after=place_of(query.cursor), limit=query.limit
        )
    return SubscriptionPage([view_of(row) for row in rows], cursor_of(rows, query.limit))


async def add_subscription(hub: Hub, visit: Visit, caller: Caller, body: SubscriptionDraft) -> SubscriptionSecret:
    """Subscribe to events. The secret that verifies pushes is shown this once."""
    who = reader(caller)
    service = body.service_name or caller.service
    if service != caller.service and not who.all:
        raise Forbidden(f"service_name: the token is {caller.service}'s")
    if body.url is not None:
        await hub.outside.check(body.url)
    draft = Draft(service, body.event_types, body.url, body.description, body.timeout_seconds)
    async with hub.transaction() as tx:
        try:
            added, secret = await subscriptions.add(tx, hub.keys, draft, visit.by(caller.service))
        except NotFound as error:
            raise Invalid.one("service_name", str(error)) from None
    return told(added, secret)


async def show_subscription(hub: Hub, caller: Caller, id: UUID) -> SubscriptionView:  # noqa: A002 as the path names it
    """Show a subscription and how its receiver does."""
    async with hub.autocommit() as tx:
        return view_of(await subscriptions.find(tx, id, reader(caller)))


async def change_subscription(
    hub: Hub,
    visit: Visit,
    caller: Caller,
    id: UUID,  # noqa: A002 as above
    body: SubscriptionChange,
) -> SubscriptionView:
    """Change what is wanted or where to, from the next event on."""
    if body.url is not UNSET:
        await hub.outside.check(body.url)
    to = Change(
        event_types=body.event_types or None,
        url=body.url or None,
        timeout_seconds=body.timeout_seconds or None,
        describe=body.description is not UNSET,
        description=body.description or None,
    )
    async with hub.transaction() as tx:
        return view_of(await subscriptions.change(tx, id, reader(caller), to, visit.by(caller.service)))


async def remove_subscription(hub: Hub, visit: Visit, caller: Caller, id: UUID) -> None:  # noqa: A002 as above
    """Unsubscribe. What is owed already stays, and can be pulled."""
    async with hub.transaction() as tx:
        await subscriptions.remove(tx, id, reader(caller), visit.by(caller.service))


async def pause_subscription(hub: Hub, visit: Visit, caller: Caller, id: UUID) -> SubscriptionView:  # noqa: A002 as above
    """Send nothing more: what comes waits, what is on its way arrives."""
    async with hub.transaction() as tx:
        return view_of(await subscriptions.pause(tx, id, reader(caller), visit.by(caller.service)))


async def resume_subscription(hub: Hub, visit: Visit, caller: Caller, id: UUID) -> SubscriptionView:  # noqa: A002 as above
    """Send again: what was paused, given up after a 410, or held back because its receiver fails."""
    async with hub.transaction() as tx:
        return view_of(await subscriptions.resume(tx, id, reader(caller), visit.by(caller.service)))


async def rotate_subscription_secret(
    hub: Hub,
    visit: Visit,
    caller: Caller,
    id: UUID,  # noqa: A002 as above
) -> SubscriptionSecret:
    """Make a new secret, shown this once. The one before signs beside it for a day."""
    async with hub.transaction() as tx:
        return told(*await subscriptions.rotate_secret(tx, hub.keys, id, reader(caller), visit.by(caller.service)))


async def test_subscription(hub: Hub, caller: Caller, id: UUID) -> CameBack:  # noqa: A002 as above
    """Send a signed event `pabal.test` at once and say what came back; nothing follows from it. Ten a minute."""
    async with hub.autocommit() as tx:
        subscription = await subscriptions.find(tx, id, reader(caller))
        await limits.take(tx, TESTS, str(id))
    try:
        return result_of(await hub.pusher.test(subscription))
    except Unreadable:
        raise Conflict("its secret is one no key here opens; rotate the secret") from None


def reader(caller: Caller) -> Reader:
    return Reader(caller.service, all=Permission.ADMIN in caller.permissions)


def result_of(came_back: Outcome | Gone) -> CameBack:
    match came_back:
        case Done():
            return CameBack(delivered=True)
        case Retry(why, _, code) | Dead(why, code):
            return CameBack(delivered=False, error=why, error_code=code)
        case Gone(why) | Snooze(why):
            return CameBack(delivered=False, error=why)
        case _:
            assert_never(came_back)


def view_of(subscription: Subscription) -> SubscriptionView:
    return SubscriptionView(**{name: getattr(subscription, name) for name in SubscriptionView.__struct_fields__})


def told(subscription: Subscription, secret: str | None) -> SubscriptionSecret:
    seen = {name: getattr(subscription, name) for name in SubscriptionView.__struct_fields__}
    return SubscriptionSecret(**seen, secret=secret)


ONE = "/v1/subscriptions/{id}"
DOORS = tuple(
    Door(method, path, handler, needs=Permission.CONSUME, answers=answers, may_raise=may_raise, tag="subscriptions")
    for method, path, handler, answers, may_raise in (
        ("GET", "/v1/subscriptions", list_subscriptions, 200, ()),
        ("POST", "/v1/subscriptions", add_subscription, 201, (Conflict,)),
        ("GET", ONE, show_subscription, 200, (NotFound,)),
        ("PATCH", ONE, change_subscription, 200, (NotFound, Conflict)),
        ("DELETE", ONE, remove_subscription, 204, (NotFound, Conflict)),
        ("POST", f"{ONE}/pause", pause_subscription, 200, (NotFound, Conflict)),
        ("POST", f"{ONE}/resume", resume_subscription, 200, (NotFound, Conflict)),
        ("POST", f"{ONE}/test", test_subscription, 200, (NotFound, Conflict, TooMany)),
        ("POST", f"{ONE}/rotate-secret", rotate_subscription_secret, 200, (NotFound, Conflict)),
    )
)
