"""Retention: delete events that ended long ago, in passes over the oldest events."""

from datetime import datetime

from pabal.db.tx import Tx
from pabal.events.consume.lane import LANE


class EventRetention:
    """Deletes events that ended more than `days` ago.

    A batch continues where the last one ended, so that old events that have not ended are read once per pass, not
    once per batch. A batch that is not full ends the pass.
    """

    def __init__(self, days: int) -> None:
        self._days = days
        self._after: datetime | None = None

    async def delete_batch(self, tx: Tx, batch: int) -> int:
        """Delete up to `batch` events; returns how many."""
        purged = await LANE.purge_after(tx, self._days, batch, self._after)
        self._after = purged.last_created_at if purged.count == batch else None
        return purged.count
