"""What a server is run with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pabal.db.embedded.binaries import PostgresBinaries
from pabal.db.embedded.os_user import OsUser

DEFAULT_POSTGRES_SETTINGS = {
    "max_connections": "200",  # several hub processes, each with its pool
    "timezone": "UTC",  # a date in SQL means the same day on every machine
    "log_checkpoints": "off",  # a line every five minutes, for years
}


@dataclass(frozen=True, slots=True)
class ServerEnvironment:
    """Which programs, as whom, with which settings of PostgreSQL's."""

    binaries: PostgresBinaries
    user: OsUser
    options: Mapping[str, str]

    def command_line_arguments(self, data_dir: Path, **fixed: str) -> Iterator[str]:
        """Spell the arguments; `fixed` are settings that nobody may choose otherwise."""
        yield from ("-D", str(data_dir))
        for name, value in (DEFAULT_POSTGRES_SETTINGS | dict(self.options) | fixed).items():
            yield from ("-c", f"{name}={value}")
