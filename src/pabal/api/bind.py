"""Turn a door into an endpoint: read and check what is brought, call the handler, write down what it gives."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pabal.api.door import Door
from pabal.api.visit import Visit
from pabal.core.errors import Invalid, TooLarge
from pabal.wiring import Hub

NO_NUL = "contains the character NUL, which PostgreSQL cannot keep"
ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")

BODY_WITHIN = 30.0
"""Seconds a body may take to arrive."""

Endpoint = Callable[[Request], Awaitable[Response]]


def endpoint(door: Door, hub: Hub) -> Endpoint:
    """Build the endpoint once; what a request costs is decided here, not per call."""
    readers = {name: reader(door, name, hint, hub) for name, hint in door.hints.items() if name != "return"}
    encode = msgspec.json.Encoder().encode

    async def answer(request: Request) -> Response:
        brought = {name: await read(request) for name, read in readers.items()}
        given = await door.handler(**brought)
        if isinstance(given, Response):
            return given
        if given is None:
            return Response(status_code=door.answers)
        return Response(encode(given), door.answers, media_type="application/json")

    return answer


def reader(door: Door, name: str, hint: Any, hub: Hub) -> Callable[[Request], Awaitable[Any]]:
    if hint is Hub:
        return lambda _request: ready(hub)
    if hint is Visit:
        return lambda request: ready(request.state.visit)
    if hint is door.query:
        return lambda request: ready(from_query(request, hint))
    if hint is door.body:
        decoder = msgspec.json.Decoder(hint)
        return lambda request: from_body(request, decoder, hub.settings.body_limit)
    if name in door.in_path:
        return lambda request: ready(from_path(request, name, hint))
    raise TypeError(f"{door.method} {door.path}: nothing fills the parameter {name}: {hint}")


async def ready(value: Any) -> Any:
    return value


def from_query(request: Request, kind: Any) -> Any:
    asked: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in asked:
            raise Invalid.one(name, "is given more than once")
        asked[name] = storable(name, value)
    try:
        return msgspec.convert(asked, kind, strict=False)
    except msgspec.ValidationError as error:
        raise named(error, "query") from None


def from_path(request: Request, name: str, kind: Any) -> Any:
    written = storable(name, request.path_params[name])
    try:
        return UUID(written) if kind is UUID else msgspec.convert(written, kind, strict=False)
    except (ValueError, msgspec.ValidationError):
        raise Invalid.one(name, f"is not a {getattr(kind, '__name__', kind)}") from None


async def from_body(request: Request, decoder: msgspec.json.Decoder[Any], limit: int) -> Any:
    body = await read_body(request, limit)
    if b"\\u0000" in body and ESCAPED_NUL.search(body):
        raise Invalid.one("body", NO_NUL)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise named(error, "body") from None
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


def named(error: msgspec.ValidationError, where: str) -> Invalid:
    """Read msgspec's message into a field and a reason: "Expected `int`, got `str` - at `$.payload[0].x`"."""
    why, _, path = str(error).partition(" - at ")
    field = path.strip("`").removeprefix("$").lstrip(".")
    for opening in ("Object missing required field `", "Object contains unknown field `"):
        if why.startswith(opening):
            name = why.removeprefix(opening).rstrip("`")
            field = f"{field}.{name}" if field else name
            why = "is missing" if "missing" in opening else "is not known here"
    return Invalid.one(field or where, why[:1].lower() + why[1:])
