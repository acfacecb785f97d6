"""`pabal settings`: what is in force."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from pabal.cli import screen
from pabal.cli.options import Json
from pabal.settings import Settings, in_words, read, variable


def settings(*, json: Json = False) -> None:
    """Show every setting in force; secrets stay hidden."""
    inforce = read()
    rows = [(variable(name), shown(getattr(inforce, name)), origin(inforce, name)) for name in Settings.model_fields]
    if json:
        screen.as_json({name: {"value": value, "from": source} for name, value, source in rows})
    else:
        screen.table(("setting", "value", "from"), [(n, "" if v is None else v, source) for n, v, source in rows])


def shown(value: Any) -> Any:
    match value:
        case SecretStr():
            return "***"
        case timedelta():
            return in_words(value)
        case Path():
            return str(value)
        case list():
            return ",".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case _:
            return value


def origin(inforce: Settings, name: str) -> str:
    return "set" if name in inforce.model_fields_set else "default"
