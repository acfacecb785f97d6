"""Options several commands share."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

Host = Annotated[str | None, Parameter(help="Address to listen on. [PABAL_HOST]")]
Port = Annotated[int | None, Parameter(help="Port to listen on. [PABAL_PORT]")]
DataDir = Annotated[Path | None, Parameter(help="Folder of the embedded database and the keys. [PABAL_DATA_DIR]")]
DatabaseUrl = Annotated[str | None, Parameter(help="An external PostgreSQL. [PABAL_DATABASE_URL]")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON document.")]
