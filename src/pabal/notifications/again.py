"""Again: a notice that failed is asked for once more, when whatever was in its way is mended.

It becomes a request of its own: three attempts are all that one has, and Discord tells a repeat by the request. The
first stays as it ended.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, NotFound
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.notifications.catalogue import Catalogue
from pabal.notifications.plan import Channel
from pabal.notifications.request import Asked, Draft, ask

Q = beside(__file__)


@dataclass(frozen=True, slots=True)
class Ended:
    """What a request asked for that may be asked for again."""

    recipient_type: str
    recipient_id: str
    guild_id: UUID | None
    template_key: str
    payload: dict[str, Any]
    state: str
    locale: str | None
    expires_at: datetime | None
    incident: str | None
    event_id: UUID | None
    source_service: str | None
    correlation_id: str | None
    is_late: bool


@dataclass(frozen=True, slots=True)
class Repeat:
    """A request that asked for a failed one again, and how it stands."""

    id: UUID
    state: str

    @property
    def stands(self) -> bool:
        """Whether it waits or has arrived; one that came to nothing is in nobody's way."""
        return self.state in {"pending", "sent"}


async def again(tx: Tx, catalogue: Catalogue, row: UUID, by: Actor) -> Asked:
    """Ask for the same as a request that failed, unless that waits or has arrived already, or its time is over.

    What the recipient wants and whether the address takes anything is looked at as with every request, so it may be
    suppressed at once. The rule that made the first did not make this one: whoever asks did.
    """
    ended = await tx.maybe(Ended, Q.hold, id=row)
    if ended is None:
        raise NotFound(f"there is no notification {row}")
    if ended.state != "failed":
        raise Conflict(f"the notification cannot be sent again: it is {ended.state}")
    if ended.is_late:
        raise Conflict("the notification cannot be sent again: its time is over")
    for each in await repeats(tx, row):
        if each.stands:
            raise Conflict(f"the notification was sent again already, as {each.id}")
    [asked] = await ask(tx, [draft_of(row, ended, catalogue)], by)
    await did(tx, by, "notification.again", str(row), template=ended.template_key, again=str(asked.id))
    return asked


async def repeats(tx: Tx, row: UUID) -> list[Repeat]:
    """The requests that asked for this one again, the first first."""
    return await tx.all(Repeat, Q.repeats, id=row)


def draft_of(row: UUID, ended: Ended, catalogue: Catalogue) -> Draft:
    return Draft(
        channel=Channel(ended.recipient_type),
        recipient=ended.recipient_id,
        template=catalogue.get(ended.template_key),
        payload=ended.payload,
        guild=ended.guild_id,
        locale=ended.locale,
        expires_at=ended.expires_at,
        incident=ended.incident,
        event=ended.event_id,
        source=ended.source_service,
        correlation_id=ended.correlation_id,
        again_of=row,
    )
