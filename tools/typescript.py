"""Generate the types of the TypeScript client from the OpenAPI document: part of `make docs`."""  # noqa: INP001 run as a module, not installed

import json
import re
from collections.abc import Iterator
from typing import Any, cast

JsonSchema = dict[str, Any]

HEAD = """\
// Generated from the hub's OpenAPI document by `make docs`. Do not edit.
// Names of types and fields are those of the API.
"""
SCALARS = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
JSON_MEDIA_TYPE = "application/json"


def typescript_types(document: JsonSchema) -> str:
    """An interface for every schema, and a table of all endpoints with their parameters, bodies and responses."""
    interfaces = (interface_text(name, schema) for name, schema in sorted(document["components"]["schemas"].items()))
    return "\n".join([HEAD, *interfaces, endpoints_text(document)])


def operations(document: JsonSchema) -> Iterator[tuple[str, JsonSchema]]:
    """Every operation by its method and path, such as `GET /v1/toasts`."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def json_bodies(operation: JsonSchema) -> Iterator[JsonSchema]:
    for media in operation.get("requestBody", {}).get("content", {}).values():
        yield media["schema"]


def interface_text(name: str, schema: JsonSchema) -> str:
    required = {*schema.get("required", ())}
    lines = [*comment_lines(schema.get("description")), f"export interface {name} {{"]
    for field, kind in schema.get("properties", {}).items():
        lines += comment_lines(kind.get("description"), "  ")
        lines.append(f"  {property_name(field)}{'' if field in required else '?'}: {type_text(kind)};")
    lines.append("}\n")
    return "\n".join(lines)


def comment_lines(text: str | None, indent: str = "") -> list[str]:
    if not text:
        return []
    lines = text.replace("*/", "* /").splitlines()
    if len(lines) == 1:
        return [f"{indent}/** {lines[0]} */"]
    return [f"{indent}/**", *(f"{indent} * {line}".rstrip() for line in lines), f"{indent} */"]


def property_name(name: str) -> str:
    return name if IDENTIFIER.fullmatch(name) else json.dumps(name)


def type_text(schema: JsonSchema) -> str:  # noqa: PLR0911 one for each form of a schema
    """A schema as a type. Formats, lengths and patterns have no counterpart."""
    match schema:
        case {"$ref": str(reference)}:
            return reference.rpartition("/")[2]
        case {"enum": list(values)}:
            return " | ".join(json.dumps(value) for value in cast("list[Any]", values))
        case {"anyOf": list(kinds)} | {"oneOf": list(kinds)}:
            return " | ".join(dict.fromkeys(type_text(kind) for kind in cast("list[JsonSchema]", kinds)))
        case {"type": "array"}:
            item = type_text(schema["items"]) if "items" in schema else "unknown"
            return f"({item})[]" if " | " in item else f"{item}[]"
        case {"type": "object"}:
            values_schema = schema.get("additionalProperties")
            value = type_text(cast("JsonSchema", values_schema)) if isinstance(values_schema, dict) else "unknown"
            return f"Record<string, {value}>"
        case {"type": str(kind)}:
            return SCALARS[kind]
        case _:
            return "unknown"


def endpoints_text(document: JsonSchema) -> str:
    lines = ["/** Every endpoint: its parameters, its body and its response. */", "export interface Endpoints {"]
    for name, operation in operations(document):
        lines += comment_lines(operation["summary"], "  ")
        lines.append(f"  {json.dumps(name)}: {{")
        for place in ("path", "query"):
            if parameters := [item for item in operation.get("parameters", ()) if item["in"] == place]:
                fields = "; ".join(parameter_text(item) for item in parameters)
                lines.append(f"    {place}: {{ {fields} }};")
        if bodies := [type_text(body) for body in json_bodies(operation)]:
            lines.append(f"    body: {bodies[0]};")
        lines.append(f"    response: {response_text(operation)};")
        lines.append("  };")
    lines.append("}\n")
    return "\n".join(lines)


def parameter_text(parameter: JsonSchema) -> str:
    mark = "" if parameter["required"] else "?"
    return f"{property_name(parameter['name'])}{mark}: {type_text(parameter['schema'])}"


def response_text(operation: JsonSchema) -> str:
    """The type of the first success; `void` without a body."""
    success = next(response for status, response in operation["responses"].items() if status.startswith("2"))
    content = success.get("content", {})
    if JSON_MEDIA_TYPE in content:
        return type_text(content[JSON_MEDIA_TYPE]["schema"])
    return "string" if content else "void"
