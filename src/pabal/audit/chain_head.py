"""The head of the chain of seals: kept in the database, in a file of every host, and in the log."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pabal.core.errors import SetupError
from pabal.keys.private_file import (
    ensure_private_directory,
    lock_private_file,
    replace_private_file,
    write_private_draft,
)

HEAD_FILE_NAME = "audit-head.json"
HEAD_PATTERN = re.compile(r"(\d{1,18}):(?:(\d{1,18}):)?([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ChainHead:
    """A seal that identifies the chain up to it: its digest covers its rows and the previous seal.

    `count` is the number of rows of the seal; None if only the id and the digest were noted.
    """

    id: int
    digest: str
    count: int | None = None

    def __str__(self) -> str:
        return f"{self.id}:{self.digest}" if self.count is None else f"{self.id}:{self.count}:{self.digest}"

    def matches(self, other: "ChainHead") -> bool:
        has_same_count = None in (self.count, other.count) or self.count == other.count
        return (self.id, self.digest) == (other.id, other.digest) and has_same_count


START_OF_CHAIN = ChainHead(0, "", 0)
"""The head of a chain without seals."""


def parse_chain_head(text: str) -> ChainHead | None:
    """Parse ID:COUNT:DIGEST or ID:DIGEST; None if it is neither."""
    if (match := HEAD_PATTERN.fullmatch(text.strip().lower())) is None:
        return None
    seal_id, count, digest = match.groups()
    return ChainHead(int(seal_id), digest, int(count) if count else None)


class ChainHeadFile:
    """The newest seal that this host knows, in the data directory. Writers of the database cannot change it."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / HEAD_FILE_NAME

    def read(self) -> ChainHead | None:
        """The stored head; None if there is no file."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SetupError(f"{self.path} cannot be read: {error.strerror}") from None
        try:
            return msgspec.json.decode(content, type=ChainHead)
        except msgspec.DecodeError as error:
            raise SetupError(f"{self.path} is damaged: {error}") from None

    def advance(self, known: ChainHead | None, head: ChainHead) -> None:
        """Store `head` if the file still contains `known`; otherwise another process was faster."""
        ensure_private_directory(self.path)
        with lock_private_file(self.path):
            if self.read() == known:
                replace_private_file(write_private_draft(self.path, encode_chain_head(head)), self.path)

    @contextmanager
    def replace(self, head: ChainHead) -> Generator[None]:
        """Store `head` when the block succeeds. The new file is already written when the block starts."""
        ensure_private_directory(self.path)
        with lock_private_file(self.path):
            draft = write_private_draft(self.path, encode_chain_head(head))
            try:
                yield
                replace_private_file(draft, self.path)
            finally:
                draft.unlink(missing_ok=True)


def encode_chain_head(head: ChainHead) -> bytes:
    return msgspec.json.encode(head) + b"\n"
