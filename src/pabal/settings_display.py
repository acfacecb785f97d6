"""Format settings for display."""

from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from pydantic import SecretStr

from pabal.core.duration import format_duration
from pabal.settings import Settings


def display_setting(value: Any) -> Any:
    """Format a value for display. Secrets are redacted."""
    match value:
        case SecretStr():
            return "***"
        case timedelta():
            return format_duration(value)
        case Path():
            return str(value)
        case list():
            return ",".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case _:
            return value


def setting_source(settings: Settings, name: str) -> Literal["set", "default"]:
    """Whether the setting was set, in the environment, in a file or on the command line."""
    return "set" if name in settings.model_fields_set else "default"
