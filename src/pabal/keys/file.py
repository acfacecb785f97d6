"""The file of keys: read whole, replaced whole, one writer at a time."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from pabal.core.errors import SetupError
from pabal.db.embedded.folder import sync_directory
from pabal.keys.document import encode_key_set, parse_key_set
from pabal.keys.key import KeySet

FileVersion = tuple[int, int, int]
"""What changes when the file does: every change is a new file."""


def read_key_file(path: Path) -> KeySet:
    try:
        return parse_key_set(path.read_bytes())
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SetupError(f"{path} is not a file of keys: {error}") from None


def ensure_key_directory(path: Path) -> None:
    with translate_write_errors(path):
        path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)


def write_key_draft(path: Path, keys: KeySet) -> Path:
    """Write them beside the file, for their owner's eyes only; root leaves them to whom they belonged."""
    fresh = path.with_suffix(".new")
    with translate_write_errors(path):
        fresh.unlink(missing_ok=True)
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.format(encode_key_set(keys)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        chown_to_key_owner(fresh, path)
    return fresh


def replace_key_file(draft: Path, path: Path) -> None:
    """Put the new file in the old one's place, safe from a power cut: what its keys encrypt will be."""
    with translate_write_errors(path):
        draft.replace(path)
        sync_directory(path.parent)


def chown_to_key_owner(new_file: Path, path: Path) -> None:
    """Give what root made to the owner of the keys, or of their folder before there are any."""
    if os.geteuid() != 0:
        return
    if key_file_exists(path):
        owner = path.stat()
        os.chown(new_file, owner.st_uid, owner.st_gid)
        return
    owner = path.parent.stat()
    with suppress(OSError):  # a root that may not give away is the owner itself, as in a container
        os.chown(new_file, owner.st_uid, owner.st_gid)


@contextmanager
def lock_key_file(kept: Path) -> Generator[None]:
    with translate_write_errors(kept):
        path = kept.with_suffix(".lock")
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with translate_write_errors(kept):
            chown_to_key_owner(path, kept)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextmanager
def translate_write_errors(path: Path) -> Generator[None]:
    """Say in one line what the system would not let us do."""
    try:
        yield
    except OSError as error:
        raise SetupError(f"{path} cannot be written: {error.strerror}") from None


def key_file_exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # the folder is closed to us
        raise SetupError(f"{path} cannot be read: {error.strerror}") from None


def key_file_version(path: Path) -> FileVersion | None:
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_ino, seen.st_mtime_ns, seen.st_size
