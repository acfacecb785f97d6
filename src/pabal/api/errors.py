"""One table: what is raised inside, and what the caller is told.

Outside the relay doors an error is an RFC 9457 problem with a stable `code`; the relay's clients read other keys.
"""

import math
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from pabal.api.door import Shape
from pabal.core.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NotAllowed,
    NotFound,
    PabalError,
    Refused,
    TooLarge,
    TooMany,
    Unauthenticated,
    Unavailable,
)

STATUS: tuple[tuple[type[PabalError], int], ...] = (
    (Invalid, 400),
    (Unauthenticated, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (NotAllowed, 405),
    (Conflict, 409),
    (TooLarge, 413),
    (TooMany, 429),
    (Refused, 400),
    (Unavailable, 503),
)

COME_BACK = 2
"""Seconds after which it is worth asking again when the database is away."""


class Field(msgspec.Struct, frozen=True):
    """A field and what is wrong with it."""

    field: str
    why: str


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An RFC 9457 problem. `code` is stable; `detail` is for people."""

    title: str
    status: int
    code: str
    detail: str
    type: str = "about:blank"
    mistakes: tuple[Field, ...] = ()
    request_id: str = ""


class RelayError(msgspec.Struct, frozen=True):
    """The relay's error: one client reads `error`, the other `message`."""

    error: str
    code: str
    message: str


def status_of(error: type[PabalError]) -> int:
    return next((status for kind, status in STATUS if issubclass(error, kind)), 500)


def refusal(error: PabalError, shape: Shape, request_id: str) -> Response:
    """Write down what went wrong, for a program and for a person, and nothing of our insides."""
    status = status_of(type(error))
    told = str(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, Unavailable):
        told = "something went wrong inside; the request id finds it in the log"
    elif isinstance(error, Unavailable):
        told = "the database is away for the moment; ask again"
    if shape is Shape.RELAY:
        content: Any = RelayError(error=told, code=error.code.upper(), message=told)
    else:
        content = Problem(
            title=HTTPStatus(status).phrase,
            status=status,
            code=error.code,
            detail=told,
            mistakes=tuple(Field(m.field, m.why) for m in error.mistakes) if isinstance(error, Invalid) else (),
            request_id=request_id,
        )
    return Response(msgspec.json.encode(content), status, headers_for(error), media_type=shape.value)


def headers_for(error: PabalError) -> dict[str, str]:
    """Write what HTTP says in a header rather than in a body."""
    match error:
        case TooMany():
            return {"retry-after": str(max(1, math.ceil(error.retry_after.total_seconds())))}
        case Unavailable():
            return {"retry-after": str(COME_BACK)}
        case Unauthenticated():
            return {"www-authenticate": "Bearer"}
        case _:
            return {}
