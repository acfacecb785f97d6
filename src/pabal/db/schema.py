"""The schema's files, and how a database stands to them. Reads the folder; knows no connection."""

import re
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from pabal.core.errors import MigrationError

MIGRATIONS_DIR = Path(__file__).with_name("migrations")
MIN_SERVER_MAJOR = 15

# Tables of other systems that a file makes only when they are missing, and otherwise uses as they are.
SHARED_TABLES = frozenset({"auth.users", "public.profiles", "identity.users", "guild.guilds"})

_MIGRATION_FILE_NAME = re.compile(r"(?P<version>\d{14})_(?P<name>[a-z0-9_]+)\.sql")
_SQL_COMMENT = re.compile(r"--[^\n]*")
_CREATE_TABLE = re.compile(r"create\s+(?:unlogged\s+)?table\s+if\s+not\s+exists\s+([a-z0-9_.]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of the schema and the file that takes it back; without the latter there is no way back."""

    version: str
    name: str
    sql: str
    checksum: str
    down_sql: str

    @property
    def file_name(self) -> str:
        return f"{self.version}_{self.name}.sql"

    def created_tables(self) -> tuple[str, ...]:
        """Name the tables that must not be there before this file ran."""
        found = (name.lower() for name in _CREATE_TABLE.findall(_SQL_COMMENT.sub("", self.sql)))
        qualified = (name if "." in name else f"public.{name}" for name in found)
        return tuple(name for name in qualified if name not in SHARED_TABLES)


@dataclass(frozen=True, slots=True)
class AppliedMigration:
    """A migration as the database remembers it."""

    version: str
    name: str
    checksum: str
    applied_at: datetime


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """How a database stands to this Pabal: `changed` and `unknown` are reasons to refuse."""

    applied: tuple[AppliedMigration, ...]
    pending: tuple[Migration, ...]
    changed: tuple[Migration, ...]
    unknown: tuple[AppliedMigration, ...]


def load_migrations(folder: Path | None = None) -> tuple[Migration, ...]:
    """Read the migrations of this Pabal, oldest first."""
    folder = folder or MIGRATIONS_DIR
    found: list[Migration] = []
    for path in sorted(folder.glob("*.sql")):
        match = _MIGRATION_FILE_NAME.fullmatch(path.name)
        if match is None:
            raise MigrationError(f"{path.name} is not named YYYYMMDDHHMMSS_description.sql")
        sql, back = path.read_text("utf-8"), folder / "down" / path.name
        found.append(
            Migration(
                version=match["version"],
                name=match["name"],
                sql=sql,
                checksum=sha256(sql.encode()).hexdigest(),
                down_sql=back.read_text("utf-8") if back.exists() else "",
            )
        )
    versions = [migration.version for migration in found]
    if twice := {version for version in versions if versions.count(version) > 1}:
        raise MigrationError(f"two migrations share the version {', '.join(sorted(twice))}")
    return tuple(found)


def compare_migrations(known: tuple[Migration, ...], applied: tuple[AppliedMigration, ...]) -> MigrationStatus:
    """Hold the files against what the database remembers."""
    there = {row.version: row for row in applied}
    ours = {migration.version for migration in known}
    return MigrationStatus(
        applied=applied,
        pending=tuple(m for m in known if m.version not in there),
        changed=tuple(m for m in known if m.version in there and there[m.version].checksum != m.checksum),
        unknown=tuple(row for row in applied if row.version not in ours),
    )


def check_migration_status(status: MigrationStatus, known: tuple[Migration, ...]) -> None:
    """Refuse a database that somebody else's files shaped."""
    if status.unknown:
        last = max(row.version for row in status.unknown)
        named = ", ".join(f"{row.version}_{row.name}" for row in status.unknown)
        if not known or last > known[-1].version:
            raise MigrationError(f"the database is newer than this Pabal: it has {named}; install a newer Pabal")
        raise MigrationError(f"the database has a migration this Pabal does not know: {named}")
    if status.changed:
        named = ", ".join(migration.file_name for migration in status.changed)
        raise MigrationError(f"changed after it was applied: {named}; put the file back and write a new one")


def check_server_version(major: int) -> None:
    """Refuse a PostgreSQL that lacks what the schema uses."""
    if major < MIN_SERVER_MAJOR:
        raise MigrationError(f"PostgreSQL {major} is too old; Pabal needs {MIN_SERVER_MAJOR} or newer")


def check_migration_target(to: str | None, known: tuple[Migration, ...]) -> None:
    """Refuse a version to stop at that no file has."""
    if to is not None and to not in {migration.version for migration in known}:
        raise MigrationError(f"there is no migration {to}")
