"""The doctor's checks of the audit log."""

import os
from datetime import timedelta
from pathlib import Path

from pabal.audit.chain_head import START_OF_CHAIN, ChainHeadFile
from pabal.audit.follow import follow_chain, last_chain_head, unsealed_for
from pabal.core.duration import format_duration
from pabal.core.errors import SetupError
from pabal.core.finding import Finding, FindingLevel
from pabal.core.messages import Message
from pabal.db.tx import Tx
from pabal.keys.keyring import KeyRing

MINUTE = timedelta(minutes=1)
MAX_UNSEALED_AGE = 2 * MINUTE
"""Entries are sealed every second, once all transactions before them have ended."""


def check_head_file(data_dir: Path) -> Finding:
    """Whether the head of the chain can be stored on this host."""
    head_file = ChainHeadFile(data_dir)
    try:
        known = head_file.read()
    except SetupError as error:
        return Finding(
            FindingLevel.BAD,
            "audit head",
            str(error),
            Message("restore the file, or run `pabal audit accept-restore` after `pabal audit verify`"),
        )
    folder = data_dir
    while not folder.exists():  # before the first start
        folder = folder.parent
    is_writable = os.access(folder, os.W_OK | os.X_OK)
    if not is_writable:
        return Finding(
            FindingLevel.BAD,
            "audit head",
            Message(
                "{} cannot be written, so a replaced audit log would not be noticed after a restart", head_file.path
            ),
            Message("make PABAL_DATA_DIR writable and keep it across restarts"),
        )
    seen = Message("none yet in {}", head_file.path) if known is None else Message("in {}", head_file.path)
    return Finding(FindingLevel.GOOD, "audit head", seen)


async def check_audit_chain(tx: Tx, key_ring: KeyRing | None, data_dir: Path) -> Finding:
    """Whether the chain contains the head that this host knows."""
    known = ChainHeadFile(data_dir).read()
    head = await last_chain_head(tx)
    if known is None and head != START_OF_CHAIN:
        return Finding(
            FindingLevel.WARNING,
            "audit chain",
            Message("this host knows no seal of it, so it cannot notice a replaced one"),
            Message("run `pabal audit verify --head` with a head from the log of a hub"),
        )
    if key_ring is None:
        return Finding(FindingLevel.GOOD, "audit chain", Message("none yet"))
    chain = await follow_chain(tx, key_ring, known)
    if chain.finding:
        return Finding(
            FindingLevel.BAD,
            "audit chain",
            chain.finding,
            Message("run `pabal audit verify`; if you restored a backup, run `pabal audit accept-restore`"),
        )
    age = await unsealed_for(tx)
    if age > MAX_UNSEALED_AGE:
        return Finding(
            FindingLevel.BAD,
            "audit chain",
            Message("the last entries have not been sealed for {}", format_duration(age // MINUTE * MINUTE)),
            Message(
                "end the oldest transaction in pg_stat_activity: entries are sealed when all earlier ones have ended"
            ),
        )
    if head == START_OF_CHAIN:
        return Finding(FindingLevel.GOOD, "audit chain", Message("none yet"))
    return Finding(FindingLevel.GOOD, "audit chain", Message("contains the last seal that this host knows"))
