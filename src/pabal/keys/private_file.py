"""Files that only the hub may read: locked while they change, and replaced atomically and durably."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from pabal.core.errors import SetupError
from pabal.db.embedded.data_dir import sync_directory


def private_file_exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # no permission on the directory
        raise SetupError(f"{path} cannot be read: {error.strerror}") from None


def ensure_private_directory(path: Path) -> None:
    with translate_write_errors(path):
        path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)


def write_private_draft(path: Path, content: bytes) -> Path:
    """Write a new file beside `path`, readable by the owner of `path` only."""
    draft = path.with_suffix(".new")
    with translate_write_errors(path):
        draft.unlink(missing_ok=True)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        chown_to_file_owner(draft, path)
    return draft


def replace_private_file(draft: Path, path: Path) -> None:
    """Replace the file durably: it must not be lost after its content was used."""
    with translate_write_errors(path):
        draft.replace(path)
        sync_directory(path.parent)


def chown_to_file_owner(new_file: Path, path: Path) -> None:
    """As root, give a new file to the owner of `path`, or of its directory if there is none yet."""
    if os.geteuid() != 0:
        return
    if private_file_exists(path):
        owner = path.stat()
        os.chown(new_file, owner.st_uid, owner.st_gid)
        return
    owner = path.parent.stat()
    with suppress(OSError):  # without CAP_CHOWN, as in some containers, root is the owner itself
        os.chown(new_file, owner.st_uid, owner.st_gid)


@contextmanager
def lock_private_file(path: Path) -> Generator[None]:
    with translate_write_errors(path):
        lock_path = path.with_suffix(".lock")
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with translate_write_errors(path):
            chown_to_file_owner(lock_path, path)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextmanager
def translate_write_errors(path: Path) -> Generator[None]:
    """Raise an operating system error as a SetupError of one line."""
    try:
        yield
    except OSError as error:
        raise SetupError(f"{path} cannot be written: {error.strerror}") from None
