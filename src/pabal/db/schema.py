"""The migration files, and how the migrations of a database compare to them. Needs no connection."""

import re
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from hashlib import sha256
from pathlib import Path

from pabal.core.errors import MigrationError

MIGRATIONS_DIR = Path(__file__).with_name("migrations")
MIN_SERVER_MAJOR = 15

# Tables of other systems, which a migration creates only if they are missing.
SHARED_TABLES = frozenset({"auth.users", "public.profiles", "identity.users", "guild.guilds"})

_MIGRATION_FILE_NAME = re.compile(r"(?P<version>\d{14})_(?P<name>[a-z0-9_]+)\.sql")
_SQL_COMMENT = re.compile(r"--[^\n]*")
_CREATE_TABLE = re.compile(r"create\s+(?:unlogged\s+)?table\s+if\s+not\s+exists\s+([a-z0-9_.]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration file with its rollback; `down_sql` is empty if there is none."""

    version: str
    name: str
    sql: str
    checksum: str
    down_sql: str

    @property
    def file_name(self) -> str:
        return f"{self.version}_{self.name}.sql"

    def created_tables(self) -> tuple[str, ...]:
        """The tables that must not exist before the migration runs."""
        names = (name.lower() for name in _CREATE_TABLE.findall(_SQL_COMMENT.sub("", self.sql)))
        qualified = (name if "." in name else f"public.{name}" for name in names)
        return tuple(name for name in qualified if name not in SHARED_TABLES)


@dataclass(frozen=True, slots=True)
class AppliedMigration:
    """A row of pabal.schema_migrations."""

    version: str
    name: str
    checksum: str
    applied_at: datetime

    @property
    def file_name(self) -> str:
        return f"{self.version}_{self.name}.sql"


@dataclass(frozen=True, slots=True)
class SquashBridge:
    """Moves a database from the migrations of a development version to the present ones.

    It applies only to a database with exactly the files of `checksums`. `sql` renames objects; then the present
    migrations run: they create tables and indexes only if these are missing, and replace functions, triggers, policies
    and comments.
    """

    checksums: dict[str, str]
    """File name to SHA-256 of every migration the database must have."""
    sql: str

    def differences(self, applied: tuple[AppliedMigration, ...]) -> list[str]:
        """What keeps a database with these migrations from being moved."""
        checksums = {row.file_name: row.checksum for row in applied}
        return [
            *(f"{file} is missing" for file in self.checksums if file not in checksums),
            *(
                f"{file} has another checksum"
                for file, checksum in self.checksums.items()
                if checksums.get(file, checksum) != checksum
            ),
            *(f"{file} is unknown" for file in checksums if file not in self.checksums),
        ]

    def shares_migrations(self, applied: tuple[AppliedMigration, ...]) -> bool:
        return any(self.checksums.get(row.file_name) == row.checksum for row in applied)


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """How a database compares to the migration files.

    A database with `changed` or `unknown` migrations or with `bridge_differences` is refused. With `needs_bridge`, all
    present migrations are pending and `applied` are those of the development version.
    """

    applied: tuple[AppliedMigration, ...]
    pending: tuple[Migration, ...]
    changed: tuple[Migration, ...]
    unknown: tuple[AppliedMigration, ...]
    needs_bridge: bool = False
    bridge_differences: tuple[str, ...] = ()


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
        raise MigrationError(f"two migrations have the version {', '.join(sorted(duplicates))}")
    return tuple(migrations)


@cache
def newest_shipped_version() -> str:
    """The version of the newest migration file, as it was when this process first asked: an upgrade replaces files."""
    return max(path.name[:14] for path in MIGRATIONS_DIR.glob("*.sql"))


def load_bridge(folder: Path | None = None) -> SquashBridge | None:
    """Read the bridge of a migrations folder, if it has one."""
    bridge_dir = (folder or MIGRATIONS_DIR) / "bridge"
    if not bridge_dir.is_dir():
        return None
    lines = (bridge_dir / "applied.sha256").read_text("utf-8").splitlines()
    return SquashBridge(
        checksums={file: checksum for checksum, file in (line.split() for line in lines)},
        sql=(bridge_dir / "rename.sql").read_text("utf-8"),
    )


def compare_migrations(
    known: tuple[Migration, ...], applied: tuple[AppliedMigration, ...], bridge: SquashBridge | None = None
) -> MigrationStatus:
    """Compare the files with the migrations of a database."""
    applied_by_version = {row.version: row for row in applied}
    known_versions = {migration.version for migration in known}
    changed = tuple(
        migration
        for migration in known
        if migration.version in applied_by_version
        and applied_by_version[migration.version].checksum != migration.checksum
    )
    unknown = tuple(row for row in applied if row.version not in known_versions)
    differences: tuple[str, ...] = ()
    if bridge is not None and (changed or unknown) and bridge.shares_migrations(applied):
        differences = tuple(bridge.differences(applied))
        if not differences:
            return MigrationStatus(applied, pending=known, changed=(), unknown=(), needs_bridge=True)
    return MigrationStatus(
        applied=applied,
        pending=tuple(migration for migration in known if migration.version not in applied_by_version),
        changed=changed,
        unknown=unknown,
        bridge_differences=differences,
    )


def check_migration_status(status: MigrationStatus, known: tuple[Migration, ...]) -> None:
    """Refuse a database whose migrations are not those of this version."""
    if status.bridge_differences:
        raise MigrationError(
            "the database was migrated by a development version of Pabal and cannot be moved to this one: "
            + "; ".join(status.bridge_differences)
        )
    if status.unknown:
        newest = max(row.version for row in status.unknown)
        names = ", ".join(f"{row.version}_{row.name}" for row in status.unknown)
        if not known or newest > known[-1].version:
            raise MigrationError(f"the database is newer than this Pabal: it has {names}; install a newer Pabal")
        raise MigrationError(f"the database has a migration this Pabal does not know: {names}")
    if status.changed:
        names = ", ".join(migration.file_name for migration in status.changed)
        raise MigrationError(f"changed after it was applied: {names}; restore the file and add a new migration")


def check_server_version(major: int) -> None:
    """Refuse a PostgreSQL that is too old for the schema."""
    if major < MIN_SERVER_MAJOR:
        raise MigrationError(f"PostgreSQL {major} is too old; Pabal needs {MIN_SERVER_MAJOR} or newer")


def check_migration_target(to: str | None, known: tuple[Migration, ...]) -> None:
    """Refuse a target version that no migration has."""
    if to is not None and to not in {migration.version for migration in known}:
        raise MigrationError(f"No such migration: {to}")
