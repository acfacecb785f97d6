"""A route: method and path, required credentials, request and response types.

The router, validation, OpenAPI, the API page and the tests all read the same table of routes. A handler's signature
describes its request. Parameters are filled by type (`Hub`, `RequestContext`, a `RequestQuery`, a `RequestBody`, a
`RequestForm`) or, if they are part of the path, by name. The authenticated caller arrives as an `AuthenticatedService`
(`permission`), a `Person` (`person_auth`), or a `RelayPrincipal` or `AccountOwner` (`relay_auth`).
"""

import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar, get_type_hints

import msgspec

from pabal.core.errors import (
    BodyTooLarge,
    Forbidden,
    Invalid,
    RequestError,
    SessionNotPaired,
    Unauthenticated,
    Unavailable,
)
from pabal.relay.auth import AccountOwner
from pabal.tokens.permission import Permission

RouteHandler = Callable[..., Awaitable[Any]]

PATH_PARAMETER = re.compile(r"{(\w+)}")


class RequestQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of query parameters."""


class RequestBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of JSON request bodies."""

    decodes_items: ClassVar[bool] = False
    """Whether the handler decodes the items itself and reports errors per item."""


class RequestForm(msgspec.Struct, frozen=True):
    """Base class of form bodies. As OAuth requires, unknown fields are ignored and empty ones count as absent."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"  # forms carry secrets


class ErrorFormat(Enum):
    """The shape of an error response's body."""

    PROBLEM = "problem"
    """RFC 9457."""
    RELAY = "relay"
    """What the relay's clients expect."""
    OAUTH = "oauth"
    """RFC 6749, section 5.2."""

    @property
    def media_type(self) -> str:
        return "application/problem+json" if self is ErrorFormat.PROBLEM else "application/json"


class HandlerAuth(Enum):
    """The credential that a handler checks itself. Its value is the name of the OpenAPI security scheme."""

    RELAY = "relay"
    WEBHOOK = "webhook"
    SECRET = "secret"  # noqa: S105 the name of a scheme


class ResponseBody(msgspec.Struct, frozen=True):
    """Base class of JSON response bodies."""


@dataclass(frozen=True)
class Route:
    """One row of the route table."""

    method: str
    path: str
    handler: RouteHandler
    permission: Permission | None = None
    """The permission that the access token must carry; None requires no access token."""
    or_admin: bool = False
    """Whether the permission `hub:admin` is enough as well: it shows the rows of all services."""
    or_permission: Permission | None = None
    """Another permission that is enough as well; the handler checks what it shows."""
    relay_auth: bool = False
    """Whether a session token or an account's relay token is required; the route serves only that tenant."""
    person_auth: bool = False
    """Whether a person's token or cookie is required; with a `permission` as well, either one is enough."""
    ticket_auth: bool = False
    """Whether a stream ticket in the query is enough as well, with `person_auth`; it is used by the request."""
    cross_origin: bool = False
    """Whether pages of `PABAL_ALLOWED_ORIGINS` may call the route, with a person's token or a ticket."""
    handler_auth: HandlerAuth | None = None
    """The credential that the handler checks itself, for the reference."""
    hide_path: bool = False
    """Whether the path contains a secret or a person's id, so that logs show only its pattern."""
    no_head: bool = False
    """Whether a GET has side effects, such as claiming rows; HEAD is then not offered."""
    status: int = 200
    other_statuses: dict[int, str] = field(default_factory=dict[int, str])
    """Further statuses with the same response body, each with its description."""
    may_raise: tuple[type[RequestError] | type[Unavailable], ...] = ()
    error_format: ErrorFormat = ErrorFormat.PROBLEM
    body: type[RequestBody] | None = None
    """The body type, if the handler reads the body itself."""
    documented_body: type[msgspec.Struct] | None = None
    """The parts of another program's body that the handler reads, for the reference."""
    max_body_bytes: int | None = 262_144
    """The largest body, if it is below the setting `body_limit`; None: as large as the setting allows."""
    max_items: int = 0
    """How many bodies may be sent at once as a list; each one is decoded and answered separately. 0: no lists."""
    response: Any = None
    """The response type, if the handler builds a `Response` itself."""
    media_type: str = "application/json"
    tag: str = "hub"

    @property
    def other_permissions(self) -> tuple[Permission, ...]:
        """The permissions that are enough in place of `permission`."""
        others = (self.or_permission, Permission.ADMIN if self.or_admin else None)
        return tuple(permission for permission in others if permission is not None)

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def description(self) -> str:
        return inspect.getdoc(self.handler) or ""

    @cached_property
    def type_hints(self) -> dict[str, Any]:
        return get_type_hints(self.handler)

    @cached_property
    def path_types(self) -> dict[str, Any]:
        hints = get_type_hints(self.handler, include_extras=True)
        return {name: hints[name] for name in PATH_PARAMETER.findall(self.path)}

    @cached_property
    def query_type(self) -> type[RequestQuery] | None:
        return self._parameter_type(RequestQuery)

    @cached_property
    def body_type(self) -> type[RequestBody] | None:
        return self.body or self._parameter_type(RequestBody)

    @cached_property
    def form_type(self) -> type[RequestForm] | None:
        return self._parameter_type(RequestForm)

    @cached_property
    def response_type(self) -> Any:
        return self.response or self.type_hints.get("return")

    @cached_property
    def error_types(self) -> tuple[type[RequestError] | type[Unavailable], ...]:
        """Every error this route may raise: its own, and those that follow from its parameters."""
        errors: list[type[RequestError | Unavailable]] = [*self.may_raise]
        if self.query_type or self.body_type or self.form_type or self.path_types:
            errors.append(Invalid)
        if self.body_type or self.form_type:
            errors.append(BodyTooLarge)
        if self.permission or self.relay_auth or self.person_auth:
            errors += [Unauthenticated, Forbidden, Unavailable]
        elif self.method != "GET":  # a page of another site
            errors.append(Forbidden)
        if AccountOwner in self.type_hints.values():
            errors.append(SessionNotPaired)
        return (*dict.fromkeys(errors),)

    def _parameter_type(self, kind: type[Any]) -> Any:
        for name, hint in self.type_hints.items():
            if name != "return" and isinstance(hint, type) and issubclass(hint, kind):
                return hint
        return None
