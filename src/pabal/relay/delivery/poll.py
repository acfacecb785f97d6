"""Acknowledge, return and extend messages that a bot fetched."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from pabal.db.doorbell.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.delivery.lane import LANE

Q = load_queries(__file__)


async def ack_messages(tx: Tx, account: UUID, ids: Sequence[UUID]) -> set[UUID]:
    """End the account's open messages among `ids`; returns their ids."""
    acked = {*await tx.column(Q.ack_messages, account=account, ids=ids)}
    tx.count_outcomes(LANE.name, "done", len(acked))
    return acked


async def nack_messages(tx: Tx, account: UUID, ids: Sequence[UUID]) -> set[UUID]:
    """Return the account's claimed messages among `ids` to its queue; returns their ids."""
    returned = {*await tx.column(Q.nack_messages, account=account, ids=ids)}
    if returned:
        tx.notify(Channel.MESSAGES, str(account))
    return returned


async def queue_unreceived(tx: Tx, account: UUID, holder: str, received: UUID) -> None:
    """Return messages that were delivered to this poller after the message it received last, to keep their order."""
    if await tx.run(Q.queue_unreceived, account=account, holder=holder, received=received):
        tx.notify(Channel.MESSAGES, str(account))


async def extend_message_leases(tx: Tx, account: UUID, ids: Sequence[UUID], hold: timedelta) -> set[UUID]:
    """Extend the leases that the account still holds among `ids`; returns their ids."""
    return {*await tx.column(Q.extend_message_leases, account=account, ids=ids, hold=hold)}
