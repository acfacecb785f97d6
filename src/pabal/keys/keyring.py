"""The key ring: loads the keys of a process from the settings or a file, and reloads them."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from pabal.core.errors import FieldError, InvalidSettings, SetupError
from pabal.core.log import get_logger
from pabal.keys.key import Key, KeySet, KeyUse, encode_key_set, parse_key_set
from pabal.keys.private_file import (
    ensure_private_directory,
    lock_private_file,
    private_file_exists,
    replace_private_file,
    write_private_draft,
)
from pabal.settings import Settings

FileVersion = tuple[int, int, int]
"""Inode, modification time and size: every change replaces the file."""


def read_key_file(path: Path) -> KeySet:
    try:
        return parse_key_set(path.read_bytes())
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SetupError(f"{path} is not a valid key file: {error}") from None


def encode_key_file(keys: KeySet) -> bytes:
    return msgspec.json.format(encode_key_set(keys)) + b"\n"


def key_file_version(path: Path) -> FileVersion | None:
    try:
        version = path.stat()
    except OSError:
        return None
    return version.st_ino, version.st_mtime_ns, version.st_size


log = get_logger()

KEY_FILE_NAME = "keys.json"


class KeyRing:
    """The current keys. The file is read again if it changed: before a key is used, and when a key id is unknown.

    The check costs microseconds. Without it, a process could encrypt with a key that was retired elsewhere. `path` is
    None if the keys come from PABAL_KEYS; then they cannot be changed here.
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
        """Read the file again if it changed; returns whether it did. Keeps the keys if it cannot be read."""
        if self.path is None or (version := key_file_version(self.path)) == self._file_version:
            return False
        try:
            self._keys = read_key_file(self.path)
        except SetupError as error:
            if str(error) != self._last_error:  # tried again at every use, logged once
                log.error("keys unreadable", error=str(error))
            self._last_error = str(error)
            return False
        self._file_version, self._last_error = version, None
        log.info("keys changed", active=[self._keys.active(use).id for use in KeyUse])
        return True

    @contextmanager
    def update(self, change: Callable[[KeySet], KeySet]) -> Generator[tuple[KeySet, KeySet]]:
        """Change the key file, one process at a time. Yields the keys before and after.

        The new file is already written when the block starts, and replaces the old one when the block succeeds.
        """
        if self.path is None:
            raise SetupError("the keys come from PABAL_KEYS and cannot be changed here")
        with lock_private_file(self.path):
            before = read_key_file(self.path)
            changed = change(before)
            draft = write_private_draft(self.path, encode_key_file(changed))
            try:
                yield before, changed
                replace_private_file(draft, self.path)
            finally:
                draft.unlink(missing_ok=True)
            self._keys, self._file_version = changed, key_file_version(self.path)


def keyring_from_setting(text: str) -> KeyRing:
    """The keys in PABAL_KEYS."""
    try:
        return KeyRing(parse_key_set(text.encode()))
    except ValueError as error:
        raise InvalidSettings(FieldError("PABAL_KEYS", f"cannot be read: {error}")) from None


def keyring_from_file(path: Path) -> KeyRing:
    version = key_file_version(path)  # before it is read, so that a change in between is detected later
    return KeyRing(read_key_file(path), path, version)


def open_or_create_keyring(directory: Path) -> KeyRing:
    """The keys in the data directory. The first start generates them."""
    path = directory / KEY_FILE_NAME
    if not private_file_exists(path):
        ensure_private_directory(path)
        with lock_private_file(path):
            if not private_file_exists(path):  # another process may have been first
                keys = KeySet.generate(datetime.now(UTC))
                replace_private_file(write_private_draft(path, encode_key_file(keys)), path)
                log.info("keys generated", file=str(path))
    return keyring_from_file(path)


def find_keyring(settings: Settings) -> KeyRing | None:
    """The configured keys; None before the first start has generated them."""
    if settings.keys:
        return keyring_from_setting(settings.keys.get_secret_value())
    path = settings.data_dir / KEY_FILE_NAME
    return keyring_from_file(path) if private_file_exists(path) else None
