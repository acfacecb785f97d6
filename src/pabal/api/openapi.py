"""OpenAPI 3.1, written from the table of doors."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec

from pabal import __version__
from pabal.api.door import Door, Shape
from pabal.api.errors import Problem, RelayError, status_of

REF = "#/components/schemas/{name}"
BODIES = {Shape.PROBLEM: Problem, Shape.RELAY: RelayError}


def document(table: Iterable[Door]) -> dict[str, Any]:
    doors = [*table]
    kinds = [*dict.fromkeys(kind for door in doors for kind in kinds_of(door))]
    written, components = msgspec.json.schema_components(kinds, ref_template=REF)
    schemas = dict(zip(kinds, written, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for door in doors:
        paths.setdefault(door.path, {})[door.method.lower()] = operation(door, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pabal",
            "version": __version__,
            "summary": "A delivery hub on one PostgreSQL: chat relay, service events, notifications.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def kinds_of(door: Door) -> Iterable[Any]:
    yield from (kind for kind in (door.body, door.answer) if is_struct(kind))
    if door.errors:
        yield BODIES[door.shape]


def operation(door: Door, schemas: dict[Any, Any]) -> dict[str, Any]:
    title, _, more = door.says.partition("\n\n")
    spoken: dict[str, Any] = {
        "operationId": door.name,
        "tags": [door.tag],
        "summary": " ".join(title.split()),
        "responses": {},
    }
    if more:
        spoken["description"] = more
    if parameters := [*path_parameters(door), *query_parameters(door)]:
        spoken["parameters"] = parameters
    if door.body:
        spoken["requestBody"] = {"required": True, "content": {"application/json": {"schema": schemas[door.body]}}}
    good: dict[str, Any] = {"description": HTTPStatus(door.answers).phrase}
    if door.answers != HTTPStatus.NO_CONTENT:
        schema = schemas.get(door.answer, {"type": "string"} if door.media_type.startswith("text/") else {})
        good["content"] = {door.media_type: {"schema": schema}}
    spoken["responses"][str(door.answers)] = good
    for status, when in door.also.items():
        spoken["responses"][str(status)] = good | {"description": when}
    for error in door.errors:
        spoken["responses"][str(status_of(error))] = {
            "description": HTTPStatus(status_of(error)).phrase,
            "content": {door.shape.value: {"schema": schemas[BODIES[door.shape]]}},
        }
    return spoken


def path_parameters(door: Door) -> Iterable[dict[str, Any]]:
    for name, kind in door.in_path.items():
        yield {"name": name, "in": "path", "required": True, "schema": msgspec.json.schema(kind)}


def query_parameters(door: Door) -> Iterable[dict[str, Any]]:
    if door.query is None:
        return
    for field in msgspec.structs.fields(door.query):
        yield {
            "name": field.encode_name,
            "in": "query",
            "required": field.required,
            "schema": msgspec.json.schema(field.type),
        }


def is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
