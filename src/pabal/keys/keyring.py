"""The ring: where the keys of a process come from, and how it learns of new ones."""

import fcntl
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from pabal.core.errors import FieldError, InvalidSettings, SetupError
from pabal.core.log import get_logger
from pabal.db.embedded.data_dir import sync_directory
from pabal.keys.key import Key, KeySet, KeyUse, encode_key_set, parse_key_set
from pabal.settings import Settings

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


log = get_logger()

KEY_FILE_NAME = "keys.json"


class KeyRing:
    """The keys in force. A file that changed is read again: before a key works, when one is unknown, and when told.

    Looking at it costs microseconds; writing on under a key that others have retired would cost what was written.
    `kept` is the file; None means that the keys came with the settings and cannot be changed from here.
    """

    def __init__(self, keys: KeySet, path: Path | None = None, file_version: FileVersion | None = None) -> None:
        self._keys = keys
        self._file_version = file_version
        self._last_error: str | None = None
        self.path = path

    @property
    def keys(self) -> KeySet:
        self.reload()
        return self._keys

    def active(self, use: KeyUse) -> Key:
        return self.keys.active(use)

    def find(self, key_id: str) -> Key | None:
        return self._keys.find(key_id) or self.keys.find(key_id)

    def reload(self) -> bool:
        """Read the file again if it changed; whether it did. A file that cannot be read changes nothing."""
        if self.path is None or (seen := key_file_version(self.path)) == self._file_version:
            return False
        try:
            self._keys = read_key_file(self.path)
        except SetupError as error:
            if str(error) != self._last_error:  # it is tried again at every look, and told once
                log.error("keys unreadable", error=str(error))
            self._last_error = str(error)
            return False
        self._file_version, self._last_error = seen, None
        log.info("keys changed", active=[self._keys.active(use).id for use in KeyUse])
        return True

    @contextmanager
    def update(self, change: Callable[[KeySet], KeySet]) -> Generator[tuple[KeySet, KeySet]]:
        """Change the kept keys, one process at a time: from what they were to what they are when the block ends well.

        The block begins when all that may well fail is done: the new file lies beside the old one, to be renamed.
        """
        if self.path is None:
            raise SetupError("the keys come from PABAL_KEYS and cannot be changed from here")
        with lock_key_file(self.path):
            before = read_key_file(self.path)
            changed = change(before)
            fresh = write_key_draft(self.path, changed)
            try:
                yield before, changed
                replace_key_file(fresh, self.path)
            finally:
                fresh.unlink(missing_ok=True)
            self._keys, self._file_version = changed, key_file_version(self.path)


def keyring_from_setting(text: str) -> KeyRing:
    """The keys of a hub whose settings bring them."""
    try:
        return KeyRing(parse_key_set(text.encode()))
    except ValueError as error:
        raise InvalidSettings(FieldError("PABAL_KEYS", f"cannot be read: {error}")) from None


def keyring_from_file(path: Path) -> KeyRing:
    seen = key_file_version(path)  # before it is read: a change in between is then seen at the next look
    return KeyRing(read_key_file(path), path, seen)


def open_or_create_keyring(directory: Path) -> KeyRing:
    """The keys kept in the data folder; the first start makes them."""
    kept = directory / KEY_FILE_NAME
    if not key_file_exists(kept):
        ensure_key_directory(kept)
        with lock_key_file(kept):
            if not key_file_exists(kept):  # another process may have been first
                replace_key_file(write_key_draft(kept, KeySet.generate(datetime.now(UTC))), kept)
                log.info("keys made", file=str(kept))
    return keyring_from_file(kept)


def find_keyring(settings: Settings) -> KeyRing | None:
    """The keys there are; None before a first start has made them."""
    if settings.keys:
        return keyring_from_setting(settings.keys.get_secret_value())
    kept = settings.data_dir / KEY_FILE_NAME
    return keyring_from_file(kept) if key_file_exists(kept) else None
