"""What a bot says of messages it fetched: done with, not now, still at it."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from pabal.db.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.delivery.lane import LANE

Q = load_queries(__file__)


async def ack_messages(tx: Tx, account: UUID, ids: Sequence[UUID]) -> set[UUID]:
    """End the account's own among these; which they were."""
    done = {*await tx.column(Q.ack_messages, account=account, ids=ids)}
    tx.count_outcomes(LANE.name, "done", len(done))
    return done


async def nack_messages(tx: Tx, account: UUID, ids: Sequence[UUID]) -> set[UUID]:
    """Put the account's own among these back at once; which they were."""
    back = {*await tx.column(Q.nack_messages, account=account, ids=ids)}
    if back:
        tx.notify(Channel.MESSAGES, str(account))
    return back


async def extend_message_leases(tx: Tx, account: UUID, ids: Sequence[UUID], hold: timedelta) -> set[UUID]:
    """Hold the account's own among these longer; which it still held."""
    return {*await tx.column(Q.extend_message_leases, account=account, ids=ids, hold=hold)}
