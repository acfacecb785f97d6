"""OpenAPI 3.1, written from the table of doors."""

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from pabal import __version__
from pabal.api.door import Door, Shape
from pabal.api.errors import OAuthError, Problem, RelayError, status_of
from pabal.api.person import COOKIE
from pabal.tokens.permission import Permission

REF = "#/components/schemas/{name}"
BODIES = {Shape.PROBLEM: Problem, Shape.RELAY: RelayError, Shape.OAUTH: OAuthError}
MEANING = {
    Permission.PUBLISH: "Publish events.",
    Permission.CONSUME: "Receive events, and subscribe to them.",
    Permission.READ_EVENTS: "Look at events.",
    Permission.SEND: "Send notifications.",
    Permission.READ_NOTIFICATIONS: "Look at notifications.",
    Permission.INTROSPECT: "Ask about anybody's tokens.",
    Permission.TOKENS: "Revoke anybody's tokens.",
    Permission.ADMIN: "Look after the hub: dead letters, and everybody's events.",
}
SCHEMES = {
    "token": {
        "type": "oauth2",
        "description": "An access token of a service, as a Bearer token.",
        "flows": {
            "clientCredentials": {
                "tokenUrl": "/oauth/token",
                "refreshUrl": "/oauth/token",
                "scopes": {each.value: MEANING[each] for each in Permission},
            }
        },
    },
    "secret": {"type": "http", "scheme": "basic", "description": "A service's name and secret."},
    "relay": {"type": "http", "scheme": "bearer", "description": "A session's token, or an account's relay token."},
    "person": {"type": "http", "scheme": "bearer", "description": "A person's token, good for fifteen minutes."},
    "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "What `/me` swaps such a token for."},
}


def document(table: Iterable[Door]) -> dict[str, Any]:
    doors = [*table]
    kinds = [*dict.fromkeys(kind for door in doors for kind in kinds_of(door))]
    written, components = msgspec.json.schema_components(kinds, ref_template=REF)
    for form in {door.form for door in doors if door.form}:
        components[form.__name__]["additionalProperties"] = {"type": "string"}  # whatever else it holds, each once
    schemas = dict(zip(kinds, written, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    names: set[str] = set()
    for door in doors:
        spoken = paths.setdefault(door.path, {})[door.method.lower()] = operation(door, schemas)
        if door.name in names:  # the same handler behind a second path
            spoken["operationId"] = f"{door.name}_at{re.sub(r'[^a-z0-9]+', '_', door.path.lower())}"
        names.add(door.name)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pabal",
            "version": __version__,
            "summary": "A delivery hub on one PostgreSQL: chat relay, service events, notifications.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": SCHEMES},
    }


def kinds_of(door: Door) -> Iterable[Any]:
    if brought := door.body or door.form:
        yield brought
    if is_told(door.answer):
        yield door.answer
    yield from door.in_path.values()
    if door.query:
        yield from (field.type for field in msgspec.structs.fields(door.query))
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
    if parameters := [*path_parameters(door, schemas), *query_parameters(door, schemas)]:
        spoken["parameters"] = parameters
    if brought := door.body or door.form:
        kind = "application/json" if door.body else "application/x-www-form-urlencoded"
        required = any(field.required for field in msgspec.structs.fields(brought))
        one = schemas[brought]
        some = {"type": "array", "items": one, "minItems": 1, "maxItems": door.many}
        schema = {"oneOf": [one, some]} if door.many else one
        spoken["requestBody"] = {"required": required, "content": {kind: {"schema": schema}}}
    if security := [*ways_in(door)]:
        spoken["security"] = security
    good: dict[str, Any] = {"description": HTTPStatus(door.answers).phrase}
    if is_told(door.answer) or door.media_type.startswith("text/"):
        schema = schemas[door.answer] if is_told(door.answer) else {"type": "string"}
        good["content"] = {door.media_type: {"schema": schema}}
    spoken["responses"][str(door.answers)] = good
    for status, when in door.also.items():
        spoken["responses"][str(status)] = good | {"description": when}
    for error in door.errors:
        spoken["responses"][str(status_of(error))] = {
            "description": HTTPStatus(status_of(error)).phrase,
            "content": {door.shape.value.partition(";")[0]: {"schema": schemas[BODIES[door.shape]]}},
        }
    return spoken


def ways_in(door: Door) -> Iterable[dict[str, list[str]]]:
    """What opens the door, each by itself."""
    if door.needs:
        yield {"token": [door.needs]}
    if door.person:
        yield from ({"person": []}, {"cookie": []})
    if door.bearer:
        yield {"relay": []}
    if door.shape is Shape.OAUTH:
        yield from ({"secret": []}, {})  # or in the form itself


def path_parameters(door: Door, schemas: dict[Any, Any]) -> Iterable[dict[str, Any]]:
    for name, kind in door.in_path.items():
        yield {"name": name, "in": "path", "required": True, "schema": schemas[kind]}


def query_parameters(door: Door, schemas: dict[Any, Any]) -> Iterable[dict[str, Any]]:
    if door.query is None:
        return
    for field in msgspec.structs.fields(door.query):
        yield {
            "name": field.encode_name,
            "in": "query",
            "required": field.required,
            "schema": schemas[field.type] | default(field),
        }


def default(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    """What is taken when nothing is said; nothing at all is not worth saying."""
    if field.default is msgspec.NODEFAULT or field.default is None:
        return {}
    return {"default": msgspec.to_builtins(field.default)}


def is_told(kind: Any) -> bool:
    """A type we write down; a response a handler built itself says nothing of what is in it."""
    return kind is not None and kind is not type(None) and not (isinstance(kind, type) and issubclass(kind, Response))
