"""Consumers that claim with plain SQL: they set `status = 'processing'` themselves and have no lease.

The specification's columns are their lease: an event that stays in `processing` longer than the setting
`plain_claim_life` is due again, as if its consumer had crashed.
"""

from datetime import timedelta

from pabal.core.log import get_logger
from pabal.db.doorbell.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)
log = get_logger()


async def return_plain_claims(tx: Tx, hold: timedelta, batch: int) -> int:
    """Make events due again that plain SQL claimed more than `hold` ago; return how many."""
    await tx.run(Q.forget_ended_plain_claims)
    returned = await tx.run(Q.return_plain_claims, hold=hold, batch=batch)
    if returned:
        log.warning("plain SQL claims expired", events=returned)
        tx.notify(Channel.EVENTS)
    return returned
