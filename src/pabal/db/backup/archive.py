"""The file of a backup: a tar archive with the dump, the wrapped keys, the settings and a manifest.

The manifest has the SHA-256 of every other member, and `manifest.sha256` that of the manifest, in the format of
`sha256sum`. The dump is written as it comes: its header follows when its size is known, so no second copy is needed.
"""

import hashlib
import os
import tarfile
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

from pabal.core.errors import BackupError, Conflict, MigrationError
from pabal.db.embedded.data_dir import sync_directory
from pabal.db.schema import (
    AppliedMigration,
    check_migration_status,
    compare_migrations,
    load_bridge,
    load_migrations,
)

BACKUP_FORMAT = 1
DUMP_MEMBER = "database.dump"
KEYS_MEMBER = "keys.wrapped"
SETTINGS_MEMBER = "settings.env"
MANIFEST_MEMBER = "manifest.json"
CHECKSUM_MEMBER = "manifest.sha256"
MAX_SMALL_MEMBER_BYTES = 16 << 20
READ_BYTES = 1 << 20

CountBytes = Callable[[int], object]


class BackupMember(msgspec.Struct, frozen=True):
    """The size and the SHA-256 of a member."""

    size: int
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup contains, and where it comes from."""

    format: int = BACKUP_FORMAT
    version: str
    created_at: datetime
    server_major: int
    migrations: tuple[AppliedMigration, ...]
    roles: tuple[str, ...]
    rows: dict[str, int]
    settings: tuple[str, ...]
    """The variables that were set, secrets included. `settings.env` has the values of the others."""
    audit_head: str | None
    members: dict[str, BackupMember]


class BackupFormat(msgspec.Struct, frozen=True):
    """The part of a manifest that every format has."""

    format: int


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A backup whose hashes were checked."""

    path: Path
    manifest: BackupManifest
    offsets: dict[str, int]

    @property
    def has_keys(self) -> bool:
        return KEYS_MEMBER in self.manifest.members

    def read_chunks(self, name: str) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(self.offsets[name])
            left = self.manifest.members[name].size
            while left and (chunk := file.read(min(left, READ_BYTES))):
                left -= len(chunk)
                yield chunk

    def read_member(self, name: str) -> bytes:
        return b"".join(self.read_chunks(name))

    def check_version(self) -> None:
        """Refuse the backup of a newer Pabal. Older ones are migrated after they are loaded."""
        known = load_migrations()
        try:
            check_migration_status(compare_migrations(known, self.manifest.migrations, load_bridge()), known)
        except MigrationError as error:
            raise Conflict(f"{self.path} was written by Pabal {self.manifest.version}: {error}") from None


class BackupWriter:
    """Writes the members of a backup one after the other."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.members: dict[str, BackupMember] = {}

    def add_member(self, name: str, content: bytes) -> None:
        with self.open_member(name) as write:
            write(content)

    @contextmanager
    def open_member(self, name: str) -> "Generator[Callable[[bytes], None]]":
        """Write a member of any size. Its header is written at the end of the block."""
        start, digest, size = self._file.tell(), hashlib.sha256(), 0
        self._file.write(bytes(tarfile.BLOCKSIZE))

        def write(chunk: bytes) -> None:
            nonlocal size
            self._file.write(chunk)
            digest.update(chunk)
            size += len(chunk)

        yield write
        self._file.write(bytes(-size % tarfile.BLOCKSIZE))
        end = self._file.tell()
        header = tarfile.TarInfo(name)
        header.size, header.mode = size, 0o600
        self._file.seek(start)
        self._file.write(header.tobuf(tarfile.GNU_FORMAT))
        self._file.seek(end)
        self.members[name] = BackupMember(size, digest.hexdigest())

    def finish(self, manifest: BackupManifest) -> None:
        content = msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"
        self.add_member(MANIFEST_MEMBER, content)
        self.add_member(CHECKSUM_MEMBER, f"{hashlib.sha256(content).hexdigest()}  {MANIFEST_MEMBER}\n".encode())
        self._file.write(bytes(2 * tarfile.BLOCKSIZE))
        self._file.flush()
        os.fsync(self._file.fileno())


@contextmanager
def create_backup_file(path: Path) -> Generator[tuple[Path, BackupWriter]]:
    """Write a file, readable by its owner only, under a temporary name. It gets its name when the block succeeds."""
    try:
        if path.exists():
            raise Conflict(f"{path} exists already: choose another name")
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.new-", dir=path.absolute().parent)
    except OSError as error:
        raise BackupError(f"{path} cannot be created: {error.strerror}") from None
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield draft, BackupWriter(file)
        draft.rename(path)
        sync_directory(path.absolute().parent)
    except OSError as error:
        raise BackupError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        draft.unlink(missing_ok=True)


def read_backup(path: Path, count: CountBytes = lambda _: None) -> BackupFile:
    """Read a backup and check every byte of its members against the manifest."""
    try:
        with tarfile.open(path, "r:") as archive:
            members = {member.name: member for member in archive}
        manifest = read_manifest(path, members)
        if manifest.members.keys() | {MANIFEST_MEMBER, CHECKSUM_MEMBER} != members.keys():
            raise BackupError(f"{path} is damaged: its members are not those of the manifest")
        backup = BackupFile(path, manifest, {name: member.offset_data for name, member in members.items()})
        for name, expected in manifest.members.items():
            digest = hashlib.sha256()
            for chunk in backup.read_chunks(name):
                digest.update(chunk)
                count(len(chunk))
            if (members[name].size, digest.hexdigest()) != (expected.size, expected.sha256):
                raise BackupError(f"{path} is damaged: {name} is not what was written")
    except tarfile.TarError as error:
        raise BackupError(f"{path} is not a backup, or it is damaged: {error}") from None
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror}") from None
    return backup


def read_manifest(path: Path, members: dict[str, tarfile.TarInfo]) -> BackupManifest:
    content, checksum = (read_small_member(path, members.get(name)) for name in (MANIFEST_MEMBER, CHECKSUM_MEMBER))
    if checksum.split()[:1] != [hashlib.sha256(content).hexdigest().encode()]:
        raise BackupError(f"{path} is damaged: the manifest is not what was written")
    try:
        if msgspec.json.decode(content, type=BackupFormat).format > BACKUP_FORMAT:
            raise Conflict(f"{path} was written by a newer Pabal: install that version")
        return msgspec.json.decode(content, type=BackupManifest)
    except msgspec.DecodeError as error:
        raise BackupError(f"{path} is damaged: {error}") from None


def read_small_member(path: Path, member: tarfile.TarInfo | None) -> bytes:
    if member is None or not member.isreg() or member.size > MAX_SMALL_MEMBER_BYTES:
        raise BackupError(f"{path} is not a backup, or it is cut off: it has no manifest")
    with path.open("rb") as file:
        file.seek(member.offset_data)
        return file.read(member.size)
