"""Export: everything the hub has of one conversation, in one document."""

from typing import Any

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.core.errors import NotFound
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.relay.alias import alias

Q = beside(__file__)


async def export(tx: Tx, key: str, by: Actor) -> dict[str, Any]:
    """The conversation, its messages with their replies, and its pairings, with whichever accounts.

    For the person themselves, or an operator on their behalf. That somebody took it is written down.
    """
    conversation = await tx.value(Q.conversation, conversation=key)
    if conversation is None:
        raise NotFound("there is no such conversation")
    document: dict[str, Any] = {
        "exported_at": await tx.value(Q.now),
        "conversation": conversation,
        "messages": await tx.column(Q.messages, conversation=key),
        "pairings": await tx.column(Q.pairings, conversation=key),
        "wrong_codes": await tx.value(Q.failures, conversation=key),
        "commands": await tx.column(Q.commands, conversation=key),
        "pages": await tx.column(Q.pages, conversation=key),
        "events": await tx.column(Q.events, conversation=key),
        "deeds": await tx.column(Q.deeds, alias=alias(key)),
    }
    await did(tx, by, "conversation.exported", alias(key), account=conversation["account_id"])
    return document
