"""The ring: where the keys of a process come from, and how it learns of new ones."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pabal.core.errors import Failed, Misconfigured, Mistake
from pabal.core.log import get_logger
from pabal.keys.document import parse
from pabal.keys.file import Stamp, adopt, alone, draft, folder_for, read, stamp, there
from pabal.keys.key import Key, Keys, Use
from pabal.settings import Settings

log = get_logger()

FILE = "keys.json"


class Ring:
    """The keys in force. A file that changed is read again: before a key works, when one is unknown, and when told.

    Looking at it costs microseconds; writing on under a key that others have retired would cost what was written.
    `kept` is the file; None means that the keys came with the settings and cannot be changed from here.
    """

    def __init__(self, keys: Keys, kept: Path | None = None, seen: Stamp | None = None) -> None:
        self._keys = keys
        self._seen = seen
        self._complaint: str | None = None
        self.kept = kept

    @property
    def keys(self) -> Keys:
        self.refresh()
        return self._keys

    def active(self, use: Use) -> Key:
        return self.keys.active(use)

    def find(self, key_id: str) -> Key | None:
        return self._keys.find(key_id) or self.keys.find(key_id)

    def refresh(self) -> bool:
        """Read the file again if it changed; whether it did. A file that cannot be read changes nothing."""
        if self.kept is None or (seen := stamp(self.kept)) == self._seen:
            return False
        try:
            self._keys = read(self.kept)
        except Failed as error:
            if str(error) != self._complaint:  # it is tried again at every look, and told once
                log.error("keys unreadable", why=str(error))
            self._complaint = str(error)
            return False
        self._seen, self._complaint = seen, None
        log.info("keys changed", active=[self._keys.active(use).id for use in Use])
        return True

    @contextmanager
    def changing(self, to: Callable[[Keys], Keys]) -> Generator[tuple[Keys, Keys]]:
        """Change the kept keys, one process at a time: from what they were to what they are when the block ends well.

        The block begins when all that may well fail is done: the new file lies beside the old one, to be renamed.
        """
        if self.kept is None:
            raise Failed("the keys come from PABAL_KEYS and cannot be changed from here")
        with alone(self.kept):
            before = read(self.kept)
            changed = to(before)
            fresh = draft(self.kept, changed)
            try:
                yield before, changed
                adopt(fresh, self.kept)
            finally:
                fresh.unlink(missing_ok=True)
            self._keys, self._seen = changed, stamp(self.kept)


def from_setting(text: str) -> Ring:
    """The keys of a hub whose settings bring them."""
    try:
        return Ring(parse(text.encode()))
    except ValueError as error:
        raise Misconfigured(Mistake("PABAL_KEYS", f"cannot be read: {error}")) from None


def from_file(kept: Path) -> Ring:
    seen = stamp(kept)  # before it is read: a change in between is then seen at the next look
    return Ring(read(kept), kept, seen)


def from_folder(folder: Path) -> Ring:
    """The keys kept in the data folder; the first start makes them."""
    kept = folder / FILE
    if not there(kept):
        folder_for(kept)
        with alone(kept):
            if not there(kept):  # another process may have been first
                adopt(draft(kept, Keys.made(datetime.now(UTC))), kept)
                log.info("keys made", file=str(kept))
    return from_file(kept)


def existing(settings: Settings) -> Ring | None:
    """The keys there are; None before a first start has made them."""
    if settings.keys:
        return from_setting(settings.keys.get_secret_value())
    kept = settings.data_dir / FILE
    return from_file(kept) if there(kept) else None
