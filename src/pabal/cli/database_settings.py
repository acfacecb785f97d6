"""The settings a command needs to reach its database, read without pydantic-settings where possible.

Importing pydantic-settings and building the settings model takes 0.1 s of CPU, as much as everything else that
`pabal event list` does. A plain environment is read directly. A `.env` file, a value that needs parsing or a value that
looks wrong goes through `load_settings`, which also reports the errors.
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pabal.cli.options import Connection
from pabal.core.data_dir import default_data_dir
from pabal.core.database_url import parse_database_url
from pabal.core.log_options import LogFormat, LogLevel

if TYPE_CHECKING:
    from pabal.settings import Settings

ENV_FILE = Path(".env")
PARSED_NAMES = frozenset(
    {
        "PABAL_DATABASE_POOLER",
        "PABAL_DATABASE_PREPARED",
        "PABAL_CONNECT_TIMEOUT",
        "PABAL_STATEMENT_TIMEOUT",
        "PABAL_PG_BIN",
    }
)


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """The settings that concern the database and the log. The defaults are those of `Settings`."""

    data_dir: Path
    database_url: str | None = None
    database_direct_url: str | None = None
    database_pooler: bool | None = None
    database_prepared: bool = False
    connect_timeout: timedelta = timedelta(seconds=5)
    statement_timeout: timedelta = timedelta(seconds=30)
    pg_bin: Path | None = None
    pg_user: str | None = None
    log_level: LogLevel = "info"
    log_format: LogFormat = "auto"


def load_database_settings(connection: Connection) -> DatabaseSettings:
    """Read the settings of the environment; command-line options win."""
    variables = read_pabal_variables()
    if (
        not ENV_FILE.exists()
        and not PARSED_NAMES & variables.keys()
        and (direct := read_directly(variables, connection))
    ):
        return direct
    from pabal.settings import load_settings

    return database_settings(load_settings(data_dir=connection.data_dir, database_url=connection.database_url))


def database_settings(settings: "Settings") -> DatabaseSettings:
    url, direct = settings.database_url, settings.database_direct_url
    return DatabaseSettings(
        data_dir=settings.data_dir,
        database_url=url.get_secret_value() if url else None,
        database_direct_url=direct.get_secret_value() if direct else None,
        database_pooler=settings.database_pooler,
        database_prepared=settings.database_prepared,
        connect_timeout=settings.connect_timeout,
        statement_timeout=settings.statement_timeout,
        pg_bin=settings.pg_bin,
        pg_user=settings.pg_user,
        log_level=settings.log_level,
        log_format=settings.log_format,
    )


def read_pabal_variables() -> dict[str, str]:
    """The PABAL_* variables that are set. As in the settings, case does not matter and empty means unset."""
    return {name.upper(): value for name, value in os.environ.items() if value and name.upper().startswith("PABAL_")}


def read_directly(variables: dict[str, str], connection: Connection) -> DatabaseSettings | None:
    """Read values that need no parsing, or return None if one of them needs a closer look."""
    url = connection.database_url or variables.get("PABAL_DATABASE_URL")
    direct = variables.get("PABAL_DATABASE_DIRECT_URL")
    level, log_format = variables.get("PABAL_LOG_LEVEL", "info"), variables.get("PABAL_LOG_FORMAT", "auto")
    if (
        not all(is_postgres_url(value) for value in (url, direct) if value)
        or (direct and not url)
        or level not in LogLevel.__args__
        or log_format not in LogFormat.__args__
    ):
        return None
    data_dir = connection.data_dir or Path(variables.get("PABAL_DATA_DIR") or default_data_dir())
    return DatabaseSettings(
        data_dir=data_dir.expanduser(),
        database_url=url,
        database_direct_url=direct,
        pg_user=variables.get("PABAL_PG_USER"),
        log_level=cast("LogLevel", level),
        log_format=cast("LogFormat", log_format),
    )


def is_postgres_url(url: str) -> bool:
    try:
        parse_database_url(url)
    except ValueError:
        return False
    return True
