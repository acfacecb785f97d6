"""The binaries, user and settings a server runs with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pabal.db.embedded.binaries import PostgresBinaries
from pabal.db.embedded.os_user import OsUser

DEFAULT_POSTGRES_SETTINGS = {
    "max_connections": "200",  # several hub processes, each with its pool
    "timezone": "UTC",  # dates in SQL mean the same day on every machine
    "log_checkpoints": "off",  # would log every five minutes
}


@dataclass(frozen=True, slots=True)
class ServerEnvironment:
    """The binaries, the operating system user and the PostgreSQL settings."""

    binaries: PostgresBinaries
    user: OsUser
    options: Mapping[str, str]

    def command_line_arguments(self, data_dir: Path, **fixed: str) -> Iterator[str]:
        """The server's arguments. `fixed` settings override the others."""
        yield from ("-D", str(data_dir))
        for name, value in (DEFAULT_POSTGRES_SETTINGS | dict(self.options) | fixed).items():
            yield from ("-c", f"{name}={value}")
