"""Seal the audit log of a running hub, and keep the head of the chain outside the database."""

import asyncio
from dataclasses import dataclass

from pabal.audit.chain_head import START_OF_CHAIN, ChainHead, ChainHeadFile
from pabal.audit.follow import follow_chain
from pabal.audit.seal import seal_audit_log
from pabal.core.errors import SetupError
from pabal.core.log import get_logger
from pabal.core.messages import Message
from pabal.db.tx import Tx
from pabal.keys.key import KeyUse
from pabal.keys.keyring import KeyRing

log = get_logger()


@dataclass(frozen=True, slots=True)
class SealResult:
    """How many rows were sealed, and what is wrong with the chain, if anything."""

    rows: int
    finding: Message | None = None


class AuditSealer:
    """Seals the log, unless its chain does not contain the head that this host knows.

    Such a chain was cut or replaced, or the database is an older backup. Sealing it would make the altered log look
    intact, so that is left to the operator: `pabal audit accept-restore`.
    """

    def __init__(self, key_ring: KeyRing, head_file: ChainHeadFile) -> None:
        self._key_ring = key_ring
        self.head_file = head_file
        self._known: ChainHead | None = None
        """The last head, also if the file could not be written or was removed."""
        self._stored: ChainHead | None = None
        self._checked: ChainHead | None = None
        self._sealed: ChainHead | None = None
        self._last_finding: str | None = None
        self._last_write_error: str | None = None

    async def seal(self, tx: Tx, batch: int, *, after_restore: bool = False) -> SealResult:
        """Seal about `batch` rows. Call `store_head` after the commit."""
        self._checked = self._sealed = None
        try:
            self._stored = await asyncio.to_thread(self.head_file.read)
        except SetupError as error:
            self._log_finding(str(error))
            return SealResult(0, Message("{}", error))
        known = self._stored or self._known
        chain = await follow_chain(tx, self._key_ring, known)
        self._log_finding(chain.finding)
        if chain.problem:
            return SealResult(0, chain.finding)
        if known is None and chain.head != START_OF_CHAIN:
            log.warning("audit head adopted", head=str(chain.head), file=str(self.head_file.path))
        self._checked = chain.head
        if not chain.is_end:
            return SealResult(0, chain.finding)
        self._key_ring.reload()  # a key that was retired meanwhile must not be used for another seal
        self._sealed = await seal_audit_log(tx, self._key_ring.active(KeyUse.AUDIT), batch, after_restore=after_restore)
        return SealResult((self._sealed and self._sealed.count) or 0, chain.finding)

    async def store_head(self) -> None:
        """Store and log the head after the commit: a head that was rolled back would look like a cut chain."""
        if (head := self._sealed or self._checked) is None:
            return
        self._known = head
        if self._sealed:
            log.info("audit sealed", head=str(head))
        if head == self._stored:
            return
        try:
            await asyncio.to_thread(self.head_file.advance, self._stored, head)
        except SetupError as error:
            if str(error) != self._last_write_error:  # tried again at every seal, logged once
                log.error("audit head not stored", error=str(error))
            self._last_write_error = str(error)
        else:
            self._last_write_error = None

    def _log_finding(self, finding: str | None) -> None:
        if finding and finding != self._last_finding:
            log.error("audit chain broken", error=finding)
        self._last_finding = finding
