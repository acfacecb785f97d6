"""One table: what is raised inside, and what the caller is told.

Outside the relay doors an error is an RFC 9457 problem with a stable `code`; the relay's clients read other keys.
"""

import enum
import math
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Literal, get_args, get_origin

import msgspec
from starlette.responses import Response

from pabal.core.errors import (
    BodyTooLarge,
    CallbackFailed,
    CallbackUnconfirmed,
    Conflict,
    Forbidden,
    InsufficientScope,
    Invalid,
    InvalidClient,
    InvalidGrant,
    InvalidScope,
    InvalidToken,
    MethodNotAllowed,
    NotFound,
    PabalError,
    RateLimited,
    RequestError,
    Unauthenticated,
    Unavailable,
    UnsupportedGrantType,
)
from pabal.db.errors import RetryableError
from pabal.web.route import ErrorFormat

STATUS_BY_ERROR: tuple[tuple[type[PabalError], int], ...] = (
    (Invalid, 400),
    (Unauthenticated, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (MethodNotAllowed, 405),
    (Conflict, 409),
    (BodyTooLarge, 413),
    (RateLimited, 429),
    (CallbackFailed, 502),
    (CallbackUnconfirmed, 502),
    (RequestError, 400),
    (Unavailable, 503),
    (RetryableError, 503),
)

REALM = 'realm="pabal"'
RETRYABLE_ERRORS = (Unavailable, RetryableError)
"""Nobody's fault, and over in a moment."""
UNAVAILABLE_RETRY_SECONDS = 2
"""Seconds after which it is worth asking again when the database is away."""


class FieldErrorView(msgspec.Struct, frozen=True):
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
    mistakes: tuple[FieldErrorView, ...] = ()
    request_id: str = ""


class RelayProblem(msgspec.Struct, frozen=True):
    """The relay's error: one client reads `error`, the other `message`."""

    error: str
    code: str
    message: str


RELAY_CODES: dict[type[PabalError], str] = {
    Unauthenticated: "UNAUTHORIZED",
    RateLimited: "RATE_LIMITED",
    Invalid: "INVALID_REQUEST",
}
"""What the relay's clients know by another name."""


class OAuthProblem(msgspec.Struct, frozen=True):
    """An error as RFC 6749 spells it."""

    error: str
    error_description: str


OAUTH_ERRORS = (InvalidGrant, InvalidScope, UnsupportedGrantType, InvalidClient, InvalidToken, InsufficientScope)
"""Those whose code is the RFC's own."""


def oauth_error_code(error: PabalError, status: int) -> str:
    if isinstance(error, OAUTH_ERRORS):
        return error.code
    if status == HTTPStatus.TOO_MANY_REQUESTS or isinstance(error, RETRYABLE_ERRORS):
        return "temporarily_unavailable"
    return "invalid_request" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"


def error_status(error: type[PabalError]) -> int:
    return next((status for kind, status in STATUS_BY_ERROR if issubclass(error, kind)), 500)


def error_response(error: PabalError, error_format: ErrorFormat, request_id: str) -> Response:
    """Write down what went wrong, for a program and for a person, and nothing of our insides."""
    status = error_status(type(error))
    told = str(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, (RequestError, *RETRYABLE_ERRORS)):
        told = "something went wrong inside; the request id finds it in the log"
    elif isinstance(error, RETRYABLE_ERRORS):
        told = "the database is away or busy for the moment; ask again"
    content: Any
    if error_format is ErrorFormat.RELAY:
        content = RelayProblem(error=told, code=RELAY_CODES.get(type(error), error.code.upper()), message=told)
    elif error_format is ErrorFormat.OAUTH:
        content = OAuthProblem(oauth_error_code(error, status), to_printable_ascii(told))
    else:
        content = Problem(
            title=HTTPStatus(status).phrase,
            status=status,
            code=error.code,
            detail=told,
            mistakes=tuple(FieldErrorView(m.field, m.why) for m in error.errors) if isinstance(error, Invalid) else (),
            request_id=request_id,
        )
    return Response(msgspec.json.encode(content), status, error_headers(error), media_type=error_format.value)


def error_headers(error: PabalError) -> dict[str, str]:
    """Write what HTTP says in a header rather than in a body."""
    match error:
        case RateLimited():
            return {"retry-after": str(max(1, math.ceil(error.retry_after.total_seconds())))}
        case Unavailable() | RetryableError():
            return {"retry-after": str(UNAVAILABLE_RETRY_SECONDS)}
        case Unauthenticated() | InsufficientScope():
            return {"www-authenticate": authenticate_challenge(error)}
        case _:
            return {}


def authenticate_challenge(error: Unauthenticated | InsufficientScope) -> str:
    """Say how to come in: with a service's secret (RFC 7617), or with what kind of token (RFC 6750)."""
    match error:
        case InvalidClient():
            return f'Basic {REALM}, charset="UTF-8"'
        case InvalidToken():
            return f'Bearer {REALM}, error="{error.code}", error_description="{to_printable_ascii(str(error))}"'
        case InsufficientScope():
            return f'Bearer {REALM}, error="{error.code}", scope="{error.permission}"'
        case _:
            return f"Bearer {REALM}"


def to_printable_ascii(text: str) -> str:
    """RFC 6749 allows an error_description no quotes and nothing beyond ASCII."""
    plain = text.replace('"', "'").replace("\\", "/").encode("ascii", "replace").decode()
    return "".join(each if each.isprintable() else " " for each in plain)


PATTERN_MESSAGE = "Expected `str` matching regex "


def invalid_from_msgspec(error: msgspec.ValidationError, default_field: str, expected_type: Any = None) -> Invalid:
    """Read msgspec's message into a field and a reason: "Expected `int`, got `str` - at `$.payload[0].x`".

    With the `kind` that was to be read, a word that is none of a few is told which there are.
    """
    why, _, path = str(error).partition(" - at ")
    field = path.strip("`").removeprefix("$").lstrip(".")
    for opening in ("Object missing required field `", "Object contains unknown field `"):
        if why.startswith(opening):
            name = why.removeprefix(opening).rstrip("`")
            field = f"{field}.{name}" if field else name
            why = "is missing" if "missing" in opening else "is not known here"
    if why.startswith(PATTERN_MESSAGE):
        why = f"does not match {why.removeprefix(PATTERN_MESSAGE)}".replace("\\\\", "\\")  # as Python would write it
    if why.startswith("Invalid enum value") and (known := [*allowed_values(type_of_field(expected_type, field))]):
        why = f"is not one of {', '.join(known)}"
    return Invalid.of_field(field or default_field, why[:1].lower() + why[1:])


def type_of_field(kind: Any, field: str) -> Any:
    """What a field of this struct may be; without a field, what it is itself."""
    if not field:
        return kind
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return None
    kinds = {each.encode_name: each.type for each in msgspec.structs.fields(kind)}
    return kinds.get(field.partition("[")[0])


def allowed_values(kind: Any) -> Iterator[str]:
    """The words among which one may choose, if there are only a few."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        yield from (str(each.value) for each in kind)
    elif get_origin(kind) is Literal:
        yield from map(str, get_args(kind))
    else:
        for each in get_args(kind):
            yield from allowed_values(each)
