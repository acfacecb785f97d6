"""Descriptions of fields and parameters for the API reference, from the TOML files in `descriptions/`.

A section names one or more types, separated by commas, or a path up to its parameter. The section `shared` applies to
fields that no other section describes.
"""

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from pabal.web.route import Route

SHARED_SECTION = "shared"
FieldDescriptions = dict[str, dict[str, str]]
"""The descriptions of fields by section."""


@cache
def load_field_descriptions() -> FieldDescriptions:
    sections: FieldDescriptions = {}
    for file in resources.files("pabal.web.reference").joinpath("descriptions").iterdir():
        if file.name.endswith(".toml"):
            for names, texts in tomllib.loads(file.read_text(encoding="utf-8")).items():
                for name in names.split(", "):
                    sections.setdefault(name, {}).update(texts)
    return sections


def find_field_description(field: str, sections: Iterable[str]) -> dict[str, str]:
    """The description of the first section that has one, as a keyword of OpenAPI; empty if there is none."""
    texts = load_field_descriptions()
    for section in (*sections, SHARED_SECTION):
        if text := texts.get(section, {}).get(field):
            return {"description": text}
    return {}


def describe_schemas(schemas: dict[str, Any]) -> None:
    """Add a description to every property that has none of its own."""
    for name, schema in schemas.items():
        for field, keywords in schema.get("properties", {}).items():
            if "description" not in keywords:
                keywords.update(find_field_description(field, [name]))


def query_sections(query_type: type[msgspec.Struct]) -> list[str]:
    """The sections that may describe a query parameter: the type's and its base classes'."""
    return [kind.__name__ for kind in query_type.__mro__]


def path_section(route: Route, name: str) -> str:
    """The path up to this parameter, such as `/v1/toasts/{id}`."""
    parameter = f"{{{name}}}"
    return route.path.partition(parameter)[0] + parameter
