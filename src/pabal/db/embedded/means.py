"""What a server is run with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pabal.db.embedded.account import Account
from pabal.db.embedded.binaries import Binaries

SETTINGS = {
    "max_connections": "200",  # several hub processes, each with its pool
    "timezone": "UTC",  # a date in SQL means the same day on every machine
    "log_checkpoints": "off",  # a line every five minutes, for years
}


@dataclass(frozen=True, slots=True)
class Means:
    """Which programs, as whom, with which settings of PostgreSQL's."""

    binaries: Binaries
    account: Account
    options: Mapping[str, str]

    def words(self, data: Path, **fixed: str) -> Iterator[str]:
        """Spell the arguments; `fixed` are settings that nobody may choose otherwise."""
        yield from ("-D", str(data))
        for name, value in (SETTINGS | dict(self.options) | fixed).items():
            yield from ("-c", f"{name}={value}")
