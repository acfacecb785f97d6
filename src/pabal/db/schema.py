"""The schema's files, and how a database stands to them. Reads the folder; knows no connection."""

import re
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from pabal.core.errors import MigrationRefused

MIGRATIONS = Path(__file__).with_name("migrations")
OLDEST = 15

# Tables of other systems that a file makes only when they are missing, and otherwise uses as they are.
SHARED = frozenset({"auth.users", "public.profiles", "identity.users", "guild.guilds"})

_FILE = re.compile(r"(?P<version>\d{14})_(?P<name>[a-z0-9_]+)\.sql")
_COMMENT = re.compile(r"--[^\n]*")
_TABLE = re.compile(r"create\s+(?:unlogged\s+)?table\s+if\s+not\s+exists\s+([a-z0-9_.]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of the schema and the file that takes it back; without the latter there is no way back."""

    version: str
    name: str
    sql: str
    checksum: str
    down: str

    @property
    def file(self) -> str:
        return f"{self.version}_{self.name}.sql"

    def creates(self) -> tuple[str, ...]:
        """Name the tables that must not be there before this file ran."""
        found = (name.lower() for name in _TABLE.findall(_COMMENT.sub("", self.sql)))
        qualified = (name if "." in name else f"public.{name}" for name in found)
        return tuple(name for name in qualified if name not in SHARED)


@dataclass(frozen=True, slots=True)
class Applied:
    """A migration as the database remembers it."""

    version: str
    name: str
    checksum: str
    applied_at: datetime


@dataclass(frozen=True, slots=True)
class Status:
    """How a database stands to this Pabal: `changed` and `unknown` are reasons to refuse."""

    applied: tuple[Applied, ...]
    pending: tuple[Migration, ...]
    changed: tuple[Migration, ...]
    unknown: tuple[Applied, ...]


def shipped(folder: Path | None = None) -> tuple[Migration, ...]:
    """Read the migrations of this Pabal, oldest first."""
    folder = folder or MIGRATIONS
    found: list[Migration] = []
    for path in sorted(folder.glob("*.sql")):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise MigrationRefused(f"{path.name} is not named YYYYMMDDHHMMSS_description.sql")
        sql, back = path.read_text("utf-8"), folder / "down" / path.name
        found.append(
            Migration(
                version=match["version"],
                name=match["name"],
                sql=sql,
                checksum=sha256(sql.encode()).hexdigest(),
                down=back.read_text("utf-8") if back.exists() else "",
            )
        )
    versions = [migration.version for migration in found]
    if twice := {version for version in versions if versions.count(version) > 1}:
        raise MigrationRefused(f"two migrations share the version {', '.join(sorted(twice))}")
    return tuple(found)


def compare(known: tuple[Migration, ...], applied: tuple[Applied, ...]) -> Status:
    """Hold the files against what the database remembers."""
    there = {row.version: row for row in applied}
    ours = {migration.version for migration in known}
    return Status(
        applied=applied,
        pending=tuple(m for m in known if m.version not in there),
        changed=tuple(m for m in known if m.version in there and there[m.version].checksum != m.checksum),
        unknown=tuple(row for row in applied if row.version not in ours),
    )


def check_status(status: Status, known: tuple[Migration, ...]) -> None:
    """Refuse a database that somebody else's files shaped."""
    if status.unknown:
        last = max(row.version for row in status.unknown)
        named = ", ".join(f"{row.version}_{row.name}" for row in status.unknown)
        if not known or last > known[-1].version:
            raise MigrationRefused(f"the database is newer than this Pabal: it has {named}; install a newer Pabal")
        raise MigrationRefused(f"the database has a migration this Pabal does not know: {named}")
    if status.changed:
        named = ", ".join(migration.file for migration in status.changed)
        raise MigrationRefused(f"changed after it was applied: {named}; put the file back and write a new one")


def check_version(major: int) -> None:
    """Refuse a PostgreSQL that lacks what the schema uses."""
    if major < OLDEST:
        raise MigrationRefused(f"PostgreSQL {major} is too old; Pabal needs {OLDEST} or newer")


def check_target(to: str | None, known: tuple[Migration, ...]) -> None:
    """Refuse a version to stop at that no file has."""
    if to is not None and to not in {migration.version for migration in known}:
        raise MigrationRefused(f"there is no migration {to}")
