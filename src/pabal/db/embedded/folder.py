"""The data root: one owner at a time, and a server that can reach it."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pabal.core.errors import EmbeddedFailed
from pabal.db.embedded.account import Account, name_of
from pabal.db.embedded.complaint import complaint

LOCK = "postgres.lock"
HALF = ".new-"  # in the name of whatever is still being made


@dataclass(slots=True)
class Lock:
    """Held by the process that owns the server, for as long as it lives; the kernel lets go when it dies."""

    file: int

    def release(self) -> None:
        os.ftruncate(self.file, 0)
        os.close(self.file)


def take(home: Path) -> Lock:
    # Python opens files close-on-exec: were the server to inherit this one, the lock would outlive its owner.
    file = os.open(home / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        owner = os.pread(file, 20, 0).decode()
        os.close(file)
        raise EmbeddedFailed(f"already running in {home}" + (f" (pid {owner})" if owner else "")) from None
    except OSError:
        os.close(file)
        raise
    return Lock(file)


def make(home: Path, account: Account) -> None:
    """Make the folder where it is missing, and see that the server's account can get to it.

    What was there before is the administrator's: it is never opened up for the account.
    """
    for folder in [folder for folder in (*reversed(home.parents), home) if not folder.exists()]:
        folder.mkdir(exist_ok=True)
        folder.chmod(0o711 if account.lent else 0o700)
    if not home.is_dir():
        raise EmbeddedFailed(f"{home} is not a folder")
    if not account.lent or account.reaches(home):
        return
    closed = next(folder for folder in (*reversed(home.parents), home) if not account.reaches(folder))
    raise EmbeddedFailed(
        f"the user {account.name}, whom the server runs as, cannot enter {closed}: "
        "choose a data folder outside of it, or start as another user"
    )


def refusal(home: Path, error: OSError) -> EmbeddedFailed:
    """Say what the system would not let us do in the folder, and whose it is when that is why."""
    why = f"cannot use {error.filename or home}: {complaint(error.strerror or str(error))}"
    if isinstance(error, PermissionError):
        with suppress(OSError):
            why += f" ({home} belongs to {name_of(home.stat().st_uid)})"
    return EmbeddedFailed(why)


def write(path: Path, text: str) -> None:
    """Put the whole text there or nothing, for the caller's eyes only, safe from a power cut."""
    handle, part = tempfile.mkstemp(prefix=f"{path.name}{HALF}", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(part).rename(path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    settle(path.parent)


def half(whole: Path) -> Path:
    """Make a folder to work in beside `whole`, which it becomes when it is done."""
    return Path(tempfile.mkdtemp(prefix=f"{whole.name}{HALF}", dir=whole.parent))


def sweep(home: Path) -> None:
    """Remove what killed starts left half made."""
    for rest in home.glob(f"*{HALF}*"):
        if rest.is_dir():
            shutil.rmtree(rest, ignore_errors=True)
        else:
            rest.unlink(missing_ok=True)


def settle(folder: Path) -> None:
    """Make the names in the folder durable; renames are not until their folder is."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
