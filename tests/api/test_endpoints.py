"""A small route table behind the real server: parsing, validation and error responses."""

import asyncio
import enum
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import httpx2
import msgspec
import pytest
from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from pabal.core.errors import Conflict, NotFound, RateLimited, Unauthenticated, Unavailable
from pabal.db.queries import parse_queries
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from pabal.web.endpoint import build_endpoint
from pabal.web.request import NUL_MESSAGE, RequestContext
from pabal.web.route import ErrorFormat, RequestBody, RequestQuery, ResponseBody, Route
from support.server import serve_hub

pytestmark = pytest.mark.anyio

LIMIT = 2048
[SLOW] = parse_queries("-- name: slow\nselect pg_sleep(60)")


class Colour(enum.Enum):
    RED = "red"


class ParcelQuery(RequestQuery, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    colour: Colour | None = None


class Parcel(RequestBody, frozen=True):
    weight: Annotated[int, Meta(ge=0)]
    to: dict[str, list[int]] = msgspec.field(default_factory=dict[str, list[int]])
    label: Annotated[str, Meta(pattern=r"^[a-z]+(\.[a-z]+)*$")] = "none"
    colours: tuple[Colour, ...] = ()


class AnyBody(RequestBody, frozen=True):
    value: Any


class Echo(ResponseBody, frozen=True):
    value: Any


async def list_parcels(query: ParcelQuery) -> Echo:
    """List parcels."""
    return Echo([query.limit, query.colour])


async def post_parcel(parcel: Parcel) -> Echo:
    """Create a parcel."""
    return Echo([parcel.weight, parcel.to])


async def post_anything(body: AnyBody) -> Echo:
    """Accept any JSON value."""
    return Echo(body.value)


async def get_parcel(id: UUID, shelf: str) -> Echo:  # noqa: A002 the name in the path
    """Get a parcel."""
    return Echo([str(id), shelf])


async def delete_parcel() -> None:
    """Delete a parcel."""


async def get_context(context: RequestContext) -> Echo:
    """Get the context of the request."""
    return Echo([context.id, context.client_ip, context.user_agent])


async def crash() -> Echo:
    """Raise an unexpected exception."""
    raise ZeroDivisionError("internals: hunter2")


async def crash_with_parameter(id: str) -> Echo:  # noqa: A002 the name in the path
    """Raise an unexpected exception in a route with a path parameter."""
    raise ZeroDivisionError(f"internals: hunter2 {id}")


async def not_found() -> Echo:
    """Raise NotFound."""
    raise NotFound("no such parcel")


async def conflict() -> Echo:
    """Raise Conflict."""
    raise Conflict("already exists")


async def rate_limited() -> Echo:
    """Raise RateLimited."""
    raise RateLimited("parcels", timedelta(seconds=6.2))


async def unauthenticated() -> Echo:
    """Raise Unauthenticated."""
    raise Unauthenticated("no credentials")


async def unavailable() -> Echo:
    """Raise Unavailable."""
    raise Unavailable("connection to 10.1.2.3 refused")


async def slow_query(hub: Hub) -> Echo:
    """Exceed the statement timeout."""
    async with hub.autocommit() as tx:
        return Echo(await tx.value(SLOW))


async def stream(hub: Hub) -> Response:
    """Stream until the hub closes."""

    async def lines() -> AsyncIterator[str]:
        yield "first\n"
        await hub.closing.wait()
        yield "last\n"

    return StreamingResponse(lines(), media_type="text/plain")


async def endless_stream() -> Response:
    """Stream forever."""

    async def lines() -> AsyncIterator[str]:
        yield "first\n"
        await asyncio.Event().wait()

    return StreamingResponse(lines(), media_type="text/plain")


TABLE = (
    Route("GET", "/parcels", list_parcels),
    Route("POST", "/parcel", post_parcel, status=202),
    Route("POST", "/anything", post_anything),
    Route("GET", "/parcels/{id}/{shelf}", get_parcel),
    Route("DELETE", "/parcel", delete_parcel, status=204),
    Route("GET", "/context", get_context),
    Route("GET", "/crash", crash),
    Route("GET", "/crash/{id}", crash_with_parameter),
    Route("GET", "/not-found", not_found, may_raise=(NotFound,)),
    Route("GET", "/relay/not-found", not_found, may_raise=(NotFound,), error_format=ErrorFormat.RELAY),
    Route("POST", "/relay/parcel", post_parcel, error_format=ErrorFormat.RELAY),
    Route("GET", "/relay/crash", crash, error_format=ErrorFormat.RELAY),
    Route("GET", "/conflict", conflict),
    Route("GET", "/rate-limited", rate_limited),
    Route("GET", "/unauthenticated", unauthenticated),
    Route("GET", "/unavailable", unavailable),
    Route("GET", "/slow", slow_query),
    Route("GET", "/stream", stream),
    Route("GET", "/endless", endless_stream),
)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    short_limits = {
        "body_limit": LIMIT,
        "trusted_proxies": ["127.0.0.0/8"],
        "statement_timeout": timedelta(seconds=0.2),
    }
    return settings.model_copy(update=short_limits | {"stop_within": timedelta(seconds=1)})


@pytest.fixture
async def web(hub: Hub) -> AsyncGenerator[httpx2.AsyncClient]:
    async with serve_hub(hub, TABLE) as address, httpx2.AsyncClient(base_url=address) as client:
        yield client


def field_errors(response: httpx2.Response) -> list[tuple[str, str]]:
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["code"] == "invalid"
    return [(error["field"], error["why"]) for error in response.json()["mistakes"]]


async def test_handlers_receive_typed_arguments(web: httpx2.AsyncClient) -> None:
    listing = await web.get("/parcels", params={"limit": "7", "colour": "red"})
    creation = await web.post("/parcel", content=b'{"weight": 3, "to": {"a": [1]}}')
    lookup = await web.get("/parcels/0192f0c1-0000-7000-8000-000000000001/%ED%8C%8C%EB%B0%9C")

    assert listing.json() == {"value": [7, "red"]}
    assert (creation.status_code, creation.json()) == (202, {"value": [3, {"a": [1]}]})
    assert lookup.json() == {"value": ["0192f0c1-0000-7000-8000-000000000001", "파발"]}


async def test_a_handler_without_a_result_gives_an_empty_body(web: httpx2.AsyncClient) -> None:
    response = await web.delete("/parcel")

    assert (response.status_code, response.content) == (204, b"")


INVALID_QUERIES = {
    "limit=0": ("limit", "expected `int` >= 1"),
    "limit=many": ("limit", "expected `int`, got `str`"),
    "colour=blue": ("colour", "is not one of red"),
    "size=1": ("size", "is not a known field"),
    "limit=1&limit=2": ("limit", "is given more than once"),
    "colour=%00": ("colour", NUL_MESSAGE),
}

INVALID_BODIES = {
    b'{"weight": "3"}': ("weight", "expected `int`, got `str`"),
    b'{"weight": -1}': ("weight", "expected `int` >= 0"),
    b'{"weight": 1, "to": {"a": [1, "x"]}}': ("to[...][1]", "expected `int`, got `str`"),
    b"": ("body", "is missing"),
    b"{}": ("weight", "is missing"),
    b'{"weight": 1, "label": "A.B"}': ("label", r"does not match '^[a-z]+(\.[a-z]+)*$'"),
    b'{"weight": 1, "colours": ["red", "blue"]}': ("colours[1]", "is not one of red"),
    b'{"weight": 1, "size": 2}': ("size", "is not a known field"),
    b"[]": ("body", "expected `object`, got `array`"),
    b'{"weight": 1, "to": {"\\u0000": []}}': ("to", NUL_MESSAGE),
    b'{"weight": 1, "\\u0000": []}': ("body", NUL_MESSAGE),
    b'["\\u0000"]': ("body", NUL_MESSAGE),
    b'{"weight": 1, "to": ' + b"[" * 900 + b"]" * 900 + b"}": ("to", "expected `object`, got `array`"),
}


async def test_an_invalid_query_names_the_field(web: httpx2.AsyncClient) -> None:
    assert {query: field_errors(await web.get(f"/parcels?{query}")) for query in INVALID_QUERIES} == {
        query: [expected] for query, expected in INVALID_QUERIES.items()
    }


async def test_an_invalid_body_names_the_field(web: httpx2.AsyncClient) -> None:
    assert {body: field_errors(await web.post("/parcel", content=body)) for body in INVALID_BODIES} == {
        body: [expected] for body, expected in INVALID_BODIES.items()
    }


async def test_a_body_that_is_not_json_is_rejected(web: httpx2.AsyncClient) -> None:
    for body in (b"{", b'{"weight": 1}}', b'{"weight": 1, "to": {"\xff": []}}', b'{"weight": 1, "to": {"\\ud8'):
        [(field, message)] = field_errors(await web.post("/parcel", content=body))

        assert field == "body"
        assert message.startswith("is not valid JSON")


async def test_an_escaped_backslash_before_u0000_is_not_a_nul(web: httpx2.AsyncClient) -> None:
    response = await web.post("/parcel", content=b'{"weight": 1, "to": {"\\\\u0000": []}}')

    assert response.json() == {"value": [1, {"\\u0000": []}]}


async def test_a_deeply_nested_body_is_rejected(web: httpx2.AsyncClient) -> None:
    body = b'{"value": ' + b"[" * (LIMIT - 20) + b"}"

    assert field_errors(await web.post("/anything", content=body)) == [("body", "is nested too deeply")]


async def test_a_body_over_the_limit_is_rejected_with_or_without_content_length(web: httpx2.AsyncClient) -> None:
    async def stream_chunks() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b" " * (LIMIT // 8)

    at_limit = b'{"weight": 1}'.ljust(LIMIT)
    declared = await web.post("/parcel", content=at_limit + b" ")
    chunked = await web.post("/parcel", content=stream_chunks())

    assert (await web.post("/parcel", content=at_limit)).status_code == 202
    for response in (declared, chunked):
        assert (response.status_code, response.json()["code"]) == (413, "too_large")


async def test_an_invalid_path_parameter_is_named(web: httpx2.AsyncClient) -> None:
    for path in ("/parcels/12/shelf", "/parcels/0192f0c1-0000-7000-8000-00000000000g/shelf"):
        assert field_errors(await web.get(path)) == [("id", "is not a UUID")]


@pytest.mark.parametrize("path", ["/crash", "/crash/7"])
async def test_an_unexpected_exception_shows_no_internals(web: httpx2.AsyncClient, path: str) -> None:
    response = await web.get(path, headers={"x-request-id": "id-in-the-log"})

    assert response.status_code == 500
    assert response.json() == {
        "title": "Internal Server Error",
        "status": 500,
        "code": "error",
        "detail": "Internal error. Look up the request id in the server's log.",
        "request_id": "id-in-the-log",
    }
    assert response.headers["x-request-id"] == "id-in-the-log"
    relayed = await web.get("/relay/crash")
    assert (relayed.status_code, relayed.json().keys()) == (500, {"error", "code", "message"})
    assert "hunter2" not in response.text + relayed.text


ERRORS_BY_PATH = {
    "/not-found": (404, "not_found", {}),
    "/no-such-path": (404, "not_found", {}),
    "/parcels/": (404, "not_found", {}),
    "/anything": (405, "not_allowed", {"allow": "POST"}),
    "/conflict": (409, "conflict", {}),
    "/rate-limited": (429, "too_many", {"retry-after": "7"}),
    "/unauthenticated": (401, "unauthenticated", {"www-authenticate": 'Bearer realm="pabal"'}),
    "/unavailable": (503, "unavailable", {"retry-after": "2"}),
    "/slow": (503, "unavailable", {"retry-after": "2"}),
}


async def test_every_error_is_a_problem_with_a_stable_code(web: httpx2.AsyncClient) -> None:
    for path, (status, code, headers) in ERRORS_BY_PATH.items():
        response = await web.get(path)

        assert response.headers["content-type"] == "application/problem+json"
        assert (response.status_code, response.json()["status"], response.json()["code"]) == (status, status, code)
        assert response.json()["request_id"] == response.headers["x-request-id"]
        assert "10.1.2.3" not in response.text
        assert response.headers.items() >= headers.items()


async def test_an_unknown_path_and_a_wrong_method_say_what_to_use(web: httpx2.AsyncClient) -> None:
    unknown = await web.get("/no-such-path?limit=1")
    wrong_method = await web.delete("/anything")

    assert unknown.json()["detail"] == "No such endpoint: GET /no-such-path"
    assert wrong_method.json()["detail"] == "DELETE is not allowed here. Allowed: POST"


async def test_relay_routes_use_the_relay_error_format(web: httpx2.AsyncClient) -> None:
    missing = await web.get("/relay/not-found")
    malformed = await web.post("/relay/parcel", content=b"{}")

    assert missing.status_code == 404
    assert missing.headers["content-type"] == "application/json"
    assert missing.json() == {"error": "no such parcel", "code": "NOT_FOUND", "message": "no such parcel"}
    assert malformed.json()["code"] == "INVALID_REQUEST"
    assert malformed.json()["message"] == "weight: is missing"


async def test_the_context_has_request_id_client_address_and_user_agent(web: httpx2.AsyncClient) -> None:
    headers = {"x-request-id": "abcdefgh", "x-forwarded-for": "203.0.113.9", "user-agent": "a browser"}

    assert (await web.get("/context", headers=headers)).json() == {"value": ["abcdefgh", "203.0.113.9", "a browser"]}


async def test_a_malformed_request_id_is_replaced(web: httpx2.AsyncClient) -> None:
    for malformed_id in ("short", "x" * 65, "with a space in it", "caf\u00e9-caf\u00e9"):
        response = await web.get("/context", headers={b"x-request-id": malformed_id.encode("latin-1")})

        assert response.headers["x-request-id"] != malformed_id
        assert len(response.headers["x-request-id"]) == 32


async def test_a_stream_ends_when_the_hub_closes(hub: Hub) -> None:
    async with serve_hub(hub, TABLE) as address, httpx2.AsyncClient(base_url=address) as client:
        async with client.stream("GET", "/stream") as response:
            lines = response.aiter_lines()
            assert await anext(lines) == "first"
            hub.closing.set()
            assert await anext(lines) == "last"
        assert hub.db.connections_in_use() == 0


async def test_a_stream_that_does_not_end_is_cut_at_shutdown(database_urls: DatabaseUrls, settings: Settings) -> None:
    clock = asyncio.get_running_loop().time
    async with open_hub(settings, database_urls) as hub, httpx2.AsyncClient() as client:
        async with serve_hub(hub, TABLE) as address:
            request = client.build_request("GET", f"{address}/endless")
            response = await client.send(request, stream=True)
            shutdown_started = clock()
        shutdown_seconds = clock() - shutdown_started
        with pytest.raises(httpx2.RemoteProtocolError):
            await response.aread()

    assert shutdown_seconds < 3


async def test_a_handler_parameter_without_a_source_fails_at_start(hub: Hub) -> None:
    async def bad_handler(unknown: bytes) -> Echo:
        return Echo(unknown)

    with pytest.raises(TypeError, match="no source for the parameter unknown"):
        build_endpoint(Route("GET", "/bad", bad_handler), hub)
