"""The rows of the field tables in the API reference, from the schemas of the OpenAPI document."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

REF_PREFIX = "#/components/schemas/"
TYPE_NAMES = {"uuid": "UUID", "date-time": "time"}
"""Names of string formats."""


@dataclass(frozen=True, slots=True)
class FieldRow:
    """A field or a parameter. `object_name` is the schema that its type names, if any."""

    name: str
    type: str
    object_name: str
    required: bool
    description: str


def parameter_rows(operation: dict[str, Any], place: str) -> list[FieldRow]:
    """The path or query parameters of an operation."""
    return [
        field_row(parameter["name"], parameter["schema"] | parameter_text(parameter), required=parameter["required"])
        for parameter in operation.get("parameters", [])
        if parameter["in"] == place
    ]


def parameter_text(parameter: dict[str, Any]) -> dict[str, str]:
    return {"description": parameter["description"]} if "description" in parameter else {}


def schema_rows(schema: dict[str, Any]) -> list[FieldRow]:
    """The properties of an object."""
    required = schema.get("required", ())
    return [
        field_row(name, keywords, required=name in required) for name, keywords in schema.get("properties", {}).items()
    ]


def field_row(name: str, schema: dict[str, Any], *, required: bool) -> FieldRow:
    facts = " ".join((schema.get("description", ""), *(f"{fact}." for fact in value_facts(schema))))
    return FieldRow(name, type_name(schema), object_of(schema), required, facts.strip())


def type_name(schema: dict[str, Any]) -> str:
    match schema:
        case {"$ref": str(ref)}:
            return ref.removeprefix(REF_PREFIX)
        case {"anyOf": [*options]} | {"oneOf": [*options]}:
            return " or ".join(dict.fromkeys(type_name(option) for option in options))
        case {"type": "array", "items": {**items}}:
            return f"list of {type_name(items)}" if items else "list"
        case {"format": str(name)} if name in TYPE_NAMES:
            return TYPE_NAMES[name]
        case _:
            return schema.get("type", "string" if "enum" in schema else "object")


def object_of(schema: dict[str, Any]) -> str:
    """The name of the schema that a type refers to, also in a list or beside null; empty if there is none."""
    match schema:
        case {"$ref": str(ref)}:
            return ref.removeprefix(REF_PREFIX)
        case {"anyOf": [*options]} | {"oneOf": [*options]}:
            names = [object_of(cast("dict[str, Any]", option)) for option in options]
            return next(filter(None, names), "")
        case {"items": {**items}}:
            return object_of(items)
        case _:
            return ""


def value_facts(schema: dict[str, Any]) -> Iterator[str]:
    """The allowed values, the limits and the default, each as a short text."""
    options: list[dict[str, Any]] = schema.get("anyOf", [schema])
    for option in options:
        if values := option.get("enum"):
            yield f"One of {', '.join(f'`{value}`' for value in values)}"
        match option:
            case {"minimum": low, "maximum": high}:
                yield f"From {low:,} to {high:,}"
            case {"minimum": low}:
                yield f"At least {low:,}"
            case _:
                pass
        for keyword, noun in (("maxLength", "characters"), ("maxItems", "items"), ("maxProperties", "entries")):
            if limit := option.get(keyword):
                yield f"At most {limit:,} {noun}"
    default = schema.get("default")
    if default is not None and default not in ("", [], {}):
        yield f"Default: `{str(default).lower() if isinstance(default, bool) else default}`"
