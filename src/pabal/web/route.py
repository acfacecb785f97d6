"""A door: who may come in, what they bring, what they get.

The table of doors is read by the router, the checks, OpenAPI, the API page and the tests; nothing is said twice.
A handler's signature is its request: parameters are filled by their type (`Hub`, `Visit`, a `Query`, a body, a `Form`)
or, if they stand in the path, by their name. A door that needs a permission may ask for the `Caller` who has it, one of
the relay's for the `Bearer` of a token, or for the `Owner` whose account it is, a person's for the `Person`.
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
    """What is asked after the question mark; a door's own query derives from this."""


class RequestBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is brought as JSON; a door's own body derives from this."""

    decodes_items: ClassVar[bool] = False
    """Its handler reads it piece by piece, and says of each what is wrong with it."""


class RequestForm(msgspec.Struct, frozen=True):
    """What is brought as a form; OAuth wants fields it does not know passed over, and empty ones taken as absent."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"  # such forms bring secrets


class ErrorFormat(Enum):
    """How an error is written down."""

    PROBLEM = "application/problem+json"
    RELAY = "application/json"
    OAUTH = "application/json; charset=utf-8"


class ResponseBody(msgspec.Struct, frozen=True):
    """What is given back as JSON; a door's own answer derives from this."""


@dataclass(frozen=True)
class Route:
    """One method and path, and everything anybody needs to know about it."""

    method: str
    path: str
    handler: RouteHandler
    permission: Permission | None = None
    """The permission an access token must carry; None lets everybody in."""
    relay_auth: bool = False
    """Whether it opens for a session's or an account's relay token, and for that tenant alone."""
    person_auth: bool = False
    """Whether it opens for a person's token or cookie; one that also needs a permission, for either."""
    hide_path: bool = False
    """Whether its path holds a secret or a person's id, and is written into no log."""
    no_head: bool = False
    """Whether asking takes something: then a HEAD, which shows nothing of it, is not offered beside the GET."""
    status: int = 200
    other_statuses: dict[int, str] = field(default_factory=dict[int, str])
    """Other statuses that carry the same kind of answer, and when."""
    may_raise: tuple[type[RequestError] | type[Unavailable], ...] = ()
    error_format: ErrorFormat = ErrorFormat.PROBLEM
    body: type[RequestBody] | None = None
    """The body that a handler reads by itself."""
    max_items: int = 0
    """How many of such bodies it takes at once as a list; each is then read by itself, and answered by itself."""
    response: Any = None
    """What a handler that builds its own response puts into it."""
    media_type: str = "application/json"
    tag: str = "hub"

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
        told = get_type_hints(self.handler, include_extras=True)
        return {name: told[name] for name in PATH_PARAMETER.findall(self.path)}

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
        """Everything this door may refuse with: its own, and what follows from what it takes."""
        own: list[type[RequestError | Unavailable]] = [*self.may_raise]
        if self.query_type or self.body_type or self.form_type or self.path_types:
            own.append(Invalid)
        if self.body_type or self.form_type:
            own.append(BodyTooLarge)
        if self.permission or self.relay_auth or self.person_auth:
            own += [Unauthenticated, Forbidden, Unavailable]
        if AccountOwner in self.type_hints.values():
            own.append(SessionNotPaired)
        return (*dict.fromkeys(own),)

    def _parameter_type(self, kind: type[Any]) -> Any:
        for name, hint in self.type_hints.items():
            if name != "return" and isinstance(hint, type) and issubclass(hint, kind):
                return hint
        return None
