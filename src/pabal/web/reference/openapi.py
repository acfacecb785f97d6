"""The OpenAPI 3.1 document, generated from the route table."""

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import inspect
from starlette.responses import Response

from pabal import __version__
from pabal.tokens.permission import Permission
from pabal.web.auth import PERSON_COOKIE
from pabal.web.errors import OAuthProblem, Problem, RelayProblem, error_status
from pabal.web.reference.code_samples import build_code_samples
from pabal.web.reference.field_descriptions import (
    describe_schemas,
    find_field_description,
    path_section,
    query_sections,
)
from pabal.web.route import ErrorFormat, HandlerAuth, Route

HANDLER_CREDENTIALS = {
    HandlerAuth.RELAY: "a session token or an account's relay token",
    HandlerAuth.WEBHOOK: "the webhook secret or a signature",
    HandlerAuth.SECRET: "the service's secret, in the header or in the form",
}
SCHEMA_REF = "#/components/schemas/{name}"
ERROR_SCHEMAS = {ErrorFormat.PROBLEM: Problem, ErrorFormat.RELAY: RelayProblem, ErrorFormat.OAUTH: OAuthProblem}
PERMISSION_DESCRIPTIONS = {
    Permission.PUBLISH: "Publish events.",
    Permission.CONSUME: "Receive events and manage subscriptions.",
    Permission.READ_EVENTS: "Read events.",
    Permission.SEND: "Send notifications.",
    Permission.READ_NOTIFICATIONS: "Read notifications.",
    Permission.ISSUE_PERSON_TOKENS: "Issue tokens for people, which show all their toasts and preferences.",
    Permission.WRITE_PEOPLE: "Read and change the preferences of any person, but not give consent for them.",
    Permission.INTROSPECT: "Introspect the tokens of any service.",
    Permission.MANAGE_TOKENS: "Revoke the tokens of any service.",
    Permission.RECEIVE_HUB_EVENTS: "Receive the hub's own events, such as token.issued and relay.message.received.",
    Permission.ADMIN: "Operate the hub: dead letters, rules, data of people, and the events, notifications and"
    " subscriptions of all services.",
    Permission.MANAGE: "Manage services and the operators of the console. It can grant any permission.",
}
SECURITY_SCHEMES = {
    "token": {
        "type": "oauth2",
        "description": "A service's access token, sent as a bearer token.",
        "flows": {
            "clientCredentials": {
                "tokenUrl": "/oauth/token",
                "refreshUrl": "/oauth/token",
                "scopes": {permission.value: PERMISSION_DESCRIPTIONS[permission] for permission in Permission},
            }
        },
    },
    "secret": {"type": "http", "scheme": "basic", "description": "A service's name and secret."},
    "relay": {"type": "http", "scheme": "bearer", "description": "A session token, or an account's relay token."},
    "webhook": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Pabal-Secret",
        "description": "The webhook secret. The setting `PABAL_WEBHOOK_HEADER` names another header; a signature is"
        " accepted as well.",
    },
    "person": {"type": "http", "scheme": "bearer", "description": "A person's token, valid for fifteen minutes."},
    "ticket": {
        "type": "apiKey",
        "in": "query",
        "name": "ticket",
        "description": "A ticket of `POST /v1/toasts/ticket`, which opens one stream within 30 seconds.",
    },
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": PERSON_COOKIE,
        "description": "The cookie that `/me` sets in exchange for a person's token.",
    },
}


def build_openapi(routes: Iterable[Route]) -> dict[str, Any]:
    table = [*routes]
    types = [*dict.fromkeys(kind for route in table for kind in schema_types(route))]
    type_schemas, components = msgspec.json.schema_components(types, ref_template=SCHEMA_REF)
    for form in {route.form_type for route in table if route.form_type}:
        components[form.__name__]["additionalProperties"] = {"type": "string"}  # unknown fields are ignored
    mark_times(types, components)
    describe_schemas(components)
    schemas = dict(zip(types, type_schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    names: set[str] = set()
    for route in table:
        operation = paths.setdefault(route.path, {})[route.method.lower()] = build_operation(route, schemas)
        if route.name in names:  # the same handler serves a second path
            operation["operationId"] = f"{route.name}_at{re.sub(r'[^a-z0-9]+', '_', route.path.lower())}"
        names.add(route.name)
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


def mark_times(types: Iterable[Any], components: dict[str, dict[str, Any]]) -> None:
    """Give times their format. msgspec gives it only to fields that require an offset; those of responses do not."""
    pending, seen = [*inspect.multi_type_info(types)], set[type]()
    while pending:
        match pending.pop():
            case inspect.UnionType(types=options):
                pending += options
            case inspect.ListType(item_type=item):
                pending.append(item)
            case (inspect.StructType() | inspect.DataclassType()) as kind if kind.cls not in seen:
                seen.add(kind.cls)
                for field in kind.fields:
                    pending.append(field.type)
                    if may_be_time(field.type):
                        schema = components[kind.cls.__name__]["properties"][field.encode_name]
                        next(s for s in schema.get("anyOf", [schema]) if s["type"] == "string")["format"] = "date-time"
            case _:
                pass


def may_be_time(kind: inspect.Type) -> bool:
    options = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return any(isinstance(option, inspect.DateTimeType) for option in options)


def schema_types(route: Route) -> Iterable[Any]:
    if request_type := documented_request_type(route):
        yield request_type
    if has_schema(route.response_type):
        yield route.response_type
    yield from route.path_types.values()
    if route.query_type:
        yield from (field.type for field in msgspec.structs.fields(route.query_type))
    if route.error_types:
        yield ERROR_SCHEMAS[route.error_format]


def documented_request_type(route: Route) -> type[msgspec.Struct] | None:
    return route.body_type or route.form_type or route.documented_body


def build_operation(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    summary, _, description = route.description.partition("\n\n")
    operation: dict[str, Any] = {
        "operationId": route.name,
        "tags": [route.tag],
        "summary": " ".join(summary.split()),
        "responses": {},
    }
    if paragraphs := [*filter(None, (description, describe_credentials(route)))]:
        operation["description"] = "\n\n".join(paragraphs)
    if parameters := [*path_parameters(route, schemas), *query_parameters(route, schemas)]:
        operation["parameters"] = parameters
    if request_type := documented_request_type(route):
        media_type = "application/x-www-form-urlencoded" if route.form_type else "application/json"
        required = any(field.required for field in msgspec.structs.fields(request_type))
        single = schemas[request_type]
        batch = {"type": "array", "items": single, "minItems": 1, "maxItems": route.max_items}
        schema = {"oneOf": [single, batch]} if route.max_items else single
        operation["requestBody"] = {"required": required, "content": {media_type: {"schema": schema}}}
    if security := [*security_requirements(route)]:
        operation["security"] = security
    success: dict[str, Any] = {"description": HTTPStatus(route.status).phrase}
    if has_schema(route.response_type) or route.media_type.startswith("text/"):
        schema = schemas[route.response_type] if has_schema(route.response_type) else {"type": "string"}
        success["content"] = {route.media_type: {"schema": schema}}
    operation["responses"][str(route.status)] = success
    for status, description in route.other_statuses.items():
        operation["responses"][str(status)] = success | {"description": description}
    for error in route.error_types:
        operation["responses"][str(error_status(error))] = {
            "description": HTTPStatus(error_status(error)).phrase,
            "content": {route.error_format.media_type: {"schema": schemas[ERROR_SCHEMAS[route.error_format]]}},
        }
    operation["x-codeSamples"] = build_code_samples(route)
    return operation


def describe_credentials(route: Route) -> str:
    """The permission or the token that the route requires, as a sentence; empty if it requires none."""
    credentials: list[str] = []
    if route.permission:
        permissions = (route.permission, *route.other_permissions)
        credentials.append(f"the permission {' or '.join(f'`{permission}`' for permission in permissions)}")
    if route.person_auth:
        credentials.append("a person's token, cookie or ticket" if route.ticket_auth else "a person's token or cookie")
    if route.relay_auth:
        credentials.append(HANDLER_CREDENTIALS[HandlerAuth.RELAY])
    if route.handler_auth:
        credentials.append(HANDLER_CREDENTIALS[route.handler_auth])
    return f"Requires {', or '.join(credentials)}." if credentials else ""


def security_requirements(route: Route) -> Iterable[dict[str, list[str]]]:
    """The credentials that the route accepts; one of them is enough."""
    if route.permission:
        yield {"token": [route.permission]}
    for permission in route.other_permissions:
        yield {"token": [permission]}
    if route.person_auth:
        yield from ({"person": []}, {"cookie": []})
    if route.ticket_auth:
        yield {"ticket": []}
    if route.relay_auth:
        yield {"relay": []}
    if route.handler_auth:
        yield {route.handler_auth.value: []}
    if route.handler_auth is HandlerAuth.SECRET:
        yield {}  # or the credentials are in the form


def path_parameters(route: Route, schemas: dict[Any, Any]) -> Iterable[dict[str, Any]]:
    for name, kind in route.path_types.items():
        description = find_field_description(name, [path_section(route, name)])
        yield {"name": name, "in": "path", "required": True, "schema": schemas[kind]} | description


def query_parameters(route: Route, schemas: dict[Any, Any]) -> Iterable[dict[str, Any]]:
    if route.query_type is None:
        return
    sections = query_sections(route.query_type)
    for field in msgspec.structs.fields(route.query_type):
        yield {
            "name": field.encode_name,
            "in": "query",
            "required": field.required,
            "schema": schemas[field.type] | default_of_field(field),
        } | find_field_description(field.encode_name, sections)


def default_of_field(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    """The default value as a schema keyword; none for required fields and for null."""
    if field.default is msgspec.NODEFAULT or field.default is None:
        return {}
    return {"default": msgspec.to_builtins(field.default)}


def has_schema(kind: Any) -> bool:
    """Whether the type has a schema; None and a Starlette `Response` have none."""
    return kind is not None and kind is not type(None) and not (isinstance(kind, type) and issubclass(kind, Response))
