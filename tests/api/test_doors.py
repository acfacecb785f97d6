"""Doors of the test's own, behind the real server: what is brought, what is refused, how it is said."""

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
from support.server import serving

pytestmark = pytest.mark.anyio

LIMIT = 2048
[SLOW] = parse_queries("-- name: slow\nselect pg_sleep(60)")


class Colour(enum.Enum):
    RED = "red"


class Asked(RequestQuery, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    colour: Colour | None = None


class Parcel(RequestBody, frozen=True):
    weight: Annotated[int, Meta(ge=0)]
    to: dict[str, list[int]] = msgspec.field(default_factory=dict[str, list[int]])
    label: Annotated[str, Meta(pattern=r"^[a-z]+(\.[a-z]+)*$")] = "none"
    colours: tuple[Colour, ...] = ()


class Anything(RequestBody, frozen=True):
    said: Any


class Heard(ResponseBody, frozen=True):
    said: Any


async def ask(asked: Asked) -> Heard:
    """Ask something."""
    return Heard([asked.limit, asked.colour])


async def bring(parcel: Parcel) -> Heard:
    """Bring something."""
    return Heard([parcel.weight, parcel.to])


async def swallow(anything: Anything) -> Heard:
    """Bring whatever."""
    return Heard(anything.said)


async def find(id: UUID, place: str) -> Heard:  # noqa: A002 the name in the path
    """Find something."""
    return Heard([str(id), place])


async def drop() -> None:
    """Drop something."""


async def visit(visit: RequestContext) -> Heard:
    """Say who came."""
    return Heard([visit.id, visit.client_ip, visit.user_agent])


async def fail() -> Heard:
    """Fail as code fails."""
    raise ZeroDivisionError("our insides: hunter2")


async def fail_there(id: str) -> Heard:  # noqa: A002 the name in the path
    """Fail behind a path with a parameter."""
    raise ZeroDivisionError(f"our insides: hunter2 {id}")


async def missing() -> Heard:
    """Fail on purpose."""
    raise NotFound("no such parcel")


async def twice() -> Heard:
    """Come too late."""
    raise Conflict("already taken")


async def often() -> Heard:
    """Come too often."""
    raise RateLimited("parcels", timedelta(seconds=6.2))


async def stranger() -> Heard:
    """Come without a name."""
    raise Unauthenticated("who are you?")


async def away() -> Heard:
    """Find the database away."""
    raise Unavailable("connection to 10.1.2.3 refused")


async def slow(hub: Hub) -> Heard:
    """Ask the database for something that takes too long."""
    async with hub.autocommit() as tx:
        return Heard(await tx.value(SLOW))


async def stream(hub: Hub) -> Response:
    """Go on until the hub closes."""

    async def lines() -> AsyncIterator[str]:
        yield "first\n"
        await hub.closing.wait()
        yield "last\n"

    return StreamingResponse(lines(), media_type="text/plain")


async def stubborn() -> Response:
    """Go on for ever."""

    async def lines() -> AsyncIterator[str]:
        yield "first\n"
        await asyncio.Event().wait()

    return StreamingResponse(lines(), media_type="text/plain")


TABLE = (
    Route("GET", "/ask", ask),
    Route("POST", "/bring", bring, status=202),
    Route("POST", "/anything", swallow),
    Route("GET", "/find/{id}/{place}", find),
    Route("DELETE", "/drop", drop, status=204),
    Route("GET", "/visit", visit),
    Route("GET", "/fail", fail),
    Route("GET", "/fail/{id}", fail_there),
    Route("GET", "/missing", missing, may_raise=(NotFound,)),
    Route("GET", "/relay/missing", missing, may_raise=(NotFound,), error_format=ErrorFormat.RELAY),
    Route("POST", "/relay/bring", bring, error_format=ErrorFormat.RELAY),
    Route("GET", "/relay/fail", fail, error_format=ErrorFormat.RELAY),
    Route("GET", "/twice", twice),
    Route("GET", "/often", often),
    Route("GET", "/stranger", stranger),
    Route("GET", "/away", away),
    Route("GET", "/slow", slow),
    Route("GET", "/stream", stream),
    Route("GET", "/stubborn", stubborn),
)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    impatient = {"body_limit": LIMIT, "trusted_proxies": ["127.0.0.0/8"], "statement_timeout": timedelta(seconds=0.2)}
    return settings.model_copy(update=impatient | {"stop_within": timedelta(seconds=1)})


@pytest.fixture
async def web(hub: Hub) -> AsyncGenerator[httpx2.AsyncClient]:
    async with serving(hub, TABLE) as address, httpx2.AsyncClient(base_url=address) as client:
        yield client


def mistakes(answer: httpx2.Response) -> list[tuple[str, str]]:
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "invalid"
    return [(each["field"], each["why"]) for each in answer.json()["mistakes"]]


async def test_what_is_asked_and_brought_arrives_typed(web: httpx2.AsyncClient) -> None:
    asked = await web.get("/ask", params={"limit": "7", "colour": "red"})
    brought = await web.post("/bring", content=b'{"weight": 3, "to": {"a": [1]}}')
    found = await web.get("/find/0192f0c1-0000-7000-8000-000000000001/%ED%8C%8C%EB%B0%9C")

    assert asked.json() == {"said": [7, "red"]}
    assert (brought.status_code, brought.json()) == (202, {"said": [3, {"a": [1]}]})
    assert found.json() == {"said": ["0192f0c1-0000-7000-8000-000000000001", "파발"]}


async def test_nothing_to_say_is_said_with_an_empty_body(web: httpx2.AsyncClient) -> None:
    answer = await web.delete("/drop")

    assert (answer.status_code, answer.content) == (204, b"")


WRONG_QUESTIONS = {
    "limit=0": ("limit", "expected `int` >= 1"),
    "limit=many": ("limit", "expected `int`, got `str`"),
    "colour=blue": ("colour", "is not one of red"),
    "size=1": ("size", "is not known here"),
    "limit=1&limit=2": ("limit", "is given more than once"),
    "colour=%00": ("colour", NUL_MESSAGE),
}

WRONG_BODIES = {
    b'{"weight": "3"}': ("weight", "expected `int`, got `str`"),
    b'{"weight": -1}': ("weight", "expected `int` >= 0"),
    b'{"weight": 1, "to": {"a": [1, "x"]}}': ("to[...][1]", "expected `int`, got `str`"),
    b"": ("body", "is missing"),
    b"{}": ("weight", "is missing"),
    b'{"weight": 1, "label": "A.B"}': ("label", r"does not match '^[a-z]+(\.[a-z]+)*$'"),
    b'{"weight": 1, "colours": ["red", "blue"]}': ("colours[1]", "is not one of red"),
    b'{"weight": 1, "size": 2}': ("size", "is not known here"),
    b"[]": ("body", "expected `object`, got `array`"),
    b'{"weight": 1, "to": {"\\u0000": []}}': ("to", NUL_MESSAGE),
    b'{"weight": 1, "\\u0000": []}': ("body", NUL_MESSAGE),
    b'["\\u0000"]': ("body", NUL_MESSAGE),
    b'{"weight": 1, "to": ' + b"[" * 900 + b"]" * 900 + b"}": ("to", "expected `object`, got `array`"),
}


async def test_a_wrong_question_names_the_field(web: httpx2.AsyncClient) -> None:
    assert {asked: mistakes(await web.get(f"/ask?{asked}")) for asked in WRONG_QUESTIONS} == {
        asked: [expected] for asked, expected in WRONG_QUESTIONS.items()
    }


async def test_a_wrong_body_names_the_field(web: httpx2.AsyncClient) -> None:
    assert {body: mistakes(await web.post("/bring", content=body)) for body in WRONG_BODIES} == {
        body: [expected] for body, expected in WRONG_BODIES.items()
    }


async def test_what_is_not_json_is_refused(web: httpx2.AsyncClient) -> None:
    for body in (b"{", b'{"weight": 1}}', b'{"weight": 1, "to": {"\xff": []}}', b'{"weight": 1, "to": {"\\ud8'):
        [(field, why)] = mistakes(await web.post("/bring", content=body))

        assert field == "body"
        assert why.startswith("is not JSON")


async def test_an_escaped_backslash_before_u0000_is_no_nul(web: httpx2.AsyncClient) -> None:
    answer = await web.post("/bring", content=b'{"weight": 1, "to": {"\\\\u0000": []}}')

    assert answer.json() == {"said": [1, {"\\u0000": []}]}


async def test_a_body_nested_to_the_skies_is_refused(web: httpx2.AsyncClient) -> None:
    deep = b'{"said": ' + b"[" * (LIMIT - 20) + b"}"

    assert mistakes(await web.post("/anything", content=deep)) == [("body", "is nested too deeply")]


async def test_a_body_larger_than_the_limit_is_refused_declared_or_not(web: httpx2.AsyncClient) -> None:
    async def trickle() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b" " * (LIMIT // 8)

    just = b'{"weight": 1}'.ljust(LIMIT)
    declared = await web.post("/bring", content=just + b" ")
    trickled = await web.post("/bring", content=trickle())

    assert (await web.post("/bring", content=just)).status_code == 202
    for answer in (declared, trickled):
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_a_wrong_word_in_the_path_names_the_field(web: httpx2.AsyncClient) -> None:
    for path in ("/find/12/here", "/find/0192f0c1-0000-7000-8000-00000000000g/here"):
        assert mistakes(await web.get(path)) == [("id", "is not a UUID")]


@pytest.mark.parametrize("path", ["/fail", "/fail/7"])
async def test_a_handler_that_fails_tells_nothing_of_our_insides(web: httpx2.AsyncClient, path: str) -> None:
    answer = await web.get(path, headers={"x-request-id": "finds-me-in-the-log"})

    assert answer.status_code == 500
    assert answer.json() == {
        "title": "Internal Server Error",
        "status": 500,
        "code": "error",
        "detail": "something went wrong inside; the request id finds it in the log",
        "request_id": "finds-me-in-the-log",
    }
    assert answer.headers["x-request-id"] == "finds-me-in-the-log"
    relayed = await web.get("/relay/fail")
    assert (relayed.status_code, relayed.json().keys()) == (500, {"error", "code", "message"})
    assert "hunter2" not in answer.text + relayed.text


REFUSALS = {
    "/missing": (404, "not_found", {}),
    "/nowhere": (404, "not_found", {}),
    "/ask/": (404, "not_found", {}),
    "/bring": (405, "not_allowed", {"allow": "POST"}),
    "/twice": (409, "conflict", {}),
    "/often": (429, "too_many", {"retry-after": "7"}),
    "/stranger": (401, "unauthenticated", {"www-authenticate": 'Bearer realm="pabal"'}),
    "/away": (503, "unavailable", {"retry-after": "2"}),
    "/slow": (503, "unavailable", {"retry-after": "2"}),
}


async def test_every_refusal_is_a_problem_with_a_stable_code(web: httpx2.AsyncClient) -> None:
    for path, (status, code, headers) in REFUSALS.items():
        answer = await web.get(path)

        assert answer.headers["content-type"] == "application/problem+json"
        assert (answer.status_code, answer.json()["status"], answer.json()["code"]) == (status, status, code)
        assert answer.json()["request_id"] == answer.headers["x-request-id"]
        assert "10.1.2.3" not in answer.text
        assert answer.headers.items() >= headers.items()


async def test_the_relays_doors_keep_the_relays_shape(web: httpx2.AsyncClient) -> None:
    missing_one = await web.get("/relay/missing")
    malformed = await web.post("/relay/bring", content=b"{}")

    assert missing_one.status_code == 404
    assert missing_one.headers["content-type"] == "application/json"
    assert missing_one.json() == {"error": "no such parcel", "code": "NOT_FOUND", "message": "no such parcel"}
    assert malformed.json()["code"] == "INVALID_REQUEST"
    assert malformed.json()["message"] == "weight: is missing"


async def test_a_visit_knows_who_came(web: httpx2.AsyncClient) -> None:
    headers = {"x-request-id": "abcdefgh", "x-forwarded-for": "203.0.113.9", "user-agent": "a browser"}

    assert (await web.get("/visit", headers=headers)).json() == {"said": ["abcdefgh", "203.0.113.9", "a browser"]}


async def test_a_request_id_that_makes_no_sense_is_replaced(web: httpx2.AsyncClient) -> None:
    for mad in ("short", "x" * 65, "with a space in it", "caf\u00e9-caf\u00e9"):
        answer = await web.get("/visit", headers={b"x-request-id": mad.encode("latin-1")})

        assert answer.headers["x-request-id"] != mad
        assert len(answer.headers["x-request-id"]) == 32


async def test_a_stream_ends_when_the_hub_closes(hub: Hub) -> None:
    async with serving(hub, TABLE) as address, httpx2.AsyncClient(base_url=address) as client:
        async with client.stream("GET", "/stream") as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == "first"
            hub.closing.set()
            assert await anext(lines) == "last"
        assert hub.db.connections_in_use() == 0


async def test_a_stream_that_does_not_end_itself_is_ended(database_urls: DatabaseUrls, settings: Settings) -> None:
    clock = asyncio.get_running_loop().time
    async with open_hub(settings, database_urls) as hub, httpx2.AsyncClient() as client:
        async with serving(hub, TABLE) as address:
            request = client.build_request("GET", f"{address}/stubborn")
            answer = await client.send(request, stream=True)
            closing = clock()
        took = clock() - closing
        with pytest.raises(httpx2.RemoteProtocolError):
            await answer.aread()

    assert took < 3


async def test_a_handler_nobody_can_call_is_a_mistake_at_start(hub: Hub) -> None:
    async def odd(what: bytes) -> Heard:
        return Heard(what)

    with pytest.raises(TypeError, match="nothing fills the parameter what"):
        build_endpoint(Route("GET", "/odd", odd), hub)
