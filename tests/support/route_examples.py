"""Valid values for every parameter of the route table, so that one of them can be replaced by a hostile one."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import msgspec
from msgspec import inspect

from pabal.web.route import Route

EXAMPLE_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
EXAMPLES: dict[str, Any] = {
    "event_type": "order.paid",
    "event_types": ["order.paid"],
    "event_pattern": "order.*",
    "may_publish": ["order.paid"],
    "may_subscribe": ["order.paid"],
    "permissions": ["read"],
    "events": [{"event_type": "order.paid"}],
    "payload": {},
    "metadata": {},
    "source_service": "shop",
    "service_name": "shop",
    "target_service": "shop",
    "service": "shop",
    "template_key": "payment.succeeded",
    "recipient_type": "user_dm",
    "recipient_id": "80351110224678912",
    "recipients": ["user.id"],
    "channels": ["user_dm"],
    "variables": {"title": "order.title"},
    "guild_path": "guild.id",
    "incident_path": "incident.id",
    "receipts": ["x"],
    "messageIds": [EXAMPLE_ID],
    "messageId": EXAMPLE_ID,
    "conversationKey": "bot:mina-plusfriend-1",
    "response": {"version": "2.0", "template": {"outputs": [{"simpleText": {"text": "hi"}}]}},
    "url": "https://receiver.test/hook",
    "locale": "ko",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "grant_type": "client_credentials",
    "user_id": "80351110224678912",
    "id": EXAMPLE_ID,
}


def example_value(name: str) -> Any:
    return EXAMPLES.get(name, "example")


def example_struct(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """A valid value for every required field."""
    fields = msgspec.structs.fields(kind)
    return {field.encode_name: example_value(field.encode_name) for field in fields if field.required}


def example_path(route: Route, **values: str) -> str:
    examples = {name: EXAMPLE_ID if kind is UUID else example_value(name) for name, kind in route.path_types.items()}
    return route.path.format(**(examples | values))


def text_fields(kind: type[msgspec.Struct]) -> Iterator[tuple[str, int | None]]:
    """The fields that hold text, also inside lists and objects, with their longest length."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        for text in walk_types(field.type):
            if isinstance(text, inspect.StrType):
                yield field.encode_name, text.max_length


def walk_types(kind: inspect.Type) -> Iterator[inspect.Type]:
    """The type and every type inside it."""
    yield kind
    match kind:
        case inspect.UnionType():
            parts: tuple[inspect.Type, ...] = kind.types
        case inspect.ListType() | inspect.SetType() | inspect.FrozenSetType() | inspect.VarTupleType():
            parts = (kind.item_type,)
        case inspect.TupleType():
            parts = kind.item_types
        case inspect.DictType():
            parts = (kind.key_type, kind.value_type)
        case inspect.Metadata():
            parts = (kind.type,)
        case inspect.StructType():
            parts = tuple(field.type for field in kind.fields)
        case _:
            parts = ()
    for part in parts:
        yield from walk_types(part)


def replace_text(example: Any, text: str) -> Any:
    """Put the text where the example has its first text: in a list, as the value of an object, or alone.

    The values of an empty object have any type, so the text becomes a key.
    """
    match example:
        case [*_]:
            return [text]
        case {**entries}:
            return {next(iter(entries)): text} if entries else {text: 1}
        case _:
            return text
