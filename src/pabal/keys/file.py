"""The file of keys: read whole, replaced whole, one writer at a time."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from pabal.core.errors import Failed
from pabal.db.embedded.folder import settle
from pabal.keys.document import parse, text
from pabal.keys.key import Keys

Stamp = tuple[int, int, int]
"""What changes when the file does: every change is a new file."""


def read(kept: Path) -> Keys:
    try:
        return parse(kept.read_bytes())
    except OSError as error:
        raise Failed(f"{kept} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise Failed(f"{kept} is not a file of keys: {error}") from None


def folder_for(kept: Path) -> None:
    with refusal(kept):
        kept.parent.mkdir(mode=0o711, parents=True, exist_ok=True)


def draft(kept: Path, keys: Keys) -> Path:
    """Write them beside the file, for their owner's eyes only; root leaves them to whom they belonged."""
    fresh = kept.with_suffix(".new")
    with refusal(kept):
        fresh.unlink(missing_ok=True)
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.format(text(keys)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        hand_over(fresh, kept)
    return fresh


def adopt(fresh: Path, kept: Path) -> None:
    """Put the new file in the old one's place, safe from a power cut: what its keys encrypt will be."""
    with refusal(kept):
        fresh.replace(kept)
        settle(kept.parent)


def hand_over(made: Path, kept: Path) -> None:
    """Give what root made to the owner of the keys, or of their folder before there are any."""
    if os.geteuid() != 0:
        return
    if there(kept):
        owner = kept.stat()
        os.chown(made, owner.st_uid, owner.st_gid)
        return
    owner = kept.parent.stat()
    with suppress(OSError):  # a root that may not give away is the owner itself, as in a container
        os.chown(made, owner.st_uid, owner.st_gid)


@contextmanager
def alone(kept: Path) -> Generator[None]:
    with refusal(kept):
        path = kept.with_suffix(".lock")
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with refusal(kept):
            hand_over(path, kept)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextmanager
def refusal(kept: Path) -> Generator[None]:
    """Say in one line what the system would not let us do."""
    try:
        yield
    except OSError as error:
        raise Failed(f"{kept} cannot be written: {error.strerror}") from None


def there(kept: Path) -> bool:
    try:
        return kept.exists()
    except OSError as error:  # the folder is closed to us
        raise Failed(f"{kept} cannot be read: {error.strerror}") from None


def stamp(kept: Path) -> Stamp | None:
    try:
        seen = kept.stat()
    except OSError:
        return None
    return seen.st_ino, seen.st_mtime_ns, seen.st_size
