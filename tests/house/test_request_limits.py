"""Every text, list and object from outside has a limit at the edge, before other code looks at it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec import inspect

from pabal.api import routes
from security.request_surface import FORM_NAMES, QUERY_NAMES, READ_HEADERS
from support.route_examples import walk_types

SRC = Path(__file__).parents[2] / "src" / "pabal"
MAX_PATTERN_WIDTH = 10_000
BOUNDED_BY_SIZE = {
    "EventNackBody.error": "the body, and clean_error_text cuts it: a long error must not fail a nack",
    "EventNackBody.error_stack": "the same",
    "EventBody.payload": "MAX_EVENT_PAYLOAD_BYTES, and decode_untyped_json",
    "EventBatchBody.events": "each item is decoded as an EventBody",
    "NotificationBody.payload": "MAX_RAW_PAYLOAD_BYTES, and decode_untyped_json",
    "PairingCodeBody.metadata": "MAX_METADATA_BYTES, and check_json_depth",
    "RelayReplyBody.response": "MAX_REPLY_BYTES, and decode_untyped_json",
}
"""Values of any shape, with what limits them."""
SCALARS = (
    inspect.BoolType,
    inspect.DateTimeType,
    inspect.EnumType,
    inspect.FloatType,
    inspect.IntType,
    inspect.LiteralType,
    inspect.NoneType,
    inspect.UUIDType,
)
CONTAINERS = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType, inspect.DictType)
NESTED = (inspect.UnionType, inspect.Metadata, inspect.StructType, inspect.TupleType)


def request_types() -> Iterator[tuple[str, inspect.Type]]:
    """Every field and parameter of the route table, with its type."""
    for route in routes.ROUTES:
        for name, kind in route.path_types.items():
            yield f"{route.method} {route.path}: {name}", inspect.type_info(kind)
        for struct in (route.body_type, route.query_type, route.form_type):
            if struct is not None:
                for field in inspect.type_info(struct).fields:  # pyright: ignore[reportAttributeAccessIssue]
                    yield f"{struct.__name__}.{field.name}", field.type


def is_bounded(kind: inspect.Type) -> bool:
    """Whether the type itself limits its size; the types inside it are checked apart."""
    match kind:
        case inspect.StrType(max_length=None, pattern=str(pattern)):
            return pattern.startswith("^") and re._parser.parse(pattern).getwidth()[1] < MAX_PATTERN_WIDTH  # pyright: ignore  # noqa: PGH003
        case inspect.StrType():
            return kind.max_length is not None
        case _ if isinstance(kind, CONTAINERS):
            return kind.max_length is not None
        case _:
            return isinstance(kind, (*SCALARS, *NESTED))


def test_every_text_list_and_object_of_the_route_table_is_bounded() -> None:
    fields = {*dict(request_types())}
    unbounded = {name for name, kind in request_types() if not all(map(is_bounded, walk_types(kind)))}

    assert len(fields) > 80
    assert unbounded == {*BOUNDED_BY_SIZE}


class Parcel(msgspec.Struct):
    """Fields without a limit."""

    label: str
    items: list[int]
    notes: dict[str, int]
    anything: object = None
    code: str | None = None


@pytest.mark.parametrize("field", ["label", "items", "notes", "code"])
def test_a_field_without_a_limit_is_found(field: str) -> None:
    [kind] = [info.type for info in inspect.type_info(Parcel).fields if info.name == field]  # pyright: ignore[reportAttributeAccessIssue]

    assert not all(map(is_bounded, walk_types(kind)))


def test_every_route_with_a_body_limits_its_size() -> None:
    unlimited = {route.name for route in routes.ROUTES if route.max_body_bytes is None}

    assert unlimited == {
        "post_event_batch",
        "post_event_nack",
        "post_notification",
    }  # as large as the setting `body_limit` allows


READERS = {
    "query_params": {"web/request.py"},
    "parse_qsl": {"web/request.py", "web/endpoint.py", "console/pages.py"},
    "form": set[str](),
    "stream": {"web/endpoint.py"},
}
"""How Starlette and the standard library read a request, and the modules that may: they check the size first."""


@pytest.mark.parametrize("name", READERS)
def test_requests_are_read_only_where_their_size_is_checked(name: str) -> None:
    readers = {
        path
        for path, tree in web_trees()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr == name and ast.unparse(node.value).endswith("request"))
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name)
    }

    assert readers <= READERS[name]


def web_trees() -> Iterator[tuple[str, ast.AST]]:
    for folder in ("web", "api", "console", "relay/webhook"):
        for path in sorted((SRC / folder).rglob("*.py")):
            yield str(path.relative_to(SRC)), ast.parse(path.read_text())


def call_texts(function: str, first: int = 0) -> set[str]:
    """The literal texts that calls of a function or method pass, from the argument `first` on."""
    return {
        argument.value
        for _, tree in web_trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(function)
        for argument in node.args[first:]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def test_hostile_values_reach_every_header_that_is_read() -> None:
    names = {name for name in call_texts("headers.get") if name and name not in {"null", "Allow"}}

    assert len(names) > 8
    assert names <= READ_HEADERS


def test_hostile_values_reach_every_query_parameter_of_a_page() -> None:
    names = call_texts("read_query", 1) | call_texts("read_filters", 1)

    assert len(names) > 15
    assert names <= QUERY_NAMES


def test_hostile_values_reach_every_field_of_a_form() -> None:
    names = {name for name in call_texts("fields.get") | call_texts("fields.getlist") if name}

    assert len(names) > 20
    assert names <= FORM_NAMES
