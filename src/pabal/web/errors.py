"""Error responses: the HTTP status, body and headers for every error.

Errors are RFC 9457 problems with a stable `code`, except on the relay and OAuth endpoints, whose clients expect
formats of their own.
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
    FieldError,
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
    SchemaMismatch,
    Unauthenticated,
    Unavailable,
    UnsupportedGrantType,
    UnsupportedMediaType,
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
    (UnsupportedMediaType, 415),
    (RateLimited, 429),
    (CallbackFailed, 502),
    (CallbackUnconfirmed, 502),
    (RequestError, 400),
    (Unavailable, 503),
    (RetryableError, 503),
)

REALM = 'realm="pabal"'
RETRYABLE_ERRORS = (Unavailable, RetryableError)
"""Transient: the same request may succeed a moment later."""
UNAVAILABLE_RETRY_SECONDS = 2
"""Retry-After while the database is unavailable."""


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An RFC 9457 problem. Programs read `code`, which is stable; people read `detail`."""

    title: str
    status: int
    code: str
    detail: str
    type: str = "about:blank"
    mistakes: tuple[FieldError, ...] = ()
    request_id: str = ""


class RelayProblem(msgspec.Struct, frozen=True):
    """An error of the relay: `error` and `message` hold the same text, for two kinds of clients."""

    error: str
    code: str
    message: str


RELAY_CODES: dict[type[PabalError], str] = {
    Unauthenticated: "UNAUTHORIZED",
    RateLimited: "RATE_LIMITED",
    Invalid: "INVALID_REQUEST",
}
"""Codes that the relay's clients know under another name than ours in upper case."""


class OAuthProblem(msgspec.Struct, frozen=True):
    """An RFC 6749 error."""

    error: str
    error_description: str


OAUTH_ERRORS = (InvalidGrant, InvalidScope, UnsupportedGrantType, InvalidClient, InvalidToken, InsufficientScope)
"""Errors whose `code` is defined by the RFC."""


def oauth_error_code(error: PabalError, status: int) -> str:
    if isinstance(error, OAUTH_ERRORS):
        return error.code
    if status == HTTPStatus.TOO_MANY_REQUESTS or isinstance(error, RETRYABLE_ERRORS):
        return "temporarily_unavailable"
    return "invalid_request" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"


def error_status(error: type[PabalError]) -> int:
    return next((status for kind, status in STATUS_BY_ERROR if issubclass(error, kind)), 500)


def error_response(error: PabalError, error_format: ErrorFormat, request_id: str) -> Response:
    """Build the error response. Unexpected errors show nothing of our internals."""
    status = error_status(type(error))
    detail = str(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, (RequestError, *RETRYABLE_ERRORS)):
        detail = "Internal error. Look up the request id in the server's log."
    elif isinstance(error, SchemaMismatch):
        detail = "Another version of Pabal has migrated the database. Restart this process with that version."
    elif isinstance(error, RETRYABLE_ERRORS):
        detail = "The database is unavailable or busy. Try again in a few seconds."
    content: Any
    if error_format is ErrorFormat.RELAY:
        content = RelayProblem(error=detail, code=RELAY_CODES.get(type(error), error.code.upper()), message=detail)
    elif error_format is ErrorFormat.OAUTH:
        content = OAuthProblem(oauth_error_code(error, status), to_printable_ascii(detail))
    else:
        content = Problem(
            title=HTTPStatus(status).phrase,
            status=status,
            code=error.code,
            detail=detail,
            mistakes=error.errors if isinstance(error, Invalid) else (),
            request_id=request_id,
        )
    return Response(msgspec.json.encode(content), status, error_headers(error), media_type=error_format.media_type)


def error_headers(error: PabalError) -> dict[str, str]:
    """The headers that HTTP defines for this error."""
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
    """The WWW-Authenticate header: a service's secret (RFC 7617) or a bearer token (RFC 6750)."""
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
    """RFC 6749 allows only printable ASCII without quotes and backslashes in an error_description."""
    plain = text.replace('"', "'").replace("\\", "/").encode("ascii", "replace").decode()
    return "".join(char if char.isprintable() else " " for char in plain)


PATTERN_MESSAGE = "Expected `str` matching regex "


def invalid_from_msgspec(error: msgspec.ValidationError, default_field: str, expected_type: Any = None) -> Invalid:
    """Parse msgspec's message into a field and a reason: "Expected `int`, got `str` - at `$.payload[0].x`".

    With the `expected_type`, an invalid enum value is answered with the list of valid ones.
    """
    why, _, path = str(error).partition(" - at ")
    field = path.strip("`").removeprefix("$").lstrip(".")
    for prefix in ("Object missing required field `", "Object contains unknown field `"):
        if why.startswith(prefix):
            name = why.removeprefix(prefix).rstrip("`")
            field = f"{field}.{name}" if field else name
            why = "is missing" if "missing" in prefix else "is not a known field"
    if why.startswith(PATTERN_MESSAGE):
        why = f"does not match {why.removeprefix(PATTERN_MESSAGE)}".replace("\\\\", "\\")  # msgspec doubles backslashes
    if why.startswith("Invalid enum value") and (values := [*allowed_values(type_of_field(expected_type, field))]):
        why = f"is not one of {', '.join(values)}"
    return Invalid.of_field(field or default_field, why[:1].lower() + why[1:])


def type_of_field(kind: Any, field: str) -> Any:
    """The type of a field of this struct, or the type itself without a field."""
    if not field:
        return kind
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return None
    types = {info.encode_name: info.type for info in msgspec.structs.fields(kind)}
    return types.get(field.partition("[")[0])


def allowed_values(kind: Any) -> Iterator[str]:
    """The values of an enum or a Literal, also inside a union; nothing for other types."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        yield from (str(member.value) for member in kind)
    elif get_origin(kind) is Literal:
        yield from map(str, get_args(kind))
    else:
        for argument in get_args(kind):
            yield from allowed_values(argument)
