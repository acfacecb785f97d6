"""A message's story, from the webhook to the callback, under whatever name somebody has of it."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pabal.core.ids import spanned
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.relay.messages import Chosen, Message, Reply, every, show
from pabal.relay.moments import Carried, Moment, told

Q = beside(__file__)

FEW = 6
RECENT = 20
"""Messages of a conversation that are told of, the newest."""


@dataclass(frozen=True, slots=True)
class Named:
    """Something whose id was meant: its kind, and the message it is about."""

    named: UUID
    message: UUID
    kind: str


@dataclass(frozen=True, slots=True)
class Story:
    """What became of one message, or how the newest of a conversation stand. `now` is the database's time."""

    about: str
    kind: str
    now: datetime
    messages: list[Message]
    reply: Reply | None
    moments: list[Moment]


async def whatever_begins(tx: Tx, name: str, account: UUID | None = None) -> dict[UUID, Named]:
    """Every message and reply whose id begins so; nothing for what cannot be the beginning of an id."""
    span = spanned(name)
    if span is None:
        return {}
    low, high = span
    found = await tx.all(Named, Q.named, low=low, high=high, account=account, limit=FEW)
    return {each.named: each for each in found}


async def story(tx: Tx, one: Named, account: UUID | None = None) -> Story:
    """Tell the story of a message, or of the message a reply answers."""
    whole = await show(tx, one.message, account)
    carried = await tx.all(Carried, Q.carried, id=one.message, account=account)
    now = await tx.value(Q.now)
    moments = told(whole.message, whole.reply, carried, now)
    return Story(str(one.named), one.kind, now, [whole.message], whole.reply, moments)


async def recent(tx: Tx, key: str, account: UUID | None = None) -> Story | None:
    """The newest messages of a conversation; None where there is no such conversation."""
    if not await tx.value(Q.there, conversation=key, account=account):
        return None
    page = await every(tx, Chosen(account, key), RECENT)
    return Story(key, "conversation", await tx.value(Q.now), page.items, None, [])
