"""OpenAPI 3.1, written from the table of doors."""

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from pabal import __version__
from pabal.tokens.permission import Permission
from pabal.web.auth import PERSON_COOKIE
from pabal.web.errors import OAuthProblem, Problem, RelayProblem, error_status
from pabal.web.route import ErrorFormat, Route

SCHEMA_REF = "#/components/schemas/{name}"
ERROR_SCHEMAS = {ErrorFormat.PROBLEM: Problem, ErrorFormat.RELAY: RelayProblem, ErrorFormat.OAUTH: OAuthProblem}
PERMISSION_DESCRIPTIONS = {
    Permission.PUBLISH: "Publish events.",
    Permission.CONSUME: "Receive events, and subscribe to them.",
    Permission.READ_EVENTS: "Look at events.",
    Permission.SEND: "Send notifications.",
    Permission.READ_NOTIFICATIONS: "Look at notifications.",
    Permission.INTROSPECT: "Ask about anybody's tokens.",
    Permission.MANAGE_TOKENS: "Revoke anybody's tokens.",
    Permission.ADMIN: "Look after the hub: dead letters, and everybody's events.",
}
SECURITY_SCHEMES = {
    "token": {
        "type": "oauth2",
        "description": "An access token of a service, as a Bearer token.",
        "flows": {
            "clientCredentials": {
                "tokenUrl": "/oauth/token",
                "refreshUrl": "/oauth/token",
                "scopes": {each.value: PERMISSION_DESCRIPTIONS[each] for each in Permission},
            }
        },
    },
    "secret": {"type": "http", "scheme": "basic", "description": "A service's name and secret."},
    "relay": {"type": "http", "scheme": "bearer", "description": "A session's token, or an account's relay token."},
    "person": {"type": "http", "scheme": "bearer", "description": "A person's token, good for fifteen minutes."},
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": PERSON_COOKIE,
        "description": "What `/me` swaps such a token for.",
    },
}


def build_openapi(routes: Iterable[Route]) -> dict[str, Any]:
    doors = [*routes]
    kinds = [*dict.fromkeys(kind for door in doors for kind in schema_types(door))]
    written, components = msgspec.json.schema_components(kinds, ref_template=SCHEMA_REF)
    for form in {door.form_type for door in doors if door.form_type}:
        components[form.__name__]["additionalProperties"] = {"type": "string"}  # whatever else it holds, each once
    schemas = dict(zip(kinds, written, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    names: set[str] = set()
    for door in doors:
        spoken = paths.setdefault(door.path, {})[door.method.lower()] = build_operation(door, schemas)
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
        "components": {"schemas": components, "securitySchemes": SECURITY_SCHEMES},
    }


def schema_types(route: Route) -> Iterable[Any]:
    if brought := route.body_type or route.form_type:
        yield brought
    if has_schema(route.response_type):
        yield route.response_type
    yield from route.path_types.values()
    if route.query_type:
        yield from (field.type for field in msgspec.structs.fields(route.query_type))
    if route.error_types:
        yield ERROR_SCHEMAS[route.error_format]


def build_operation(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    title, _, more = route.description.partition("\n\n")
    spoken: dict[str, Any] = {
        "operationId": route.name,
        "tags": [route.tag],
        "summary": " ".join(title.split()),
        "responses": {},
    }
    if more:
        spoken["description"] = more
    if parameters := [*path_parameters(route, schemas), *query_parameters(route, schemas)]:
        spoken["parameters"] = parameters
    if brought := route.body_type or route.form_type:
        kind = "application/json" if route.body_type else "application/x-www-form-urlencoded"
        required = any(field.required for field in msgspec.structs.fields(brought))
        one = schemas[brought]
        some = {"type": "array", "items": one, "minItems": 1, "maxItems": route.max_items}
        schema = {"oneOf": [one, some]} if route.max_items else one
        spoken["requestBody"] = {"required": required, "content": {kind: {"schema": schema}}}
    if security := [*security_requirements(route)]:
        spoken["security"] = security
    good: dict[str, Any] = {"description": HTTPStatus(route.status).phrase}
    if has_schema(route.response_type) or route.media_type.startswith("text/"):
        schema = schemas[route.response_type] if has_schema(route.response_type) else {"type": "string"}
        good["content"] = {route.media_type: {"schema": schema}}
    spoken["responses"][str(route.status)] = good
    for status, when in route.other_statuses.items():
        spoken["responses"][str(status)] = good | {"description": when}
    for error in route.error_types:
        spoken["responses"][str(error_status(error))] = {
            "description": HTTPStatus(error_status(error)).phrase,
            "content": {
                route.error_format.value.partition(";")[0]: {"schema": schemas[ERROR_SCHEMAS[route.error_format]]}
            },
        }
    return spoken


def security_requirements(route: Route) -> Iterable[dict[str, list[str]]]:
    """What opens the door, each by itself."""
    if route.permission:
        yield {"token": [route.permission]}
    if route.person_auth:
        yield from ({"person": []}, {"cookie": []})
    if route.relay_auth:
        yield {"relay": []}
    if route.error_format is ErrorFormat.OAUTH:
        yield from ({"secret": []}, {})  # or in the form itself


def path_parameters(route: Route, schemas: dict[Any, Any]) -> Iterable[dict[str, Any]]:
    for name, kind in route.path_types.items():
        yield {"name": name, "in": "path", "required": True, "schema": schemas[kind]}


def query_parameters(route: Route, schemas: dict[Any, Any]) -> Iterable[dict[str, Any]]:
    if route.query_type is None:
        return
    for field in msgspec.structs.fields(route.query_type):
        yield {
            "name": field.encode_name,
            "in": "query",
            "required": field.required,
            "schema": schemas[field.type] | default_of_field(field),
        }


def default_of_field(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    """What is taken when nothing is said; nothing at all is not worth saying."""
    if field.default is msgspec.NODEFAULT or field.default is None:
        return {}
    return {"default": msgspec.to_builtins(field.default)}


def has_schema(kind: Any) -> bool:
    """A type we write down; a response a handler built itself says nothing of what is in it."""
    return kind is not None and kind is not type(None) and not (isinstance(kind, type) and issubclass(kind, Response))
