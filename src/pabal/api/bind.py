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

from pabal.api.credentials import bearer
from pabal.api.door import Door, Shape
from pabal.api.mistakes import named
from pabal.api.nul import NO_NUL, field_with_nul
from pabal.api.person import is_a_persons, person
from pabal.api.tenant import tenant
from pabal.api.visit import Visit
from pabal.core.errors import Invalid, OutOfScope, TooLarge
from pabal.notifications.people import Person
from pabal.relay.bearer import Bearer, Owner, owner
from pabal.tokens.permission import Permission
from pabal.tokens.verify import Caller
from pabal.wiring import Hub

FORM = "application/x-www-form-urlencoded"
PRAGMA = {"pragma": "no-cache"}
"""RFC 6749 asks for it beside `Cache-Control: no-store`, for caches older than that."""
MOST_FIELDS = 100

BODY_WITHIN = 30.0
"""Seconds a body may take to arrive."""

Endpoint = Callable[[Request], Awaitable[Response]]


def endpoint(door: Door, hub: Hub) -> Endpoint:
    """Build the endpoint once; what a request costs is decided here, not per call."""
    readers = {name: reader(door, name, hint, hub) for name, hint in door.hints.items() if name != "return"}
    asks_who = door.bearer and not {Bearer, Owner}.isdisjoint(door.hints.values())
    encode = msgspec.json.Encoder().encode
    headers = PRAGMA if door.shape is Shape.OAUTH else None

    async def answer(request: Request) -> Response:
        if door.person and (door.needs is None or is_a_persons(request)):
            request.state.caller = await person(request, hub)
        elif door.needs:  # before anything it brings is looked at
            request.state.caller = await allowed(request, hub, door.needs)
        elif asks_who:
            request.state.bearer = await tenant(request, hub)
        brought = {name: await read(request) for name, read in readers.items()}
        given = await door.handler(**brought)
        if isinstance(given, Response):
            return given
        if given is None:
            return Response(status_code=door.answers)
        return Response(encode(given), door.answers, headers, media_type="application/json")

    return answer


def reader(door: Door, name: str, hint: Any, hub: Hub) -> Callable[[Request], Awaitable[Any]]:
    by_type: dict[Any, Callable[[Request], Awaitable[Any]]] = {
        Hub: lambda _request: ready(hub),
        Visit: lambda request: ready(request.state.visit),
    }
    if door.needs or door.person:
        who = Person | Caller if door.needs and door.person else Person if door.person else Caller
        by_type[who] = lambda request: ready(request.state.caller)
    if door.bearer:
        by_type[Bearer] = lambda request: ready(request.state.bearer)
        by_type[Owner] = lambda request: ready(owner(request.state.bearer))
    if door.query:
        times = {field.encode_name for field in msgspec.structs.fields(door.query) if is_time(field.type)}
        by_type[door.query] = lambda request: ready(from_query(request, hint, times))
    if door.form:
        by_type[door.form] = lambda request: from_form(request, hint, hub.settings.body_limit)
    if door.body:
        decoder = msgspec.json.Decoder(door.body)
        empty = b"" if any(field.required for field in msgspec.structs.fields(door.body)) else b"{}"
        by_type[door.body] = lambda request: from_body(request, decoder, hub.settings.body_limit, empty)
    if hint in by_type:
        return by_type[hint]
    if name in door.in_path:
        return lambda request: ready(from_path(request, name, door.in_path[name]))
    raise TypeError(f"{door.method} {door.path}: nothing fills the parameter {name}: {hint}")


async def allowed(request: Request, hub: Hub, needs: Permission) -> Caller:
    """Whoever comes with a good access token that carries the permission."""
    caller = await hub.tokens.verify(bearer(request.headers.get("authorization")))
    if needs not in caller.permissions:
        raise OutOfScope(needs)
    return caller


async def ready(value: Any) -> Any:
    return value


def from_query(request: Request, kind: Any, times: AbstractSet[str]) -> Any:
    given = each_once(request.query_params.multi_items())
    for name in times & given.keys():
        if is_number(given[name]):  # which would be taken for the seconds since 1970
            raise Invalid.one(name, "is not a time as in RFC 3339")
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise named(error, "query", kind) from None


def is_time(kind: Any) -> bool:
    return kind is datetime or any(map(is_time, get_args(kind)))


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


async def from_form(request: Request, kind: Any, limit: int) -> Any:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != FORM:
        raise Invalid.one("content-type", f"is not {FORM}")
    body = await read_body(request, limit)
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise Invalid.one("body", "is not a form") from None
    given = {name: value for name, value in each_once(pairs).items() if value}
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise named(error, "body", kind) from None


def each_once(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in pairs:
        if name in given:
            raise Invalid.one(name, "is given more than once")
        given[name] = storable(name, value)
    return given


def from_path(request: Request, name: str, kind: Any) -> Any:
    written = storable(name, request.path_params[name])
    try:
        return UUID(written) if kind is UUID else msgspec.convert(written, kind, strict=False)
    except msgspec.ValidationError as error:
        raise named(error, name, kind) from None
    except ValueError:
        raise Invalid.one(name, "is not a UUID") from None


async def from_body(request: Request, decoder: msgspec.json.Decoder[Any], limit: int, empty: bytes) -> Any:
    body = await read_body(request, limit)
    if not decoder.type.in_pieces and (field := field_with_nul(body, "body")):
        raise Invalid.one(field, NO_NUL)
    return decoded(body or empty, decoder)


def decoded(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    if not body:
        raise Invalid.one("body", "is missing")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise named(error, "body", decoder.type) from None
    except RecursionError:
        raise Invalid.one("body", "is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid.one("body", f"is not JSON: {error}") from None


def storable(name: str, text: str) -> str:
    if "\0" in text:
        raise Invalid.one(name, NO_NUL)
    return text


async def read_body(request: Request, limit: int) -> bytes:
    """Read the body, but never more of it than the door takes."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise TooLarge(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_WITHIN):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise TooLarge(limit)
                parts.append(part)
    except TimeoutError:
        raise Invalid.one("body", f"did not arrive within {BODY_WITHIN:g} s") from None
    return b"".join(parts)
