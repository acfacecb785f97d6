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
    BadGrant,
    BadScope,
    BadToken,
    CallbackFailed,
    CallbackUnknown,
    Conflict,
    Forbidden,
    Invalid,
    NotAllowed,
    NotFound,
    OtherGrant,
    OutOfScope,
    PabalError,
    Refused,
    TooLarge,
    TooMany,
    Unauthenticated,
    Unavailable,
    UnknownClient,
)
from pabal.db.faults import Contended

STATUS: tuple[tuple[type[PabalError], int], ...] = (
    (Invalid, 400),
    (Unauthenticated, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (NotAllowed, 405),
    (Conflict, 409),
    (TooLarge, 413),
    (TooMany, 429),
    (CallbackFailed, 502),
    (CallbackUnknown, 502),
    (Refused, 400),
    (Unavailable, 503),
    (Contended, 503),
)

REALM = 'realm="pabal"'
AGAIN = (Unavailable, Contended)
"""Nobody's fault, and over in a moment."""
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


RELAY: dict[type[PabalError], str] = {
    Unauthenticated: "UNAUTHORIZED",
    TooMany: "RATE_LIMITED",
    Invalid: "INVALID_REQUEST",
}
"""What the relay's clients know by another name."""


class OAuthError(msgspec.Struct, frozen=True):
    """An error as RFC 6749 spells it."""

    error: str
    error_description: str


OAUTH = (BadGrant, BadScope, OtherGrant, UnknownClient, BadToken, OutOfScope)
"""Those whose code is the RFC's own."""


def oauth_code(error: PabalError, status: int) -> str:
    if isinstance(error, OAUTH):
        return error.code
    if status == HTTPStatus.TOO_MANY_REQUESTS or isinstance(error, AGAIN):
        return "temporarily_unavailable"
    return "invalid_request" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"


def status_of(error: type[PabalError]) -> int:
    return next((status for kind, status in STATUS if issubclass(error, kind)), 500)


def refusal(error: PabalError, shape: Shape, request_id: str) -> Response:
    """Write down what went wrong, for a program and for a person, and nothing of our insides."""
    status = status_of(type(error))
    told = str(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, (Refused, *AGAIN)):
        told = "something went wrong inside; the request id finds it in the log"
    elif isinstance(error, AGAIN):
        told = "the database is away or busy for the moment; ask again"
    content: Any
    if shape is Shape.RELAY:
        content = RelayError(error=told, code=RELAY.get(type(error), error.code.upper()), message=told)
    elif shape is Shape.OAUTH:
        content = OAuthError(oauth_code(error, status), ascii_only(told))
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
        case Unavailable() | Contended():
            return {"retry-after": str(COME_BACK)}
        case Unauthenticated() | OutOfScope():
            return {"www-authenticate": challenge(error)}
        case _:
            return {}


def challenge(error: Unauthenticated | OutOfScope) -> str:
    """Say how to come in: with a service's secret (RFC 7617), or with what kind of token (RFC 6750)."""
    match error:
        case UnknownClient():
            return f'Basic {REALM}, charset="UTF-8"'
        case BadToken():
            return f'Bearer {REALM}, error="{error.code}", error_description="{ascii_only(str(error))}"'
        case OutOfScope():
            return f'Bearer {REALM}, error="{error.code}", scope="{error.needs}"'
        case _:
            return f"Bearer {REALM}"


def ascii_only(text: str) -> str:
    """RFC 6749 allows an error_description no quotes and nothing beyond ASCII."""
    plain = text.replace('"', "'").replace("\\", "/").encode("ascii", "replace").decode()
    return "".join(each if each.isprintable() else " " for each in plain)
