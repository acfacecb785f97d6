"""Options several commands share."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from pabal.settings import parse_duration

HandlersApp = Annotated[
    str | None, Parameter(help="Handlers to run: module:name of a pabal.client.Hub, found from here.")
]
ProgramName = Annotated[
    str | None, Parameter(help="What the program is called among those of its service. Default: as --app says.")
]
Host = Annotated[str | None, Parameter(help="Address to listen on. [PABAL_HOST]")]
Port = Annotated[int | None, Parameter(help="Port to listen on. [PABAL_PORT]")]
DataDir = Annotated[Path | None, Parameter(help="Folder of the embedded database and the keys. [PABAL_DATA_DIR]")]
DatabaseUrl = Annotated[str | None, Parameter(help="An external PostgreSQL. [PABAL_DATABASE_URL]")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON document.")]
JsonLines = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON document a line.")]
Limit = Annotated[int, Parameter(help="How many.", validator=Number(gte=1, lte=1000))]
Cursor = Annotated[str | None, Parameter(help="Where the page before ended.")]


def parse_duration_option(_kind: Any, tokens: Sequence[Token]) -> timedelta:
    """Read a duration as the settings do: `Parameter(converter=span)`."""
    return parse_duration(tokens[0].value)
