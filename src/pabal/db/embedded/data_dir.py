"""The data root: its lock, its permissions, and atomic writes inside it."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pabal.core.errors import EmbeddedServerError
from pabal.db.embedded.os_user import OsUser, os_user_name
from pabal.db.embedded.postmaster import extract_error, find_running_server, is_server_of, stop_process

LOCK_FILE = "postgres.lock"
TEMPORARY_MARK = ".new-"  # in the name of unfinished files and directories


@dataclass(slots=True)
class DataDirLock:
    """The lock of the process that owns the server. The kernel releases it when the process ends."""

    descriptor: int

    def release(self) -> None:
        os.ftruncate(self.descriptor, 0)
        os.close(self.descriptor)


def lock_data_dir(data_root: Path) -> DataDirLock:
    # Python opens files close-on-exec. If the server inherited this one, the lock would outlive its owner.
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
    """Create the directory if it is missing, and check that the server's user can enter it.

    The permissions of existing directories are not changed.
    """
    for folder in [folder for folder in (*reversed(data_root.parents), data_root) if not folder.exists()]:
        folder.mkdir(exist_ok=True)
        folder.chmod(0o711 if user.drops_privileges else 0o700)
    if not data_root.is_dir():
        raise EmbeddedServerError(f"{data_root} is not a directory")
    if not user.drops_privileges or user.can_enter(data_root):
        return
    closed = next(folder for folder in (*reversed(data_root.parents), data_root) if not user.can_enter(folder))
    raise EmbeddedServerError(
        f"user {user.name}, which runs the server, cannot enter {closed}: "
        "choose a data directory outside of it, or start as another user"
    )


def data_dir_error(data_root: Path, error: OSError) -> EmbeddedServerError:
    """Describe a failed operation in the data directory, with the directory's owner if permission was denied."""
    message = f"cannot use {error.filename or data_root}: {extract_error(error.strerror or str(error))}"
    if isinstance(error, PermissionError):
        with suppress(OSError):
            message += f" ({data_root} belongs to {os_user_name(data_root.stat().st_uid)})"
    return EmbeddedServerError(message)


def write_file_atomically(path: Path, text: str) -> None:
    """Write a file that only its owner can read, atomically and durably."""
    handle, temporary = tempfile.mkstemp(prefix=f"{path.name}{TEMPORARY_MARK}", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).rename(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def make_temporary_dir(target: Path) -> Path:
    """Create a temporary directory beside `target`, to be renamed to it."""
    return Path(tempfile.mkdtemp(prefix=f"{target.name}{TEMPORARY_MARK}", dir=target.parent))


def remove_temporary_files(data_root: Path) -> None:
    """Remove the temporary files of killed starts and upgrades. Servers that an upgrade left behind are stopped."""
    for leftover in data_root.glob(f"*{TEMPORARY_MARK}*"):
        if leftover.is_dir():
            stop_servers_in(leftover)
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def stop_servers_in(directory: Path) -> None:
    for data_dir in directory.glob("postgres-*"):
        running = find_running_server(data_dir)
        if running is not None:
            stop_process(running.pid, lambda pid=running.pid, data_dir=data_dir: is_server_of(pid, data_dir))


def sync_directory(directory: Path) -> None:
    """Sync a directory: a rename is durable only after that."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
