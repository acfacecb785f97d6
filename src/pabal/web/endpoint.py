"""Turn a route into an endpoint: authenticate, parse the request, call the handler, encode the response."""

from collections.abc import Awaitable, Callable, Iterable
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import cache
from typing import Any, get_args
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pabal.core.errors import BodyTooLarge, InsufficientScope, Invalid
from pabal.hub import Hub
from pabal.notifications.people.tokens import Person
from pabal.relay.auth import AccountOwner, RelayPrincipal, require_owner
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.web.auth import authenticate_person, authenticate_relay, bearer_token, has_person_credentials
from pabal.web.encoded_response import EncodedJsonResponse
from pabal.web.errors import invalid_from_msgspec
from pabal.web.origin import refuse_foreign_origin
from pabal.web.request import NUL_MESSAGE, RequestContext, find_nul_field, mark_authenticated, parse_query_pairs
from pabal.web.route import ErrorFormat, Route
from pabal.web.sliced_encoding import encode_in_slices, encode_response, find_list_field

FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"
PRAGMA_NO_CACHE = {"pragma": "no-cache"}
"""RFC 6749 requires it beside `Cache-Control: no-store`, for HTTP/1.0 caches."""
MAX_FORM_FIELDS = 100
MAX_FORM_BYTES = 65_536
"""Longer forms are refused before they are parsed: decoding percent escapes is slow."""

MAX_NAME_LENGTH = 64
"""Characters of an unknown parameter's name that an error repeats."""

EndpointFunction = Callable[[Request], Awaitable[Response]]


def build_endpoint(route: Route, hub: Hub) -> EndpointFunction:
    """Build an endpoint. Type hints and decoders are resolved here, once, and not per request."""
    hints = {name: hint for name, hint in route.type_hints.items() if name != "return"}
    body_readers = {name: read for name, hint in hints.items() if (read := body_reader(route, hint, hub))}
    readers = {
        name: parameter_reader(route, name, hint, hub) for name, hint in hints.items() if name not in body_readers
    }
    needs_principal = route.relay_auth and not {RelayPrincipal, AccountOwner}.isdisjoint(route.type_hints.values())
    is_authenticated = bool(route.person_auth or route.permission or needs_principal)
    list_field = find_list_field(route.response_type)
    headers = PRAGMA_NO_CACHE if route.error_format is ErrorFormat.OAUTH else None

    async def endpoint(request: Request) -> Response:
        refuse_foreign_origin(request, hub)
        state = request.scope["state"]  # `request.state` would create an object at each use
        if route.person_auth and (route.permission is None or has_person_credentials(request)):
            state["caller"] = await authenticate_person(request, hub, accepts_ticket=route.ticket_auth)
        elif route.permission:  # before the request is parsed
            state["caller"] = await require_permission(request, hub, route, route.permission)
        elif needs_principal:
            state["principal"] = await authenticate_relay(request, hub)
        if is_authenticated:
            mark_authenticated(request)
        arguments = {name: read(request) for name, read in readers.items()}
        for name, read_body in body_readers.items():
            arguments[name] = await read_body(request)
        result = await route.handler(**arguments)
        if isinstance(result, Response):
            return result
        if result is None:
            return Response(status_code=route.status)
        content = await encode_in_slices(result, list_field) if list_field else encode_response(result)
        if headers is None:
            return EncodedJsonResponse(content, route.status)
        return Response(content, route.status, headers, media_type="application/json")

    return endpoint


def body_reader(route: Route, hint: Any, hub: Hub) -> Callable[[Request], Awaitable[Any]] | None:
    """How to read a parameter that is the body or a form; None for other parameters."""
    if route.form_type and hint == route.form_type:
        form_limit = min(hub.settings.body_limit, MAX_FORM_BYTES)
        return lambda request: parse_form(request, hint, form_limit)
    if route.body_type and hint == route.body_type:
        decoder = msgspec.json.Decoder(route.body_type)
        empty = b"" if any(field.required for field in struct_fields(route.body_type)) else b"{}"
        limit = min(hub.settings.body_limit, route.max_body_bytes or hub.settings.body_limit)
        return lambda request: parse_body(request, decoder, limit, empty)
    return None


def parameter_reader(route: Route, name: str, hint: Any, hub: Hub) -> Callable[[Request], Any]:
    """How to read a parameter that is known once the caller is."""
    by_type: dict[Any, Callable[[Request], Any]] = {
        Hub: lambda _request: hub,
        RequestContext: lambda request: request.scope["state"]["context"],
    }
    if route.permission or route.person_auth:
        caller_type = (
            Person | AuthenticatedService
            if route.permission and route.person_auth
            else Person
            if route.person_auth
            else AuthenticatedService
        )
        by_type[caller_type] = lambda request: request.scope["state"]["caller"]
    if route.relay_auth:
        by_type[RelayPrincipal] = lambda request: request.scope["state"]["principal"]
        by_type[AccountOwner] = lambda request: require_owner(request.scope["state"]["principal"])
    if route.query_type:
        datetime_fields = {
            field.encode_name for field in struct_fields(route.query_type) if is_datetime_type(field.type)
        }
        by_type[route.query_type] = lambda request: parse_query(request, hint, datetime_fields)
    if hint in by_type:
        return by_type[hint]
    if name in route.path_types:
        return lambda request: parse_path_parameter(request, name, route.path_types[name])
    raise TypeError(f"{route.method} {route.path}: no source for the parameter {name}: {hint}")


@cache
def struct_fields(struct_type: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """The fields of a struct. Cached, because every call evaluates all type hints of the struct."""
    return msgspec.structs.fields(struct_type)


async def require_permission(request: Request, hub: Hub, route: Route, permission: Permission) -> AuthenticatedService:
    """The service whose access token carries the permission, or another one that the route accepts."""
    caller = await hub.token_verifier.verify(bearer_token(request.headers.get("authorization")))
    if permission not in caller.permissions and caller.permissions.isdisjoint(route.other_permissions):
        raise InsufficientScope(permission)
    return caller


def parse_query(request: Request, kind: Any, datetime_fields: AbstractSet[str]) -> Any:
    values = unique_pairs(parse_query_pairs(request))
    for name in datetime_fields & values.keys():
        if is_numeric(values[name]):  # msgspec would read it as seconds since 1970
            raise Invalid.of_field(name, "is not an RFC 3339 time")
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_from_msgspec(error, "query", kind) from None


def is_datetime_type(kind: Any) -> bool:
    return kind is datetime or any(map(is_datetime_type, get_args(kind)))


def is_numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


async def parse_form(request: Request, kind: Any, limit: int) -> Any:
    if media_type_of(request) != FORM_MEDIA_TYPE:
        raise Invalid.of_field("content-type", f"is not {FORM_MEDIA_TYPE}")
    body = await read_body(request, limit)
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS)
    except ValueError:
        raise Invalid.of_field("body", "is not a valid form") from None
    values = {name: value for name, value in unique_pairs(pairs).items() if value}
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise invalid_from_msgspec(error, "body", kind) from None


def media_type_of(request: Request) -> str:
    """The media type of the body, without parameters such as the charset."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def unique_pairs(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in pairs:
        if name in values:
            raise Invalid.of_field(name[:MAX_NAME_LENGTH], "is given more than once")
        values[name] = reject_nul(name, value)
    return values


def parse_path_parameter(request: Request, name: str, kind: Any) -> Any:
    text = reject_nul(name, request.path_params[name])
    try:
        return UUID(text) if kind is UUID else msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_from_msgspec(error, name, kind) from None
    except ValueError:
        raise Invalid.of_field(name, "is not a UUID") from None


async def parse_body(request: Request, decoder: msgspec.json.Decoder[Any], limit: int, empty: bytes) -> Any:
    body = await read_body(request, limit)
    if not decoder.type.decodes_items and (field := find_nul_field(body, "body")):
        raise Invalid.of_field(field, NUL_MESSAGE)
    return decode_json_body(body or empty, decoder)


def decode_json_body(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    if not body:
        raise Invalid.of_field("body", "is missing")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid_from_msgspec(error, "body", decoder.type) from None
    except RecursionError:
        raise Invalid.of_field("body", "is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid.of_field("body", f"is not valid JSON: {error}") from None


def reject_nul(name: str, text: str) -> str:
    if "\0" in text:
        raise Invalid.of_field(name, NUL_MESSAGE)
    return text


async def read_body(request: Request, limit: int) -> bytes:
    """Read the body, and stop as soon as it exceeds the limit. The server closes a connection that sends too slowly."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise BodyTooLarge(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise BodyTooLarge(limit)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)
