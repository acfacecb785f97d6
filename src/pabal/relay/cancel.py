"""Cancel: what waits for an account it no longer belongs to ends there."""

from typing import Literal
from uuid import UUID

from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)

CancelReason = Literal["unpaired", "replaced", "blocked", "disabled"]


async def cancel_messages(tx: Tx, account: UUID, reason: CancelReason, *, conversation: str | None = None) -> int:
    """End an account's open messages, or those of one conversation; how many.

    Whoever calls holds the conversation's row, or the account's: with it, this statement sees every message that was
    put before, and none comes after.
    """
    return await tx.run(Q.cancel_messages, account=account, reason=reason, conversation=conversation)
