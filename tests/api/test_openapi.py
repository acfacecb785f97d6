"""The OpenAPI document is valid and complete, and the routes behave as documented."""

import asyncio
import enum
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
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
from pabal.relay.auth import AccountOwner, RelayPrincipal
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.web.reference.openapi import build_openapi
from pabal.web.route import ErrorFormat, RequestBody, RequestQuery, ResponseBody, Route
from relay.people import add_account
from support.clusters import open_connection
from support.oauth_client import bearer, register_oauth_service
from support.server import serve_hub

pytestmark = pytest.mark.anyio

ACCEPTED, TOO_LARGE = 202, 413
API_DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"
EXAMPLES = {GenerationMode.POSITIVE: 12, GenerationMode.NEGATIVE: 4}
"""Calls per operation; generating invalid data is slow."""
FEW_EXAMPLES = {GenerationMode.POSITIVE: 3, GenerationMode.NEGATIVE: 2}
"""Calls per operation that is refused before its data is read."""


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class ParcelQuery(RequestQuery, frozen=True):
    size: Size = Size.SMALL
    after: str | None = None


class Parcel(RequestBody, frozen=True):
    weight: int


class Receipt(ResponseBody, frozen=True):
    number: int


async def send(shelf: Size, query: ParcelQuery, parcel: Parcel) -> list[Receipt]:
    """Send a parcel.

    It may take a while.
    """
    return [Receipt(parcel.weight)]


TABLE = (
    Route("POST", "/parcels/{shelf}", send, status=202, may_raise=(NotFound,), tag="parcels"),
    Route("POST", "/relay/parcels/{shelf}", send, error_format=ErrorFormat.RELAY),
)


def refs(node: Any) -> list[str]:
    match node:
        case dict():
            return [value for key, value in node.items() if key == "$ref"] + refs(list(node.values()))
        case list():
            return [ref for element in node for ref in refs(element)]
        case _:
            return []


@pytest.mark.parametrize("table", [routes.ROUTES, TABLE], ids=["hub", "test"])
def test_the_document_is_valid(table: tuple[Route, ...]) -> None:
    document = build_openapi(table)

    operations = [operation for path in document["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(operations) == len(table)
    assert len({*names}) == len(names)
    assert all(operation["summary"] and operation["responses"] for operation in operations)
    schemas = document["components"]["schemas"]
    assert {ref.removeprefix("#/components/schemas/") for ref in refs(document)} <= schemas.keys()
    for schema in schemas.values():
        jsonschema_rs.meta.validate(schema | {"$schema": "https://json-schema.org/draft/2020-12/schema"})


def test_an_operation_describes_parameters_body_and_responses() -> None:
    document = build_openapi(TABLE)
    operation = document["paths"]["/parcels/{shelf}"]["post"]

    shelf, size, after = operation["parameters"]
    assert (shelf["in"], shelf["required"]) == ("path", True)
    assert (size["name"], size["in"], size["required"]) == ("size", "query", False)
    assert size["schema"]["default"] == "small"
    assert "default" not in after["schema"]
    assert document["components"]["schemas"]["Size"]["enum"] == ["large", "small"]
    assert document["components"]["schemas"]["Parcel"]["additionalProperties"] is False
    assert operation["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Parcel"}
    assert operation["responses"]["202"]["content"]["application/json"]["schema"]["type"] == "array"
    assert operation["responses"].keys() == {"202", "400", "403", "404", "413"}
    assert "application/problem+json" in operation["responses"]["400"]["content"]
    assert (operation["summary"], operation["description"]) == ("Send a parcel.", "It may take a while.")


async def test_it_is_served_as_json_and_as_a_page(web: httpx2.AsyncClient) -> None:
    document, page = await web.get("/openapi.json"), await web.get("/docs")

    assert document.json()["openapi"] == "3.1.0"
    for path in document.json()["paths"]:
        assert f"<code>{path}</code>" in page.text


def request_fields() -> Iterator[tuple[str, str, set[str]]]:
    """The method, the path, and the names of path parameters, query parameters and body fields of every operation."""
    document = build_openapi(routes.ROUTES)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            names = {parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] != "header"}
            for content in operation.get("requestBody", {}).get("content", {}).values():
                name = content["schema"].get("$ref", "").rpartition("/")[2]
                names |= document["components"]["schemas"].get(name, {}).get("properties", {}).keys()
            yield method.upper(), path, names


async def test_both_references_have_every_field_of_every_request(web: httpx2.AsyncClient) -> None:
    page = (await web.get("/docs")).text
    sections = {
        "docs/api.md": (re.split("(?=\n### )", API_DOCUMENT.read_text()), "\n### {} {}\n", "\n| `{}` "),
        "/docs": (
            page.split("<article "),
            '<span class="method">{}</span> <code>{}</code></h3>',
            "<p><code>{}</code> ",
        ),
    }
    assert sum(len(names) for _, _, names in request_fields()) > 150
    handlers = {(route.method, route.path): route.name for route in routes.ROUTES}
    for reference, (parts, heading, row) in sections.items():
        documented = set[str]()
        for method, path, names in request_fields():
            section = next((part for part in parts if heading.format(method, path) in part), None)
            if section:  # else it is a second path of a handler
                documented.add(handlers[method, path])
                missing = {name for name in names if row.format(name) not in section}
                assert missing == set(), f"{reference}: {method} {path}"
        own = {"docs", "openapi_document"}  # the page does not describe itself
        assert documented | own == {handlers[method, path] for method, path, _ in request_fields()}, reference


def test_every_permission_has_a_description() -> None:
    [flow] = build_openapi(routes.ROUTES)["components"]["securitySchemes"]["token"]["flows"].values()

    assert flow["scopes"].keys() == {*Permission}


def test_an_operation_names_its_permission() -> None:
    async def send(caller: AuthenticatedService) -> None:
        """Send."""

    table = (Route("POST", "/send", send, permission=Permission.SEND),)
    operation = build_openapi(table)["paths"]["/send"]["post"]

    assert operation["security"] == [{"token": ["notifications:send"]}]
    assert {"401", "403", "503"} <= operation["responses"].keys()


GUARDED = tuple(
    route
    for route in routes.ROUTES
    if route.permission or route.person_auth or not {RelayPrincipal, AccountOwner}.isdisjoint(route.type_hints.values())
)
"""Routes that authenticate the caller before they read the data."""
PUBLIC = tuple(route for route in routes.ROUTES if route not in GUARDED)
PROTECTED = tuple(route for route in routes.ROUTES if route.permission)
OAUTH = tuple(route for route in routes.ROUTES if route.error_format is ErrorFormat.OAUTH)
RELAY = tuple(route for route in routes.ROUTES if route.relay_auth)
PERSONAL = tuple(route for route in routes.ROUTES if route.person_auth and route.media_type != "text/event-stream")
"""Without streams, which stay open as long as the token is valid."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("credential", "table"),
    [
        ("no credential", PUBLIC),
        ("no credential", GUARDED),
        ("a secret", OAUTH),
        ("a token", PROTECTED),
        ("a token", OAUTH[1:]),
        ("a relay token", RELAY),
        ("a person's token", PERSONAL),
    ],
    ids=[
        "no credential, public",
        "no credential, guarded",
        "a secret",
        "a token, protected",
        "a token, oauth",
        "a relay token",
        "a person's token",
    ],
)
async def test_the_routes_behave_as_documented(
    hub: Hub, web: httpx2.AsyncClient, database_urls: DatabaseUrls, credential: str, table: tuple[Route, ...]
) -> None:
    minu = await register_oauth_service(hub, web, "minu_test", *Permission)
    headers = {
        "no credential": {},
        "a secret": minu.basic,
        "a token": capitalized(bearer((await minu.tokens())["access_token"])),
        "a relay token": capitalized((await add_account(hub)).bearer),
        "a person's token": capitalized(bearer(await issue_person_token(hub))),
    }
    assert database_urls.direct
    async with open_connection(database_urls.direct) as owner:
        # Failed authentications are rate-limited; reset the limit before each call.
        reset_limits = partial(owner.execute, "delete from pabal.limits")
        examples = FEW_EXAMPLES if (credential, table) == ("no credential", GUARDED) else EXAMPLES
        violations, calls = await check_routes(str(web.base_url), table, headers[credential], reset_limits, examples)

    assert not violations, "\n\n".join(violations)
    assert calls >= len(table)


def capitalized(header: dict[str, str]) -> dict[str, str]:
    """Schemathesis removes the header to test without it, and looks for this spelling."""
    return {name.title(): value for name, value in header.items()}


async def issue_person_token(hub: Hub) -> str:
    async with hub.transaction() as tx:
        return (await issue_person_link(tx, "80351110224678912", Actor("tester"))).token


async def test_the_routes_of_a_test_behave_as_documented(hub: Hub) -> None:
    async with serve_hub(hub, TABLE) as address:
        violations, calls = await check_routes(address, TABLE)

    assert not violations, "\n\n".join(violations)
    assert calls >= len(TABLE)


async def no_action() -> None:
    return None


async def check_routes(
    address: str,
    table: tuple[Route, ...],
    headers: dict[str, str] | None = None,
    between: Callable[[], Awaitable[object]] = no_action,
    examples: Mapping[GenerationMode, int] = MappingProxyType(EXAMPLES),
) -> tuple[list[str], int]:
    """Call every route of a table from a thread; `between` runs in this event loop before each call."""
    loop = asyncio.get_running_loop()
    schema = schemathesis.openapi.from_dict(build_openapi(table))
    schema.config.update(base_url=address)

    async def run_between() -> None:
        await between()

    def run_between_in_loop() -> None:
        asyncio.run_coroutine_threadsafe(run_between(), loop).result()

    return await asyncio.to_thread(call_all_operations, schema, headers, run_between_in_loop, examples)


def call_all_operations(
    schema: Any,
    headers: dict[str, str] | None,
    between: Callable[[], None],
    examples: Mapping[GenerationMode, int],
) -> tuple[list[str], int]:
    """Call every operation with valid and invalid data; each response must be documented.

    Returns the violations and the number of calls.
    """
    violations: list[str] = []
    calls = 0
    for operation, mode in operations_and_modes(schema):

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=examples[mode],
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        )
        def call(case: Case[Any]) -> None:
            nonlocal calls
            calls += 1
            between()
            shorten_wait(case)
            # A schema cannot describe every invalid value: NUL, a foreign cursor, an unknown token.
            excluded: list[Any] = [positive_data_acceptance]
            response = case.call(headers=headers)
            is_too_large = response.status_code == TOO_LARGE  # a rejection that the check does not know
            if is_too_large or has_rejected_item(response.json() if response.status_code == ACCEPTED else None):
                excluded.append(negative_data_rejection)
            case.validate_response(response, excluded_checks=excluded, headers=headers)

        try:
            call()
        except (FailureGroup, ExceptionGroup) as failures:
            violations.append(f"{operation.label}: {failures}")
    return violations, calls


def has_rejected_item(response: object) -> bool:
    """Whether a batch endpoint rejected at least one item."""
    match response:
        case [*items]:
            return any(isinstance(item, dict) and "code" in item for item in items)
        case _:
            return False


def shorten_wait(case: Case[Any]) -> None:
    """Shorten long polls, which may wait for half a minute."""
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


def operations_and_modes(schema: Any) -> Iterator[tuple[Any, GenerationMode]]:
    """Every operation with valid data, and with invalid data if it takes any."""
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        has_input = operation.definition.raw.keys() & {"requestBody", "parameters"}
        yield from ((operation, mode) for mode in GenerationMode if has_input or mode.is_positive)
