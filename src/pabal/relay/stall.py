"""Stall: a callback about to die unanswered is spent on a few words of the hub's own. Nobody is met by silence."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from pabal.core.errors import PabalError
from pabal.core.log import get_logger
from pabal.db.doorbell import happens
from pabal.db.pool import Database
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.relay.callback import Callbacks, Spent
from pabal.relay.late import in_front, written
from pabal.relay.receive import CALLBACK_LIFE
from pabal.relay.response import MOST_OUTPUTS
from pabal.relay.skill import said
from pabal.relay.texts import Texts

Q = beside(__file__)
log = get_logger()

LOOK = timedelta(seconds=1)
BATCH = 100
"""Callbacks taken at once: more than a look finds but on the worst of days, and each is a connection."""


@dataclass(frozen=True, slots=True)
class Dying:
    """A callback taken before it died. `over` says why its message will not be answered at all."""

    id: UUID
    message_id: UUID
    account_id: UUID
    fence: UUID
    callback_url: str = field(repr=False)
    over: str | None
    late: list[dict[str, Any]] | None = field(repr=False)

    @property
    def spent(self) -> Spent:
        return Spent(self.id, self.message_id, self.account_id, self.fence, self.callback_url, self.late or [])


async def take(tx: Tx, after: timedelta, batch: int = BATCH) -> list[Dying]:
    """Take callbacks that nobody has answered `after` their message came, and that still live."""
    return await tx.all(Dying, Q.take, left=CALLBACK_LIFE - after, batch=batch, room=MOST_OUTPUTS - 1)


def words(dying: Dying, texts: Texts) -> bytes:
    """What the user is told: what came too late, and that there is more to come, or that there is not."""
    text = {
        None: texts.still_working,
        "queue_life": texts.expired,
        "blocked": texts.blocked,
        "disabled": texts.disabled,
    }.get(dying.over, texts.unpaired)
    return written(in_front(dying.late or [], said(text)))


class Stall:
    """Looks each second, beside however many others, until it is told to stop."""

    def __init__(self, name: str, db: Database, callbacks: Callbacks, texts: Texts, after: timedelta) -> None:
        self.name = name
        self._db = db
        self._callbacks = callbacks
        self._texts = texts
        self._after = after
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Look, post, settle. Posting waits for nobody's answer but its own; stopping waits for all of them."""
        async with asyncio.TaskGroup() as posts:
            while not self._stopping.is_set():
                found = await self._look()
                for dying in found:
                    posts.create_task(self._post(dying))
                if len(found) < BATCH:
                    await happens(self._stopping, LOOK)

    def stop(self) -> None:
        self._stopping.set()

    async def _look(self) -> Sequence[Dying]:
        try:
            async with self._db.autocommit() as tx:
                return await take(tx, self._after)
        except PabalError as error:  # the next look is a second away
            log.warning("stall waits", why=str(error))
            return ()

    async def _post(self, dying: Dying) -> None:
        try:
            await self._callbacks.send(dying.spent, words(dying, self._texts))
        except Exception:  # one that fails in a way nobody thought of must not end the others
            log.exception("stall failed", message=str(dying.message_id))
