"""A template: what a notice says, in each language and for each channel, and what it needs to be told for that."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, assert_never

from pabal.core.errors import FieldError
from pabal.notifications.plan import Criticality, NotificationCategory, NotificationChannel

TEMPLATE_LOCALES: tuple[str, ...] = ("ko", "en")
"""Every text is there in each of these."""


class VariableType(StrEnum):
    """What a variable may be: plain values, so that a text has nothing to reach into."""

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
            case VariableType.INTEGER:  # in JSON 1.0 is one as well
                return (isinstance(value, int) and not isinstance(value, bool)) or (
                    isinstance(value, float) and value.is_integer()
                )
            case _:
                assert_never(self)


@dataclass(frozen=True, slots=True)
class TemplateText:
    """What is said in one language through one channel."""

    body: str
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of notice, as a file defines it. `checksum` is the file's: equal means unchanged."""

    key: str
    category: NotificationCategory
    criticality: Criticality
    variables: Mapping[str, VariableType]
    texts: Mapping[NotificationChannel, Mapping[str, TemplateText]]
    checksum: str

    def payload_errors(self, payload: Mapping[str, Any]) -> list[FieldError]:
        """Which variables a payload lacks, or brings as something else. What it brings besides is passed over."""
        return [
            FieldError(
                f"payload.{name}",
                f"is not of the kind {kind}" if name in payload else f"is missing: {self.key} needs it, {kind}",
            )
            for name, kind in sorted(self.variables.items())
            if not kind.accepts(payload.get(name))
        ]
