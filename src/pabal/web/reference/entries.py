"""The entries of the API reference: one per handler, with its fields, statuses and examples."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pabal.web.reference.fields import REF_PREFIX, FieldRow, object_of, parameter_rows, schema_rows, type_name
from pabal.web.route import Route


@dataclass(frozen=True, slots=True)
class ReferenceEntry:
    """One endpoint. `others` are further paths of the same handler.

    `returns` is the type of the response. Its fields are in `response`, or, if several endpoints return it, among the
    objects of the reference.
    """

    route: Route
    others: list[Route]
    summary: str
    paragraphs: list[str]
    path_fields: list[FieldRow]
    query_fields: list[FieldRow]
    body_type: str
    body_fields: list[FieldRow]
    returns: str
    returned_object: str
    response: list[FieldRow]
    statuses: list[str]
    error_object: str
    samples: dict[str, str]

    @property
    def anchor(self) -> str:
        return self.route.name.replace("_", "-")


@dataclass(frozen=True, slots=True)
class ReferenceObject:
    """A schema that several endpoints use, or that is part of another one."""

    name: str
    description: str
    fields: list[FieldRow]


@dataclass(frozen=True, slots=True)
class ApiReference:
    """The entries by tag, and the objects that they refer to."""

    groups: dict[str, list[ReferenceEntry]]
    objects: list[ReferenceObject]


def build_reference(routes: Iterable[Route], document: dict[str, Any]) -> ApiReference:
    """The reference of these routes, from their OpenAPI document."""
    table = [*routes]
    schemas: dict[str, Any] = document["components"]["schemas"]
    by_handler: dict[str, list[Route]] = {}
    for route in table:
        by_handler.setdefault(route.name, []).append(route)
    handlers = [sorted(twins, key=lambda route: not route.path.startswith("/v1/")) for twins in by_handler.values()]
    operations = {twins[0].name: find_operation(document, twins[0]) for twins in handlers}
    returned = Counter(object_of(success_schema(operation)) for operation in operations.values())
    groups: dict[str, list[ReferenceEntry]] = {}
    for route, *others in handlers:
        entry = build_entry(route, others, operations[route.name], schemas, returned)
        groups.setdefault(route.tag, []).append(entry)
    return ApiReference(groups, [*build_objects(groups, schemas)])


def find_operation(document: dict[str, Any], route: Route) -> dict[str, Any]:
    return document["paths"][route.path][route.method.lower()]


def build_entry(
    route: Route, others: list[Route], operation: dict[str, Any], schemas: dict[str, Any], returned: Counter[str]
) -> ReferenceEntry:
    success = success_schema(operation)
    [body] = [*operation.get("requestBody", {}).get("content", {}).values()] or [{}]
    body_schema = body.get("schema", {})
    is_inline = success.get("$ref", "").startswith(REF_PREFIX) and returned[object_of(success)] == 1
    return ReferenceEntry(
        route=route,
        others=others,
        summary=operation["summary"],
        paragraphs=[" ".join(text.split()) for text in operation.get("description", "").split("\n\n") if text],
        path_fields=parameter_rows(operation, "path"),
        query_fields=parameter_rows(operation, "query"),
        body_type=next(iter(operation.get("requestBody", {}).get("content", {})), ""),
        body_fields=schema_rows(schemas.get(object_of(body_schema), {})),
        returns=type_name(success) if success else "",
        returned_object="" if is_inline else object_of(success),
        response=schema_rows(schemas[object_of(success)]) if is_inline else [],
        statuses=order_statuses(route, operation["responses"]),
        error_object=find_error_object(route, operation),
        samples={sample["label"]: sample["source"] for sample in operation["x-codeSamples"]},
    )


def success_schema(operation: dict[str, Any]) -> dict[str, Any]:
    """The schema of the first response; empty without a body."""
    content: dict[str, Any] = next(iter(operation["responses"].values())).get("content", {})
    [schema] = [media["schema"] for media in content.values()] or [dict[str, Any]()]
    return schema


def order_statuses(route: Route, statuses: Iterable[str]) -> list[str]:
    """The statuses of success as the route lists them, then the errors by number."""
    own = [str(status) for status in (route.status, *route.other_statuses)]
    return [*own, *sorted(status for status in statuses if status not in own)]


def find_error_object(route: Route, operation: dict[str, Any]) -> str:
    """The schema of errors; empty if the endpoint has none."""
    contents = [response.get("content", {}) for response in operation["responses"].values()]
    own = {str(status) for status in (route.status, *route.other_statuses)}
    errors = [content for status, content in zip(operation["responses"], contents, strict=True) if status not in own]
    return next((object_of(media["schema"]) for content in errors for media in content.values()), "")


def build_objects(groups: dict[str, list[ReferenceEntry]], schemas: dict[str, Any]) -> Iterable[ReferenceObject]:
    """The objects that entries or other objects refer to, by name."""
    entries = [entry for group in groups.values() for entry in group]
    waiting = {entry.returned_object for entry in entries} | {entry.error_object for entry in entries}
    for entry in entries:
        waiting |= {row.object_name for row in (*entry.query_fields, *entry.body_fields, *entry.response)}
    known: set[str] = set()
    while waiting := waiting - known - {""}:
        known |= waiting
        waiting = {row.object_name for name in waiting for row in schema_rows(schemas[name])}
    for name in sorted(known):
        yield ReferenceObject(name, " ".join(schemas[name].get("description", "").split()), schema_rows(schemas[name]))
