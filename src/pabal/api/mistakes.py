"""What msgspec complains of, by the field it is about."""

import enum
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import msgspec

from pabal.core.errors import Invalid

PATTERN_MESSAGE = "Expected `str` matching regex "


def invalid_from_msgspec(error: msgspec.ValidationError, default_field: str, expected_type: Any = None) -> Invalid:
    """Read msgspec's message into a field and a reason: "Expected `int`, got `str` - at `$.payload[0].x`".

    With the `kind` that was to be read, a word that is none of a few is told which there are.
    """
    why, _, path = str(error).partition(" - at ")
    field = path.strip("`").removeprefix("$").lstrip(".")
    for opening in ("Object missing required field `", "Object contains unknown field `"):
        if why.startswith(opening):
            name = why.removeprefix(opening).rstrip("`")
            field = f"{field}.{name}" if field else name
            why = "is missing" if "missing" in opening else "is not known here"
    if why.startswith(PATTERN_MESSAGE):
        why = f"does not match {why.removeprefix(PATTERN_MESSAGE)}".replace("\\\\", "\\")  # as Python would write it
    if why.startswith("Invalid enum value") and (known := [*allowed_values(type_of_field(expected_type, field))]):
        why = f"is not one of {', '.join(known)}"
    return Invalid.of_field(field or default_field, why[:1].lower() + why[1:])


def type_of_field(kind: Any, field: str) -> Any:
    """What a field of this struct may be; without a field, what it is itself."""
    if not field:
        return kind
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return None
    kinds = {each.encode_name: each.type for each in msgspec.structs.fields(kind)}
    return kinds.get(field.partition("[")[0])


def allowed_values(kind: Any) -> Iterator[str]:
    """The words among which one may choose, if there are only a few."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        yield from (str(each.value) for each in kind)
    elif get_origin(kind) is Literal:
        yield from map(str, get_args(kind))
    else:
        for each in get_args(kind):
            yield from allowed_values(each)
