"""Turn a door into an endpoint: read and check what is brought, call the handler, write down what it gives."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any, get_args
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pabal.core.errors import BodyTooLarge, InsufficientScope, Invalid
from pabal.hub import Hub
from pabal.notifications.people.tokens import Person
from pabal.relay.auth import AccountOwner, RelayPrincipal, require_owner
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.web.auth import authenticate_person, authenticate_relay, bearer_token, has_person_credentials
from pabal.web.errors import invalid_from_msgspec
from pabal.web.request import NUL_MESSAGE, RequestContext, find_nul_field
from pabal.web.route import ErrorFormat, Route

FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"
PRAGMA_NO_CACHE = {"pragma": "no-cache"}
"""RFC 6749 asks for it beside `Cache-Control: no-store`, for caches older than that."""
MAX_FORM_FIELDS = 100

BODY_TIMEOUT = 30.0
"""Seconds a body may take to arrive."""

EndpointFunction = Callable[[Request], Awaitable[Response]]


def build_endpoint(route: Route, hub: Hub) -> EndpointFunction:
    """Build the endpoint once; what a request costs is decided here, not per call."""
    readers = {
        name: parameter_reader(route, name, hint, hub) for name, hint in route.type_hints.items() if name != "return"
    }
    asks_who = route.relay_auth and not {RelayPrincipal, AccountOwner}.isdisjoint(route.type_hints.values())
    encode = msgspec.json.Encoder().encode
    headers = PRAGMA_NO_CACHE if route.error_format is ErrorFormat.OAUTH else None

    async def answer(request: Request) -> Response:
        if route.person_auth and (route.permission is None or has_person_credentials(request)):
            request.state.caller = await authenticate_person(request, hub)
        elif route.permission:  # before anything it brings is looked at
            request.state.caller = await require_permission(request, hub, route.permission)
        elif asks_who:
            request.state.bearer = await authenticate_relay(request, hub)
        brought = {name: await read(request) for name, read in readers.items()}
        given = await route.handler(**brought)
        if isinstance(given, Response):
            return given
        if given is None:
            return Response(status_code=route.status)
        return Response(encode(given), route.status, headers, media_type="application/json")

    return answer


def parameter_reader(route: Route, name: str, hint: Any, hub: Hub) -> Callable[[Request], Awaitable[Any]]:
    by_type: dict[Any, Callable[[Request], Awaitable[Any]]] = {
        Hub: lambda _request: wrap_awaitable(hub),
        RequestContext: lambda request: wrap_awaitable(request.state.visit),
    }
    if route.permission or route.person_auth:
        who = (
            Person | AuthenticatedService
            if route.permission and route.person_auth
            else Person
            if route.person_auth
            else AuthenticatedService
        )
        by_type[who] = lambda request: wrap_awaitable(request.state.caller)
    if route.relay_auth:
        by_type[RelayPrincipal] = lambda request: wrap_awaitable(request.state.bearer)
        by_type[AccountOwner] = lambda request: wrap_awaitable(require_owner(request.state.bearer))
    if route.query_type:
        times = {
            field.encode_name for field in msgspec.structs.fields(route.query_type) if is_datetime_type(field.type)
        }
        by_type[route.query_type] = lambda request: wrap_awaitable(parse_query(request, hint, times))
    if route.form_type:
        by_type[route.form_type] = lambda request: parse_form(request, hint, hub.settings.body_limit)
    if route.body_type:
        decoder = msgspec.json.Decoder(route.body_type)
        empty = b"" if any(field.required for field in msgspec.structs.fields(route.body_type)) else b"{}"
        by_type[route.body_type] = lambda request: parse_body(request, decoder, hub.settings.body_limit, empty)
    if hint in by_type:
        return by_type[hint]
    if name in route.path_types:
        return lambda request: wrap_awaitable(parse_path_parameter(request, name, route.path_types[name]))
    raise TypeError(f"{route.method} {route.path}: nothing fills the parameter {name}: {hint}")


async def require_permission(request: Request, hub: Hub, permission: Permission) -> AuthenticatedService:
    """Whoever comes with a good access token that carries the permission."""
    caller = await hub.token_verifier.verify(bearer_token(request.headers.get("authorization")))
    if permission not in caller.permissions:
        raise InsufficientScope(permission)
    return caller


async def wrap_awaitable(value: Any) -> Any:
    return value


def parse_query(request: Request, kind: Any, datetime_fields: AbstractSet[str]) -> Any:
    given = unique_pairs(request.query_params.multi_items())
    for name in datetime_fields & given.keys():
        if is_numeric(given[name]):  # which would be taken for the seconds since 1970
            raise Invalid.of_field(name, "is not a time as in RFC 3339")
    try:
        return msgspec.convert(given, kind, strict=False)
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
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != FORM_MEDIA_TYPE:
        raise Invalid.of_field("content-type", f"is not {FORM_MEDIA_TYPE}")
    body = await read_body(request, limit)
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS)
    except ValueError:
        raise Invalid.of_field("body", "is not a form") from None
    given = {name: value for name, value in unique_pairs(pairs).items() if value}
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise invalid_from_msgspec(error, "body", kind) from None


def unique_pairs(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in pairs:
        if name in given:
            raise Invalid.of_field(name, "is given more than once")
        given[name] = reject_nul(name, value)
    return given


def parse_path_parameter(request: Request, name: str, kind: Any) -> Any:
    written = reject_nul(name, request.path_params[name])
    try:
        return UUID(written) if kind is UUID else msgspec.convert(written, kind, strict=False)
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
        raise Invalid.of_field("body", f"is not JSON: {error}") from None


def reject_nul(name: str, text: str) -> str:
    if "\0" in text:
        raise Invalid.of_field(name, NUL_MESSAGE)
    return text


async def read_body(request: Request, limit: int) -> bytes:
    """Read the body, but never more of it than the door takes."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise BodyTooLarge(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise BodyTooLarge(limit)
                parts.append(part)
    except TimeoutError:
        raise Invalid.of_field("body", f"did not arrive within {BODY_TIMEOUT:g} s") from None
    return b"".join(parts)
