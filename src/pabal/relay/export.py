"""Export: everything the hub has of one conversation, in one document."""

from typing import Any

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import NotFound
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.alias import conversation_pseudonym

Q = load_queries(__file__)


async def export_conversation(tx: Tx, key: str, actor: Actor) -> dict[str, Any]:
    """The conversation, its messages with their replies, and its pairings, with whichever accounts.

    For the person themselves, or an operator on their behalf. That somebody took it is written down.
    """
    conversation = await tx.value(Q.export_conversation, conversation=key)
    if conversation is None:
        raise NotFound("there is no such conversation")
    document: dict[str, Any] = {
        "exported_at": await tx.value(Q.export_time),
        "conversation": conversation,
        "messages": await tx.column(Q.export_messages, conversation=key),
        "pairings": await tx.column(Q.export_pairings, conversation=key),
        "wrong_codes": await tx.value(Q.export_wrong_codes, conversation=key),
        "commands": await tx.column(Q.export_commands, conversation=key),
        "pages": await tx.column(Q.export_page_codes, conversation=key),
        "events": await tx.column(Q.export_events, conversation=key),
        "deeds": await tx.column(Q.export_audit_entries, alias=conversation_pseudonym(key)),
    }
    await record_action(
        tx, actor, "conversation.exported", conversation_pseudonym(key), account=conversation["account_id"]
    )
    return document
