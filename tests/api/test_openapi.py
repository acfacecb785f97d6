"""The table as OpenAPI: valid, complete, and kept by the doors themselves."""

import asyncio
import enum
from typing import Any

import httpx2
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core.result import Ok
from schemathesis.generation.case import Case

from house import serving
from pabal.api import doors, openapi
from pabal.api.door import Answer, Body, Door, Query, Shape
from pabal.core.errors import NotFound
from pabal.wiring import Hub

pytestmark = pytest.mark.anyio


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Wanted(Query, frozen=True):
    size: Size = Size.SMALL
    after: str | None = None


class Parcel(Body, frozen=True):
    weight: int


class Receipt(Answer, frozen=True):
    number: int


async def send(place: Size, wanted: Wanted, parcel: Parcel) -> list[Receipt]:
    """Send a parcel.

    It may take a while.
    """
    return [Receipt(parcel.weight)]


TABLE = (
    Door("POST", "/parcels/{place}", send, answers=202, may_raise=(NotFound,), tag="parcels"),
    Door("POST", "/relay/parcels/{place}", send, shape=Shape.RELAY),
)


def refs(node: Any) -> list[str]:
    match node:
        case dict():
            return [value for key, value in node.items() if key == "$ref"] + refs(list(node.values()))
        case list():
            return [ref for each in node for ref in refs(each)]
        case _:
            return []


@pytest.mark.parametrize("table", [doors.ALL, TABLE], ids=["the hub's", "a test's"])
def test_the_document_is_sound(table: tuple[Door, ...]) -> None:
    document = openapi.document(table)

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
    document = openapi.document(TABLE)
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


@pytest.mark.parametrize("table", [doors.ALL, TABLE], ids=["the hub's", "a test's"])
async def test_the_doors_keep_to_it(hub: Hub, table: tuple[Door, ...]) -> None:
    async with serving(hub, table) as address:
        schema = schemathesis.openapi.from_dict(openapi.document(table))
        schema.config.update(base_url=address)
        tried = await asyncio.to_thread(try_all, schema)

    assert tried >= len(table)


def try_all(schema: Any) -> int:
    """Call every operation with what fits its schema and with what does not; each answer must be one it names."""
    tried = 0
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)

        @given(case=result.ok().as_strategy())
        @settings(
            max_examples=25,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        )
        def call(case: Case[Any]) -> None:
            nonlocal tried
            tried += 1
            case.call_and_validate()

        call()
    return tried
