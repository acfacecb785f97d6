"""Subscriptions: which events a service wants, and where to."""

from datetime import datetime, timedelta
from typing import Annotated, Literal, assert_never
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from pabal import limits
from pabal.core.errors import Conflict, DecryptionError, Forbidden, Invalid, NotFound, RateLimited
from pabal.events.events import EventAccess
from pabal.events.push import ReceiverGone
from pabal.events.subscriptions import (
    Subscription,
    SubscriptionDraft,
    SubscriptionPatch,
    add_subscription,
    find_subscription,
    list_subscriptions,
    pause_subscription,
    remove_subscription,
    resume_subscription,
    rotate_subscription_secret,
    update_subscription,
)
from pabal.hub import Hub
from pabal.limits import RateLimit
from pabal.queue.outcome import Dead, Done, Outcome, Retry, Snooze
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.web.pagination import PageQuery, decode_cursor, next_cursor
from pabal.web.request import RequestContext
from pabal.web.route import RequestBody, ResponseBody, Route

EventTypePatterns = Annotated[
    list[Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_*]+(\.[a-z0-9_*]+)*$", max_length=128)]],
    msgspec.Meta(min_length=1, max_length=50),
]
SubscriberName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{1,62}$")]
PushUrl = Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]
PushTimeoutSeconds = Annotated[int, msgspec.Meta(ge=1, le=60)]
SubscriptionDescription = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]

SUBSCRIPTION_TEST_LIMIT = RateLimit("tests of this subscription", 10, timedelta(minutes=1))
"""Each is a request to somebody else's server, at once and past the queue."""


class SubscriptionBody(RequestBody, frozen=True, kw_only=True):
    """Which types, * standing for anything. With `url` the hub posts them there, without it they are pulled."""

    event_types: EventTypePatterns
    service_name: SubscriberName | None = None
    url: PushUrl | None = None
    description: SubscriptionDescription | None = None
    timeout_seconds: PushTimeoutSeconds = 15


class SubscriptionPatchBody(RequestBody, frozen=True, kw_only=True):
    """What shall be otherwise; what is left out stays."""

    event_types: EventTypePatterns | UnsetType = UNSET
    url: PushUrl | UnsetType = UNSET
    description: SubscriptionDescription | UnsetType | None = UNSET
    timeout_seconds: PushTimeoutSeconds | UnsetType = UNSET


class SubscriptionView(ResponseBody, frozen=True):
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


class SubscriptionSecretView(SubscriptionView, frozen=True, kw_only=True):
    """A subscription with the secret that verifies its pushes, shown this once; one that is pulled has none."""

    secret: str | None


class SubscriptionPage(ResponseBody, frozen=True):
    items: list[SubscriptionView]
    cursor: str | None


class SubscriptionTestView(ResponseBody, frozen=True):
    """What came back from a test: a 2xx, or why not."""

    delivered: bool
    error: str | None = None
    error_code: str | None = None


class SubscriptionQuery(PageQuery, frozen=True, kw_only=True):
    """Whose; only with `hub:admin` anybody else's."""

    service: str | None = None


async def get_subscriptions(hub: Hub, caller: AuthenticatedService, query: SubscriptionQuery) -> SubscriptionPage:
    """One's own subscriptions, the oldest first; with `hub:admin` everybody's."""
    async with hub.autocommit() as tx:
        rows = await list_subscriptions(
            tx, subscription_access(caller), service=query.service, after=decode_cursor(query.cursor), limit=query.limit
        )
    return SubscriptionPage([subscription_view(row) for row in rows], next_cursor(rows, query.limit))


async def post_subscription(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, body: SubscriptionBody
) -> SubscriptionSecretView:
    """Subscribe to events. The secret that verifies pushes is shown this once."""
    who = subscription_access(caller)
    service = body.service_name or caller.service
    if service != caller.service and not who.all_services:
        raise Forbidden(f"service_name: the token is {caller.service}'s")
    if body.url is not None:
        await hub.http_client.check_url(body.url)
    draft = SubscriptionDraft(service, body.event_types, body.url, body.description, body.timeout_seconds)
    async with hub.transaction() as tx:
        try:
            added, secret = await add_subscription(tx, hub.key_ring, draft, context.actor(caller.service))
        except NotFound as error:
            raise Invalid.of_field("service_name", str(error)) from None
    return subscription_secret_view(added, secret)


async def get_subscription(hub: Hub, caller: AuthenticatedService, id: UUID) -> SubscriptionView:
    """Show a subscription and how its receiver does."""
    async with hub.autocommit() as tx:
        return subscription_view(await find_subscription(tx, id, subscription_access(caller)))


async def patch_subscription(
    hub: Hub,
    context: RequestContext,
    caller: AuthenticatedService,
    id: UUID,
    body: SubscriptionPatchBody,
) -> SubscriptionView:
    """Change what is wanted or where to, from the next event on."""
    if body.url is not UNSET:
        await hub.http_client.check_url(body.url)
    to = SubscriptionPatch(
        event_types=body.event_types or None,
        url=body.url or None,
        timeout_seconds=body.timeout_seconds or None,
        set_description=body.description is not UNSET,
        description=body.description or None,
    )
    async with hub.transaction() as tx:
        return subscription_view(
            await update_subscription(tx, id, subscription_access(caller), to, context.actor(caller.service))
        )


async def delete_subscription(hub: Hub, context: RequestContext, caller: AuthenticatedService, id: UUID) -> None:
    """Unsubscribe. What is owed already stays, and can be pulled."""
    async with hub.transaction() as tx:
        await remove_subscription(tx, id, subscription_access(caller), context.actor(caller.service))


async def post_subscription_pause(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, id: UUID
) -> SubscriptionView:
    """Send nothing more: what comes waits, what is on its way arrives."""
    async with hub.transaction() as tx:
        return subscription_view(
            await pause_subscription(tx, id, subscription_access(caller), context.actor(caller.service))
        )


async def post_subscription_resume(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, id: UUID
) -> SubscriptionView:
    """Send again: what was paused, given up after a 410, or held back because its receiver fails."""
    async with hub.transaction() as tx:
        return subscription_view(
            await resume_subscription(tx, id, subscription_access(caller), context.actor(caller.service))
        )


async def post_subscription_rotate_secret(
    hub: Hub,
    context: RequestContext,
    caller: AuthenticatedService,
    id: UUID,
) -> SubscriptionSecretView:
    """Make a new secret, shown this once. The one before signs beside it for a day."""
    async with hub.transaction() as tx:
        return subscription_secret_view(
            *await rotate_subscription_secret(
                tx, hub.key_ring, id, subscription_access(caller), context.actor(caller.service)
            )
        )


async def post_subscription_test(hub: Hub, caller: AuthenticatedService, id: UUID) -> SubscriptionTestView:
    """Send a signed event `pabal.test` at once and say what came back; nothing follows from it. Ten a minute."""
    async with hub.autocommit() as tx:
        subscription = await find_subscription(tx, id, subscription_access(caller))
        await limits.consume_rate_limit(tx, SUBSCRIPTION_TEST_LIMIT, str(id))
    try:
        return subscription_test_view(await hub.pusher.send_test(subscription))
    except DecryptionError:
        raise Conflict("its secret is one no key here opens; rotate the secret") from None


def subscription_access(caller: AuthenticatedService) -> EventAccess:
    return EventAccess(caller.service, all_services=Permission.ADMIN in caller.permissions)


def subscription_test_view(outcome: Outcome | ReceiverGone) -> SubscriptionTestView:
    match outcome:
        case Done():
            return SubscriptionTestView(delivered=True)
        case Retry(why, _, code) | Dead(why, code):
            return SubscriptionTestView(delivered=False, error=why, error_code=code)
        case ReceiverGone(why) | Snooze(why):
            return SubscriptionTestView(delivered=False, error=why)
        case _:
            assert_never(outcome)


def subscription_view(subscription: Subscription) -> SubscriptionView:
    return SubscriptionView(**{name: getattr(subscription, name) for name in SubscriptionView.__struct_fields__})


def subscription_secret_view(subscription: Subscription, secret: str | None) -> SubscriptionSecretView:
    seen = {name: getattr(subscription, name) for name in SubscriptionView.__struct_fields__}
    return SubscriptionSecretView(**seen, secret=secret)


SUBSCRIPTION_PATH = "/v1/subscriptions/{id}"
ROUTES = tuple(
    Route(
        method, path, handler, permission=Permission.CONSUME, status=answers, may_raise=may_raise, tag="subscriptions"
    )
    for method, path, handler, answers, may_raise in (
        ("GET", "/v1/subscriptions", get_subscriptions, 200, ()),
        ("POST", "/v1/subscriptions", post_subscription, 201, (Conflict,)),
        ("GET", SUBSCRIPTION_PATH, get_subscription, 200, (NotFound,)),
        ("PATCH", SUBSCRIPTION_PATH, patch_subscription, 200, (NotFound, Conflict)),
        ("DELETE", SUBSCRIPTION_PATH, delete_subscription, 204, (NotFound, Conflict)),
        ("POST", f"{SUBSCRIPTION_PATH}/pause", post_subscription_pause, 200, (NotFound, Conflict)),
        ("POST", f"{SUBSCRIPTION_PATH}/resume", post_subscription_resume, 200, (NotFound, Conflict)),
        ("POST", f"{SUBSCRIPTION_PATH}/test", post_subscription_test, 200, (NotFound, Conflict, RateLimited)),
        ("POST", f"{SUBSCRIPTION_PATH}/rotate-secret", post_subscription_rotate_secret, 200, (NotFound, Conflict)),
    )
)
