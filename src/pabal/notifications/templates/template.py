"""A template: the texts of a notification per channel and language, and the variables they need."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, assert_never

from pabal.core.errors import FieldError
from pabal.notifications.decision.decide import Criticality, NotificationCategory, NotificationChannel

TEMPLATE_LOCALES: tuple[str, ...] = ("ko", "en")
"""Every template has its texts in all of these."""


class VariableType(StrEnum):
    """The type of a variable. Only plain values: a text cannot reach into objects."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"

    def accepts(self, value: Any) -> bool:
        match self:
            case VariableType.TEXT:
                return isinstance(value, str)
            case VariableType.BOOLEAN:
                return isinstance(value, bool)
            case VariableType.NUMBER:
                return VariableType.INTEGER.accepts(value) or (isinstance(value, float) and math.isfinite(value))
            case VariableType.INTEGER:  # 1.0 is an integer in JSON
                return (isinstance(value, int) and not isinstance(value, bool)) or (
                    isinstance(value, float) and value.is_integer()
                )
            case _:
                assert_never(self)


@dataclass(frozen=True, slots=True)
class TemplateText:
    """The text for one channel in one language."""

    body: str
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of notification, as defined by a file. `checksum` is the file's."""

    key: str
    category: NotificationCategory
    criticality: Criticality
    variables: Mapping[str, VariableType]
    texts: Mapping[NotificationChannel, Mapping[str, TemplateText]]
    checksum: str

    def payload_errors(self, payload: Mapping[str, Any]) -> list[FieldError]:
        """Return the variables that the payload lacks or has with another type. Further keys are ignored."""
        return [
            FieldError(
                f"payload.{name}",
                f"must be of type {variable_type}" if name in payload else f"is required, of type {variable_type}",
            )
            for name, variable_type in sorted(self.variables.items())
            if not variable_type.accepts(payload.get(name))
        ]
