"""What msgspec complains of, by the field it is about."""

import msgspec

from pabal.core.errors import Invalid


def named(error: msgspec.ValidationError, where: str) -> Invalid:
    """Read msgspec's message into a field and a reason: "Expected `int`, got `str` - at `$.payload[0].x`"."""
    why, _, path = str(error).partition(" - at ")
    field = path.strip("`").removeprefix("$").lstrip(".")
    for opening in ("Object missing required field `", "Object contains unknown field `"):
        if why.startswith(opening):
            name = why.removeprefix(opening).rstrip("`")
            field = f"{field}.{name}" if field else name
            why = "is missing" if "missing" in opening else "is not known here"
    why = why.replace("Expected `str` matching regex ", "does not match ")
    return Invalid.one(field or where, why[:1].lower() + why[1:])
