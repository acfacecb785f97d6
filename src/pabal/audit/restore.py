"""Accept a restored database: its chain of seals becomes the one that this host knows."""

import socket

from pabal.audit.chain_head import START_OF_CHAIN, ChainHead, ChainHeadFile
from pabal.audit.follow import follow_chain, last_chain_head
from pabal.audit.record import record_action
from pabal.audit.sealer import AuditSealer
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, SetupError
from pabal.core.messages import Message
from pabal.db.errors import UniqueViolation
from pabal.db.pool import Database
from pabal.keys.keyring import KeyRing

MAX_REASON_LENGTH = 500
SEALED_ROWS_PER_BATCH = 5000


def check_restore_reason(reason: str) -> str:
    text = reason.strip()
    if not text or len(text) > MAX_REASON_LENGTH:
        raise Invalid.of_field("reason", f"must be 1 to {MAX_REASON_LENGTH} characters")
    return text


async def find_restore_problem(db: Database, key_ring: KeyRing, head_file: ChainHeadFile) -> Message:
    """Why the chain must be accepted. If it need not be, that is a conflict."""
    try:
        known = head_file.read()
    except SetupError as error:
        return Message("{}", error)
    async with db.autocommit() as tx:
        chain = await follow_chain(tx, key_ring, known)
    if chain.problem is None:
        raise Conflict("Nothing to accept: the audit log contains the last seal that this host knows")
    return chain.problem


async def accept_restored_chain(
    db: Database,
    key_ring: KeyRing,
    head_file: ChainHeadFile,
    actor: Actor,
    reason: str,
    *,
    needs_problem: bool = True,
) -> ChainHead:
    """Record the decision with its reason, then store the end of the chain as the head that this host knows.

    The entry of the log keeps the old head, so that the decision can be reviewed. Without `needs_problem`, a chain
    that contains the known head is accepted as well, and recorded.
    """
    text = check_restore_reason(reason)
    problem: Message | None = None
    try:
        problem = await find_restore_problem(db, key_ring, head_file)
    except Conflict:
        if needs_problem:
            raise
    async with db.autocommit() as tx:
        head = await last_chain_head(tx)
    with head_file.replace(head):
        async with db.transaction() as tx:
            await record_action(
                tx,
                actor,
                "audit.restore_accepted",
                None,
                reason=text,
                problem=str(problem) if problem else None,
                head=None if head == START_OF_CHAIN else str(head),
                host=socket.gethostname(),
            )
    return head


async def seal_restored_log(db: Database, sealer: AuditSealer) -> None:
    """Seal the acceptance at once.

    The new server numbers its transactions anew. When the numbers reach those of the backup, a row that was written
    before and is not sealed would look as if it had been inserted among the old ones.
    """
    while True:
        try:
            async with db.transaction() as tx:
                result = await sealer.seal(tx, SEALED_ROWS_PER_BATCH, after_restore=True)
        except UniqueViolation:  # a running hub seals as well
            continue
        await sealer.store_head()
        if not result.rows:
            return
