"""Subscriptions: which events a service receives, and how."""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Self, assert_never
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from pabal import limits
from pabal.api.events import ServiceName, event_access
from pabal.core.errors import Conflict, DecryptionError, Forbidden, Invalid, NotFound, RateLimited
from pabal.core.event_types import EVENT_WILDCARD_PATTERN, MAX_EVENT_PATTERNS, MAX_EVENT_TYPE_LENGTH
from pabal.events.push.pusher import PushResult
from pabal.events.subscriptions import (
    MAX_SUBSCRIPTION_DESCRIPTION,
    SUBSCRIPTION_TEST_LIMIT,
    OnBlocked,
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
from pabal.queue.outcome import Dead, Done, Retry, Unsent
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.web.field_types import FilterText
from pabal.web.pagination import PageQuery, decode_cursor, next_cursor
from pabal.web.request import RequestContext
from pabal.web.route import RequestBody, ResponseBody, Route

EventTypePatterns = Annotated[
    list[Annotated[str, msgspec.Meta(pattern=EVENT_WILDCARD_PATTERN, max_length=MAX_EVENT_TYPE_LENGTH)]],
    msgspec.Meta(min_length=1, max_length=MAX_EVENT_PATTERNS),
]
PushUrl = Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]
PushTimeoutSeconds = Annotated[int, msgspec.Meta(ge=1, le=60)]
RetrySchedule = Annotated[
    list[Annotated[int, msgspec.Meta(ge=1, le=86_400)]], msgspec.Meta(min_length=1, max_length=20)
]
"""Seconds before each retry of a push."""
SubscriptionDescription = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SUBSCRIPTION_DESCRIPTION)]


class SubscriptionBody(RequestBody, frozen=True, kw_only=True):
    """The event types to receive; `*` matches anything. With `url` events are pushed, without it they are pulled.

    `retry_schedule` are the seconds before each retry of a push, by default 5, 30, 120, 600, 3600, 14400 and 43200.
    With `on_blocked` = `hold`, a failing push holds back later events of its ordering key for the whole schedule; by
    default it becomes a dead letter after ten minutes.
    """

    event_types: EventTypePatterns
    service_name: ServiceName | None = None
    url: PushUrl | None = None
    description: SubscriptionDescription | None = None
    timeout_seconds: PushTimeoutSeconds = 15
    retry_schedule: RetrySchedule | None = None
    on_blocked: OnBlocked = "dead_letter"


class SubscriptionPatchBody(RequestBody, frozen=True, kw_only=True):
    """The fields to change."""

    event_types: EventTypePatterns | UnsetType = UNSET
    url: PushUrl | UnsetType = UNSET
    description: SubscriptionDescription | UnsetType | None = UNSET
    timeout_seconds: PushTimeoutSeconds | UnsetType = UNSET
    retry_schedule: RetrySchedule | UnsetType | None = UNSET
    on_blocked: OnBlocked | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class SubscriptionWithSecret(Subscription):
    """A subscription with the secret that verifies its pushes. The secret is shown only once; null for pull."""

    secret: str | None = field(repr=False)

    @classmethod
    def of(cls, subscription: Subscription, secret: str | None) -> Self:
        return cls(**asdict(subscription), secret=secret)


class SubscriptionPage(ResponseBody, frozen=True):
    items: list[Subscription]
    cursor: str | None


class SubscriptionTestView(ResponseBody, frozen=True):
    """The result of a test push. `delivered`: the receiver returned a 2xx status."""

    delivered: bool
    error: str | None = None
    error_code: str | None = None


class SubscriptionQuery(PageQuery, frozen=True, kw_only=True):
    """Filters. `service` requires `hub:admin` for other services."""

    service: FilterText | None = None


async def get_subscriptions(hub: Hub, caller: AuthenticatedService, query: SubscriptionQuery) -> SubscriptionPage:
    """List the subscriptions of the service, the oldest first. With `hub:admin`: of all services."""
    async with hub.autocommit() as tx:
        subscriptions = await list_subscriptions(
            tx, event_access(caller), service=query.service, after=decode_cursor(query.cursor), limit=query.limit
        )
    return SubscriptionPage(subscriptions, next_cursor(subscriptions, query.limit))


async def post_subscription(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, body: SubscriptionBody
) -> SubscriptionWithSecret:
    """Subscribe to events. The secret that verifies pushes is shown only in this response."""
    service = body.service_name or caller.service
    if service != caller.service and not event_access(caller).all_services:
        raise Forbidden(f"service_name: the token belongs to {caller.service}")
    if body.url is not None:
        await hub.http_client.check_url(body.url)
    draft = SubscriptionDraft(
        service,
        body.event_types,
        body.url,
        body.description,
        body.timeout_seconds,
        body.retry_schedule,
        body.on_blocked,
    )
    async with hub.transaction() as tx:
        try:
            subscription, secret = await add_subscription(
                tx, hub.key_ring, draft, context.actor(caller.service), hub.settings.subscriptions_per_service
            )
        except NotFound as error:
            raise Invalid.of_field("service_name", str(error)) from None
    return SubscriptionWithSecret.of(subscription, secret)


async def get_subscription(hub: Hub, caller: AuthenticatedService, id: UUID) -> Subscription:
    """Get a subscription with the state of its receiver."""
    async with hub.autocommit() as tx:
        return await find_subscription(tx, id, event_access(caller))


async def patch_subscription(
    hub: Hub,
    context: RequestContext,
    caller: AuthenticatedService,
    id: UUID,
    body: SubscriptionPatchBody,
) -> Subscription:
    """Change a subscription. Applies from the next event on."""
    if body.url is not UNSET:
        await hub.http_client.check_url(body.url)
    patch = SubscriptionPatch(
        event_types=body.event_types or None,
        url=body.url or None,
        timeout_seconds=body.timeout_seconds or None,
        set_description=body.description is not UNSET,
        description=body.description or None,
        set_retry_schedule=body.retry_schedule is not UNSET,
        retry_schedule=None if body.retry_schedule is UNSET else body.retry_schedule,
        on_blocked=None if body.on_blocked is UNSET else body.on_blocked,
    )
    async with hub.transaction() as tx:
        return await update_subscription(tx, id, event_access(caller), patch, context.actor(caller.service))


async def delete_subscription(hub: Hub, context: RequestContext, caller: AuthenticatedService, id: UUID) -> None:
    """Remove a subscription. Deliveries that are queued already stay and can be pulled."""
    async with hub.transaction() as tx:
        await remove_subscription(tx, id, event_access(caller), context.actor(caller.service))


async def post_subscription_pause(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, id: UUID
) -> Subscription:
    """Pause a subscription. New events wait; pushes already sent arrive."""
    async with hub.transaction() as tx:
        return await pause_subscription(tx, id, event_access(caller), context.actor(caller.service))


async def post_subscription_resume(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, id: UUID
) -> Subscription:
    """Resume a subscription that is paused, disabled after a 410, or held back because its receiver fails."""
    async with hub.transaction() as tx:
        return await resume_subscription(tx, id, event_access(caller), context.actor(caller.service))


async def post_subscription_rotate_secret(
    hub: Hub,
    context: RequestContext,
    caller: AuthenticatedService,
    id: UUID,
) -> SubscriptionWithSecret:
    """Rotate the secret. The new one is shown only in this response; the previous one also signs for 24 hours."""
    async with hub.transaction() as tx:
        return SubscriptionWithSecret.of(
            *await rotate_subscription_secret(tx, hub.key_ring, id, event_access(caller), context.actor(caller.service))
        )


async def post_subscription_test(hub: Hub, caller: AuthenticatedService, id: UUID) -> SubscriptionTestView:
    """Send a signed `pabal.test` event now and return the result. Does not affect the subscription. 10 per minute."""
    async with hub.autocommit() as tx:
        subscription = await find_subscription(tx, id, event_access(caller))
        await limits.consume_rate_limit(tx, SUBSCRIPTION_TEST_LIMIT, str(id))
    try:
        return subscription_test_view(await hub.pusher.send_test(subscription))
    except DecryptionError:
        raise Conflict("The secret cannot be decrypted with the keys of this hub. Rotate the secret") from None


def subscription_test_view(result: PushResult) -> SubscriptionTestView:
    match result:
        case Done():
            return SubscriptionTestView(delivered=True)
        case Retry(error, _, code) | Unsent(error, code):
            return SubscriptionTestView(delivered=False, error=error, error_code=code)
        case Dead(error):
            return SubscriptionTestView(delivered=False, error=error)
        case _:
            assert_never(result)


SUBSCRIPTION_PATH = "/v1/subscriptions/{id}"
ROUTES = tuple(
    Route(
        method,
        path,
        handler,
        permission=Permission.CONSUME,
        or_admin=method == "GET",
        status=status,
        may_raise=may_raise,
        tag="subscriptions",
    )
    for method, path, handler, status, may_raise in (
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
