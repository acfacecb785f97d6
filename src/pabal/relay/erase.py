"""Erase: leave nothing of a person behind."""

from dataclasses import asdict, dataclass

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, NotFound
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.relay import sessions
from pabal.relay.alias import alias
from pabal.relay.conversations import held, name_of
from pabal.relay.news import Kind, tell

Q = beside(__file__)


@dataclass(frozen=True, slots=True)
class Holdings:
    """How many rows hold something of a conversation. `others`: its own row, codes, limits, what else is small."""

    messages: int
    replies: int
    events: int
    dead_letters: int
    others: int

    @property
    def rows(self) -> int:
        return self.messages + self.replies + self.events + self.dead_letters + self.others


async def holdings(tx: Tx, key: str) -> Holdings:
    """What erasing it would take away."""
    found = await tx.maybe(Holdings, Q.holdings, conversation=key)
    if found is None:
        raise NotFound("there is no such conversation")
    return found


async def erase(tx: Tx, key: str, by: Actor) -> Holdings:
    """Take away everything the hub has of a conversation, with whichever accounts it was paired; what that was.

    For the person themselves, or an operator on their behalf. The audit log keeps what was done, under the
    conversation's alias. Open streams are told, by a note with the key in it that is gone in minutes.
    """
    before = await held(tx, key)
    if before.state == "BLOCKED":
        raise Conflict("the conversation is blocked: erased, it could pair again; unblock it first")
    gone = await holdings(tx, key)
    messages = await tx.column(Q.hold_messages, conversation=key)
    await tx.column(Q.hold_replies, messages=messages)
    await tx.run(Q.messages, messages=messages)
    for query in (Q.events, Q.dead_letters, Q.codes, Q.sessions, Q.news, Q.limits, Q.conversation):
        await tx.run(query, conversation=key)
    if before.state == "PAIRED" and before.account_id is not None:
        await sessions.follow(tx, [before.account_id])
        await tell(tx, Kind.UNPAIRED, account=before.account_id, conversationKey=key, reason="erased")
    elif before.state == "PENDING" and before.account_id is not None:
        await sessions.give_up(tx, [before.account_id])
    await did(tx, by, "conversation.erased", alias(key), account=name_of(before), **asdict(gone))
    return gone
