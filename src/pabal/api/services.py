"""Services: add, change, disable and remove them, and rotate their secrets."""

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, Self
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from pabal.api.subscriptions import EventTypePatterns
from pabal.core.errors import Conflict, NotFound
from pabal.hub import Hub
from pabal.tokens.permission import Permission
from pabal.tokens.services import (
    MAX_SERVICE_DESCRIPTION,
    SECRET_OVERLAP,
    SERVICE_NAME_PATTERN,
    Service,
    ServicePatch,
    add_service,
    find_service,
    list_live_secrets,
    list_services,
    remove_service,
    rotate_service_secret,
    set_service_active,
    update_service,
)
from pabal.tokens.verify import AuthenticatedService
from pabal.web.pagination import PageQuery
from pabal.web.request import RequestContext
from pabal.web.route import RequestBody, ResponseBody, Route

NewServiceName = Annotated[str, msgspec.Meta(pattern=SERVICE_NAME_PATTERN, max_length=63)]
PermissionName = Literal[
    "read",
    "write",
    "events:publish",
    "events:consume",
    "events:read",
    "notifications:send",
    "notifications:read",
    "people:token",
    "people:write",
    "tokens:introspect",
    "tokens:admin",
    "hub:events",
    "hub:admin",
    "hub:manage",
]
"""The values of PERMISSION_NAMES."""
PermissionList = Annotated[list[PermissionName], msgspec.Meta(min_length=1, max_length=20)]
ServiceDescription = Annotated[str, msgspec.Meta(max_length=MAX_SERVICE_DESCRIPTION)]
OverlapSeconds = Annotated[int, msgspec.Meta(ge=0, le=2_592_000)]
DEFAULT_OVERLAP_SECONDS = int(SECRET_OVERLAP.total_seconds())


class ServiceBody(RequestBody, frozen=True, kw_only=True):
    """A service to add. Without patterns it may publish and receive every event type except the hub's."""

    name: NewServiceName
    permissions: PermissionList
    description: ServiceDescription | None = None
    may_publish: EventTypePatterns | None = None
    may_subscribe: EventTypePatterns | None = None


class ServicePatchBody(RequestBody, frozen=True, kw_only=True):
    """The fields to change. Omitted fields stay unchanged."""

    permissions: PermissionList | UnsetType = UNSET
    description: ServiceDescription | UnsetType | None = UNSET
    may_publish: EventTypePatterns | UnsetType | None = UNSET
    may_subscribe: EventTypePatterns | UnsetType | None = UNSET


class SecretRotationBody(RequestBody, frozen=True, kw_only=True):
    """How long the previous secret stays valid."""

    overlap_seconds: OverlapSeconds = DEFAULT_OVERLAP_SECONDS


class ServiceView(ResponseBody, frozen=True, kw_only=True):
    """A service."""

    name: str
    description: str | None
    permissions: list[str]
    may_publish: list[str] | None
    may_subscribe: list[str] | None
    is_active: bool
    disabled_at: datetime | None
    created_at: datetime

    @classmethod
    def of(cls, service: Service) -> Self:
        return cls(**service_fields(service))


class ServiceSecretView(ResponseBody, frozen=True):
    """A valid secret, without the secret itself."""

    id: UUID
    created_at: datetime
    expires_at: datetime | None


class ServiceDetailView(ServiceView, frozen=True, kw_only=True):
    """A service with its valid secrets."""

    secrets: list[ServiceSecretView]


class ServiceWithSecret(ServiceView, frozen=True, kw_only=True):
    """A service with its new secret, which is shown only once."""

    client_id: str
    client_secret: str

    def __repr__(self) -> str:
        return f"ServiceWithSecret({self.name!r})"


class ServicePage(ResponseBody, frozen=True):
    items: list[ServiceView]
    cursor: str | None


async def get_services(hub: Hub, query: PageQuery) -> ServicePage:
    """List the services by name."""
    async with hub.autocommit() as tx:
        rows = await list_services(tx, after=query.cursor or "", limit=query.limit)
    return ServicePage([ServiceView.of(row) for row in rows], rows[-1].name if len(rows) == query.limit else None)


async def post_service(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, body: ServiceBody
) -> ServiceWithSecret:
    """Add a service. Its secret is shown only in this response."""
    async with hub.transaction() as tx:
        service, secret = await add_service(
            tx,
            body.name,
            body.permissions,
            context.actor(caller.service),
            description=body.description,
            may_publish=body.may_publish or (),
            may_subscribe=body.may_subscribe or (),
        )
    return ServiceWithSecret(**service_fields(service), client_id=service.name, client_secret=secret)


async def get_service(hub: Hub, name: NewServiceName) -> ServiceDetailView:
    """Get a service with its valid secrets."""
    async with hub.autocommit() as tx:
        service = await find_service(tx, name)
        secrets = await list_live_secrets(tx, name)
    views = [ServiceSecretView(secret.id, secret.created_at, secret.expires_at) for secret in secrets]
    return ServiceDetailView(**service_fields(service), secrets=views)


async def patch_service(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, name: NewServiceName, body: ServicePatchBody
) -> ServiceView:
    """Change a service. New rights apply at once to the tokens and subscriptions that it already has."""
    patch = ServicePatch(
        permissions=body.permissions or None,
        may_publish=None if body.may_publish is UNSET else body.may_publish or (),
        may_subscribe=None if body.may_subscribe is UNSET else body.may_subscribe or (),
        description=None if body.description is UNSET else body.description or "",
    )
    async with hub.transaction() as tx:
        return ServiceView.of(await update_service(tx, name, patch, context.actor(caller.service)))


async def delete_service(hub: Hub, context: RequestContext, caller: AuthenticatedService, name: NewServiceName) -> None:
    """Remove a service that has no events, notifications, subscriptions, database roles, links and tokens."""
    async with hub.transaction() as tx:
        await remove_service(tx, name, context.actor(caller.service))


async def post_service_disable(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, name: NewServiceName
) -> ServiceView:
    """Disable a service. Its secrets and tokens are refused at once."""
    async with hub.transaction() as tx:
        return ServiceView.of(await set_service_active(tx, name, context.actor(caller.service), active=False))


async def post_service_enable(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, name: NewServiceName
) -> ServiceView:
    """Enable a disabled service. Its unexpired secrets and tokens work again."""
    async with hub.transaction() as tx:
        return ServiceView.of(await set_service_active(tx, name, context.actor(caller.service), active=True))


async def post_service_rotate_secret(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, name: NewServiceName, body: SecretRotationBody
) -> ServiceWithSecret:
    """Create a new secret, which is shown only in this response. The previous one stays valid during the overlap."""
    overlap = timedelta(seconds=body.overlap_seconds)
    async with hub.transaction() as tx:
        service = await find_service(tx, name)
        secret = await rotate_service_secret(tx, name, context.actor(caller.service), overlap=overlap)
    return ServiceWithSecret(**service_fields(service), client_id=name, client_secret=secret)


def service_fields(service: Service) -> dict[str, Any]:
    return {name: getattr(service, name) for name in ServiceView.__struct_fields__}


SERVICE_PATH = "/v1/services/{name}"
ROUTES = tuple(
    Route(
        method,
        path,
        handler,
        permission=Permission.MANAGE,
        status=status,
        may_raise=may_raise,
        tag="services",
    )
    for method, path, handler, status, may_raise in (
        ("GET", "/v1/services", get_services, 200, ()),
        ("POST", "/v1/services", post_service, 201, (Conflict,)),
        ("GET", SERVICE_PATH, get_service, 200, (NotFound,)),
        ("PATCH", SERVICE_PATH, patch_service, 200, (NotFound, Conflict)),
        ("DELETE", SERVICE_PATH, delete_service, 204, (NotFound, Conflict)),
        ("POST", f"{SERVICE_PATH}/disable", post_service_disable, 200, (NotFound, Conflict)),
        ("POST", f"{SERVICE_PATH}/enable", post_service_enable, 200, (NotFound,)),
        ("POST", f"{SERVICE_PATH}/rotate-secret", post_service_rotate_secret, 200, (NotFound, Conflict)),
    )
)
