"""The migration files, and the comparison of a database with them. Uses no connection."""

import re
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from pabal.core.errors import MigrationError

MIGRATIONS_DIR = Path(__file__).with_name("migrations")
MIN_SERVER_MAJOR = 15

# Tables of other systems: a migration creates them only if they are missing.
SHARED_TABLES = frozenset({"auth.users", "public.profiles", "identity.users", "guild.guilds"})

_MIGRATION_FILE_NAME = re.compile(r"(?P<version>\d{14})_(?P<name>[a-z0-9_]+)\.sql")
_SQL_COMMENT = re.compile(r"--[^\n]*")
_CREATE_TABLE = re.compile(r"create\s+(?:unlogged\s+)?table\s+if\s+not\s+exists\s+([a-z0-9_.]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration file, and the file that reverts it, if there is one."""

    version: str
    name: str
    sql: str
    checksum: str
    down_sql: str

    @property
    def file_name(self) -> str:
        return f"{self.version}_{self.name}.sql"

    def created_tables(self) -> tuple[str, ...]:
        """The tables that must not exist before this file is applied."""
        names = (name.lower() for name in _CREATE_TABLE.findall(_SQL_COMMENT.sub("", self.sql)))
        qualified = (name if "." in name else f"public.{name}" for name in names)
        return tuple(name for name in qualified if name not in SHARED_TABLES)


@dataclass(frozen=True, slots=True)
class AppliedMigration:
    """A migration as the database recorded it."""

    version: str
    name: str
    checksum: str
    applied_at: datetime


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """A database compared with the migration files. `changed` and `unknown` are errors."""

    applied: tuple[AppliedMigration, ...]
    pending: tuple[Migration, ...]
    changed: tuple[Migration, ...]
    unknown: tuple[AppliedMigration, ...]


def load_migrations(folder: Path | None = None) -> tuple[Migration, ...]:
    """Read the migration files, oldest first."""
    folder = folder or MIGRATIONS_DIR
    migrations: list[Migration] = []
    for path in sorted(folder.glob("*.sql")):
        match = _MIGRATION_FILE_NAME.fullmatch(path.name)
        if match is None:
            raise MigrationError(f"{path.name} is not named YYYYMMDDHHMMSS_description.sql")
        sql, down_file = path.read_text("utf-8"), folder / "down" / path.name
        migrations.append(
            Migration(
                version=match["version"],
                name=match["name"],
                sql=sql,
                checksum=sha256(sql.encode()).hexdigest(),
                down_sql=down_file.read_text("utf-8") if down_file.exists() else "",
            )
        )
    versions = [migration.version for migration in migrations]
    if duplicates := {version for version in versions if versions.count(version) > 1}:
        raise MigrationError(f"two migrations share the version {', '.join(sorted(duplicates))}")
    return tuple(migrations)


def compare_migrations(known: tuple[Migration, ...], applied: tuple[AppliedMigration, ...]) -> MigrationStatus:
    """Compare the migration files with the applied migrations."""
    checksums = {row.version: row.checksum for row in applied}
    known_versions = {migration.version for migration in known}
    return MigrationStatus(
        applied=applied,
        pending=tuple(m for m in known if m.version not in checksums),
        changed=tuple(m for m in known if checksums.get(m.version, m.checksum) != m.checksum),
        unknown=tuple(row for row in applied if row.version not in known_versions),
    )


def check_migration_status(status: MigrationStatus, known: tuple[Migration, ...]) -> None:
    """Raise MigrationError if the database does not match the migration files."""
    if status.unknown:
        newest = max(row.version for row in status.unknown)
        names = ", ".join(f"{row.version}_{row.name}" for row in status.unknown)
        if not known or newest > known[-1].version:
            raise MigrationError(f"the database is newer than this Pabal: it has {names}; install a newer Pabal")
        raise MigrationError(f"the database has unknown migrations: {names}")
    if status.changed:
        names = ", ".join(migration.file_name for migration in status.changed)
        raise MigrationError(
            f"migration files changed after they were applied: {names}; restore them and add a new migration instead"
        )


def check_server_version(major: int) -> None:
    """Raise MigrationError if the server is older than the schema requires."""
    if major < MIN_SERVER_MAJOR:
        raise MigrationError(f"PostgreSQL {major} is too old; Pabal requires {MIN_SERVER_MAJOR} or newer")


def check_migration_target(to: str | None, known: tuple[Migration, ...]) -> None:
    """Raise MigrationError if `to` is not the version of a migration file."""
    if to is not None and to not in {migration.version for migration in known}:
        raise MigrationError(f"no such migration: {to}")
