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

from pabal.core.errors import Forbidden, Invalid, NotPaired, Refused, TooLarge, Unauthenticated, Unavailable
from pabal.relay.bearer import Owner
from pabal.tokens.permission import Permission

Handler = Callable[..., Awaitable[Any]]

IN_PATH = re.compile(r"{(\w+)}")


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked after the question mark; a door's own query derives from this."""


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is brought as JSON; a door's own body derives from this."""

    in_pieces: ClassVar[bool] = False
    """Its handler reads it piece by piece, and says of each what is wrong with it."""


class Form(msgspec.Struct, frozen=True):
    """What is brought as a form; OAuth wants fields it does not know passed over, and empty ones taken as absent."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"  # such forms bring secrets


class Shape(Enum):
    """How an error is written down."""

    PROBLEM = "application/problem+json"
    RELAY = "application/json"
    OAUTH = "application/json; charset=utf-8"


class Answer(msgspec.Struct, frozen=True):
    """What is given back as JSON; a door's own answer derives from this."""


@dataclass(frozen=True)
class Door:
    """One method and path, and everything anybody needs to know about it."""

    method: str
    path: str
    handler: Handler
    needs: Permission | None = None
    """The permission an access token must carry; None lets everybody in."""
    bearer: bool = False
    """Whether it opens for a session's or an account's relay token, and for that tenant alone."""
    person: bool = False
    """Whether it opens for a person's token or cookie; one that also needs a permission, for either."""
    discreet: bool = False
    """Whether its path holds a secret or a person's id, and is written into no log."""
    claims: bool = False
    """Whether asking takes something: then a HEAD, which shows nothing of it, is not offered beside the GET."""
    answers: int = 200
    also: dict[int, str] = field(default_factory=dict[int, str])
    """Other statuses that carry the same kind of answer, and when."""
    may_raise: tuple[type[Refused] | type[Unavailable], ...] = ()
    shape: Shape = Shape.PROBLEM
    takes: type[Body] | None = None
    """The body that a handler reads by itself."""
    many: int = 0
    """How many of such bodies it takes at once as a list; each is then read by itself, and answered by itself."""
    gives: Any = None
    """What a handler that builds its own response puts into it."""
    media_type: str = "application/json"
    tag: str = "hub"

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def says(self) -> str:
        return inspect.getdoc(self.handler) or ""

    @cached_property
    def hints(self) -> dict[str, Any]:
        return get_type_hints(self.handler)

    @cached_property
    def in_path(self) -> dict[str, Any]:
        told = get_type_hints(self.handler, include_extras=True)
        return {name: told[name] for name in IN_PATH.findall(self.path)}

    @cached_property
    def query(self) -> type[Query] | None:
        return self._taken(Query)

    @cached_property
    def body(self) -> type[Body] | None:
        return self.takes or self._taken(Body)

    @cached_property
    def form(self) -> type[Form] | None:
        return self._taken(Form)

    @cached_property
    def answer(self) -> Any:
        return self.gives or self.hints.get("return")

    @cached_property
    def errors(self) -> tuple[type[Refused] | type[Unavailable], ...]:
        """Everything this door may refuse with: its own, and what follows from what it takes."""
        own: list[type[Refused | Unavailable]] = [*self.may_raise]
        if self.query or self.body or self.form or self.in_path:
            own.append(Invalid)
        if self.body or self.form:
            own.append(TooLarge)
        if self.needs or self.bearer or self.person:
            own += [Unauthenticated, Forbidden, Unavailable]
        if Owner in self.hints.values():
            own.append(NotPaired)
        return (*dict.fromkeys(own),)

    def _taken(self, kind: type[Any]) -> Any:
        for name, hint in self.hints.items():
            if name != "return" and isinstance(hint, type) and issubclass(hint, kind):
                return hint
        return None
