"""Erase: leave nothing of a person behind."""

from dataclasses import asdict, dataclass
from typing import Any

from pabal.audit.pseudonym import conversation_pseudonym
from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, NotFound
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.conversations import account_id_text, lock_conversation
from pabal.relay.delivery.stream import ControlEventKind, send_control_event
from pabal.relay.pairing.sessions import revoke_abandoned_sessions, sync_sessions_with_pairings

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class ConversationDataCounts:
    """How many rows hold something of a conversation. `others`: its own row, codes, limits, what else is small."""

    messages: int
    replies: int
    events: int
    dead_letters: int
    others: int

    @property
    def total(self) -> int:
        return self.messages + self.replies + self.events + self.dead_letters + self.others


async def count_conversation_data(tx: Tx, key: str) -> ConversationDataCounts:
    """What erasing it would take away."""
    found = await tx.maybe(ConversationDataCounts, Q.count_conversation_data, conversation=key)
    if found is None:
        raise NotFound("there is no such conversation")
    return found


async def erase_conversation(tx: Tx, key: str, actor: Actor) -> ConversationDataCounts:
    """Take away everything the hub has of a conversation, with whichever accounts it was paired; what that was.

    For the person themselves, or an operator on their behalf. The audit log keeps what was done, under the
    conversation's alias. Open streams are told, by a note with the key in it that is gone in minutes.
    """
    before = await lock_conversation(tx, key)
    if before.state == "BLOCKED":
        raise Conflict("the conversation is blocked: erased, it could pair again; unblock it first")
    gone = await count_conversation_data(tx, key)
    messages = await tx.column(Q.lock_messages, conversation=key)
    await tx.column(Q.lock_replies, messages=messages)
    await tx.run(Q.delete_messages, messages=messages)
    for query in (
        Q.delete_events,
        Q.delete_dead_letters,
        Q.unlink_pairing_codes,
        Q.unlink_sessions,
        Q.delete_control_events,
        Q.delete_limits,
        Q.delete_conversation,
    ):
        await tx.run(query, conversation=key)
    if before.state == "PAIRED" and before.account_id is not None:
        await sync_sessions_with_pairings(tx, [before.account_id])
        await send_control_event(
            tx, ControlEventKind.UNPAIRED, account=before.account_id, conversationKey=key, reason="erased"
        )
    elif before.state == "PENDING" and before.account_id is not None:
        await revoke_abandoned_sessions(tx, [before.account_id])
    await record_action(
        tx, actor, "conversation.erased", conversation_pseudonym(key), account=account_id_text(before), **asdict(gone)
    )
    return gone


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
