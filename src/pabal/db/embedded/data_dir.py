"""The data root: one owner at a time, and a server that can reach it."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pabal.core.errors import EmbeddedServerError
from pabal.db.embedded.os_user import OsUser, os_user_name
from pabal.db.embedded.postmaster import extract_error

LOCK_FILE = "postgres.lock"
TEMPORARY_MARK = ".new-"  # in the name of whatever is still being made


@dataclass(slots=True)
class DataDirLock:
    """Held by the process that owns the server, for as long as it lives; the kernel lets go when it dies."""

    descriptor: int

    def release(self) -> None:
        os.ftruncate(self.descriptor, 0)
        os.close(self.descriptor)


def lock_data_dir(data_root: Path) -> DataDirLock:
    # Python opens files close-on-exec: were the server to inherit this one, the lock would outlive its owner.
    file = os.open(data_root / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        owner = os.pread(file, 20, 0).decode()
        os.close(file)
        raise EmbeddedServerError(f"already running in {data_root}" + (f" (pid {owner})" if owner else "")) from None
    except OSError:
        os.close(file)
        raise
    return DataDirLock(file)


def ensure_data_dir(data_root: Path, user: OsUser) -> None:
    """Make the folder where it is missing, and see that the server's account can get to it.

    What was there before is the administrator's: it is never opened up for the account.
    """
    for folder in [folder for folder in (*reversed(data_root.parents), data_root) if not folder.exists()]:
        folder.mkdir(exist_ok=True)
        folder.chmod(0o711 if user.drops_privileges else 0o700)
    if not data_root.is_dir():
        raise EmbeddedServerError(f"{data_root} is not a folder")
    if not user.drops_privileges or user.can_enter(data_root):
        return
    closed = next(folder for folder in (*reversed(data_root.parents), data_root) if not user.can_enter(folder))
    raise EmbeddedServerError(
        f"the user {user.name}, whom the server runs as, cannot enter {closed}: "
        "choose a data folder outside of it, or start as another user"
    )


def data_dir_error(data_root: Path, error: OSError) -> EmbeddedServerError:
    """Say what the system would not let us do in the folder, and whose it is when that is why."""
    why = f"cannot use {error.filename or data_root}: {extract_error(error.strerror or str(error))}"
    if isinstance(error, PermissionError):
        with suppress(OSError):
            why += f" ({data_root} belongs to {os_user_name(data_root.stat().st_uid)})"
    return EmbeddedServerError(why)


def write_file_atomically(path: Path, text: str) -> None:
    """Put the whole text there or nothing, for the caller's eyes only, safe from a power cut."""
    handle, part = tempfile.mkstemp(prefix=f"{path.name}{TEMPORARY_MARK}", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(part).rename(path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def make_temporary_dir(target: Path) -> Path:
    """Make a folder to work in beside `whole`, which it becomes when it is done."""
    return Path(tempfile.mkdtemp(prefix=f"{target.name}{TEMPORARY_MARK}", dir=target.parent))


def remove_temporary_files(data_root: Path) -> None:
    """Remove what killed starts left half made."""
    for rest in data_root.glob(f"*{TEMPORARY_MARK}*"):
        if rest.is_dir():
            shutil.rmtree(rest, ignore_errors=True)
        else:
            rest.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Make the names in the folder durable; renames are not until their folder is."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
