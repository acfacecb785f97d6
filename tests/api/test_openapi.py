"""The table as OpenAPI: valid, complete, and kept by the doors themselves."""

import asyncio
import enum
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import httpx2
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.generation.case import Case
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from pabal.api import routes
from pabal.core.actor import Actor
from pabal.core.errors import NotFound
from pabal.hub import DatabaseUrls, Hub
from pabal.notifications.people.tokens import issue_person_link
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.web.openapi import build_openapi
from pabal.web.route import ErrorFormat, RequestBody, RequestQuery, ResponseBody, Route
from relay.people import an_owner
from support.clusters import connected
from support.oauth_client import bearer, enrol
from support.server import serving

pytestmark = pytest.mark.anyio

ACCEPTED = 202
EXAMPLES = {GenerationMode.POSITIVE: 25, GenerationMode.NEGATIVE: 10}
"""How often each operation is called; to think of something wrong takes long."""


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Wanted(RequestQuery, frozen=True):
    size: Size = Size.SMALL
    after: str | None = None


class Parcel(RequestBody, frozen=True):
    weight: int


class Receipt(ResponseBody, frozen=True):
    number: int


async def send(place: Size, wanted: Wanted, parcel: Parcel) -> list[Receipt]:
    """Send a parcel.

    It may take a while.
    """
    return [Receipt(parcel.weight)]


TABLE = (
    Route("POST", "/parcels/{place}", send, status=202, may_raise=(NotFound,), tag="parcels"),
    Route("POST", "/relay/parcels/{place}", send, error_format=ErrorFormat.RELAY),
)


def refs(node: Any) -> list[str]:
    match node:
        case dict():
            return [value for key, value in node.items() if key == "$ref"] + refs(list(node.values()))
        case list():
            return [ref for each in node for ref in refs(each)]
        case _:
            return []


@pytest.mark.parametrize("table", [routes.ROUTES, TABLE], ids=["the hub's", "a test's"])
def test_the_document_is_sound(table: tuple[Route, ...]) -> None:
    document = build_openapi(table)

    operations = [spoken for path in document["paths"].values() for spoken in path.values()]
    names = [spoken["operationId"] for spoken in operations]
    assert len(operations) == len(table)
    assert len({*names}) == len(names)
    assert all(spoken["summary"] and spoken["responses"] for spoken in operations)
    schemas = document["components"]["schemas"]
    assert {ref.removeprefix("#/components/schemas/") for ref in refs(document)} <= schemas.keys()
    for schema in schemas.values():
        jsonschema_rs.meta.validate(schema | {"$schema": "https://json-schema.org/draft/2020-12/schema"})


def test_an_operation_says_what_it_takes_and_gives() -> None:
    document = build_openapi(TABLE)
    spoken = document["paths"]["/parcels/{place}"]["post"]

    place, size, after = spoken["parameters"]
    assert (place["in"], place["required"]) == ("path", True)
    assert (size["name"], size["in"], size["required"]) == ("size", "query", False)
    assert size["schema"]["default"] == "small"
    assert "default" not in after["schema"]
    assert document["components"]["schemas"]["Size"]["enum"] == ["large", "small"]
    assert document["components"]["schemas"]["Parcel"]["additionalProperties"] is False
    assert spoken["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Parcel"}
    assert spoken["responses"]["202"]["content"]["application/json"]["schema"]["type"] == "array"
    assert spoken["responses"].keys() == {"202", "400", "404", "413"}
    assert "application/problem+json" in spoken["responses"]["400"]["content"]
    assert (spoken["summary"], spoken["description"]) == ("Send a parcel.", "It may take a while.")


async def test_it_is_served_as_a_document_and_as_a_page(web: httpx2.AsyncClient) -> None:
    document, page = await web.get("/openapi.json"), await web.get("/docs")

    assert document.json()["openapi"] == "3.1.0"
    for path in document.json()["paths"]:
        assert f"<code>{path}</code>" in page.text


def test_every_permission_is_told_with_what_it_is_for() -> None:
    [flow] = build_openapi(routes.ROUTES)["components"]["securitySchemes"]["token"]["flows"].values()

    assert flow["scopes"].keys() == {*Permission}


def test_a_door_says_what_it_needs() -> None:
    async def send(caller: AuthenticatedService) -> None:
        """Send."""

    table = (Route("POST", "/send", send, permission=Permission.SEND),)
    spoken = build_openapi(table)["paths"]["/send"]["post"]

    assert spoken["security"] == [{"token": ["notifications:send"]}]
    assert {"401", "403", "503"} <= spoken["responses"].keys()


OPEN = tuple(door for door in routes.ROUTES if not door.permission)
GUARDED = tuple(door for door in routes.ROUTES if door.permission)
OAUTH = tuple(door for door in routes.ROUTES if door.error_format is ErrorFormat.OAUTH)
RELAY = tuple(door for door in routes.ROUTES if door.relay_auth)
PERSONAL = tuple(door for door in routes.ROUTES if door.person_auth and door.media_type != "text/event-stream")
"""A stream would go on for as long as the token is good."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shown", "table"),
    [
        ("nothing", OPEN),
        ("nothing", GUARDED),
        ("a secret", OAUTH),
        ("a token", GUARDED),
        ("a token", OAUTH[1:]),
        ("a relay token", RELAY),
        ("a person's token", PERSONAL),
    ],
    ids=[
        "nothing, anybody's",
        "nothing, guarded",
        "a secret",
        "a token, guarded",
        "a token, oauth",
        "a relay token",
        "a person's token",
    ],
)
async def test_the_doors_keep_to_it(
    hub: Hub, web: httpx2.AsyncClient, database_urls: DatabaseUrls, shown: str, table: tuple[Route, ...]
) -> None:
    minu = await enrol(hub, web, "minu_test", *Permission)
    headers = {
        "nothing": {},
        "a secret": minu.basic,
        "a token": spelled(bearer((await minu.tokens())["access_token"])),
        "a relay token": spelled((await an_owner(hub)).bearer),
        "a person's token": spelled(bearer(await a_persons_token(hub))),
    }
    assert database_urls.direct
    async with connected(database_urls.direct) as owner:
        # Strangers are made to wait after a few failures; here each comes for the first time.
        forgive = partial(owner.execute, "delete from pabal.limits")
        broken, tried = await keeping(str(web.base_url), table, headers[shown], forgive)

    assert not broken, "\n\n".join(broken)
    assert tried >= len(table)


def spelled(header: dict[str, str]) -> dict[str, str]:
    """As schemathesis spells it, which takes it away to see what happens then."""
    return {name.title(): value for name, value in header.items()}


async def a_persons_token(hub: Hub) -> str:
    async with hub.transaction() as tx:
        return (await issue_person_link(tx, "80351110224678912", Actor("tester"))).token


async def test_a_tests_doors_keep_to_it(hub: Hub) -> None:
    async with serving(hub, TABLE) as address:
        broken, tried = await keeping(address, TABLE)

    assert not broken, "\n\n".join(broken)
    assert tried >= len(TABLE)


async def nothing() -> None:
    return None


async def keeping(
    address: str,
    table: tuple[Route, ...],
    headers: dict[str, str] | None = None,
    between: Callable[[], Awaitable[object]] = nothing,
) -> tuple[list[str], int]:
    """Try every door of a table from a thread; `between` happens in this loop before each call."""
    loop = asyncio.get_running_loop()
    schema = schemathesis.openapi.from_dict(build_openapi(table))
    schema.config.update(base_url=address)

    async def paused() -> None:
        await between()

    def pause() -> None:
        asyncio.run_coroutine_threadsafe(paused(), loop).result()

    return await asyncio.to_thread(try_all, schema, headers, pause)


def try_all(schema: Any, headers: dict[str, str] | None, pause: Callable[[], None]) -> tuple[list[str], int]:
    """Call every operation with what fits its schema and with what does not; each answer must be one it names.

    How each was broken, and how many calls it took.
    """
    broken: list[str] = []
    tried = 0
    for operation, mode in tries(schema):

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=EXAMPLES[mode],
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        )
        def call(case: Case[Any]) -> None:
            nonlocal tried
            tried += 1
            pause()
            hurry(case)
            # A schema cannot say all that is refused: NUL, a cursor no list gave, a token nobody has.
            beyond: list[Any] = [positive_data_acceptance]
            answer = case.call(headers=headers)
            if refuses_some(answer.json() if answer.status_code == ACCEPTED else None):
                beyond.append(negative_data_rejection)
            case.validate_response(answer, excluded_checks=beyond, headers=headers)

        try:
            call()
        except (FailureGroup, ExceptionGroup) as found:
            broken.append(f"{operation.label}: {found}")
    return broken, tried


def refuses_some(answer: object) -> bool:
    """Whether a door that takes many at once, and answers for each of them, refused one."""
    match answer:
        case [*each]:
            return any(isinstance(one, dict) and "code" in one for one in each)
        case _:
            return False


def hurry(case: Case[Any]) -> None:
    """A door may let its caller wait for half a minute, for which we have no time."""
    match case.body:
        case {"wait": int(wait)} if wait <= 30_000:
            case.body["wait"] = min(wait, 10)
        case _:
            pass
    match case.query:
        case {"wait": int() | float() | str() as wait} if str(wait).isdecimal() and int(wait) <= 30_000:
            case.query["wait"] = 0
        case _:
            pass


def tries(schema: Any) -> Iterator[tuple[Any, GenerationMode]]:
    """Every operation in every way; who takes nothing can be given nothing wrong."""
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        takes = operation.definition.raw.keys() & {"requestBody", "parameters"}
        yield from ((operation, mode) for mode in GenerationMode if takes or mode.is_positive)
