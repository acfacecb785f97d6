"""Privacy: count, erase and export everything the hub stores about a conversation."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pabal.audit.pseudonym import conversation_pseudonym
from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, DecryptionError
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.callback_url import strip_callback_url
from pabal.relay.conversations import account_id_text, conversation_not_found, lock_conversation
from pabal.relay.delivery.control_events import ControlEventKind, send_control_event
from pabal.relay.messages import EncryptedPayload, decrypt_responses
from pabal.relay.pairing.sessions import revoke_abandoned_sessions, sync_sessions_with_pairings

if TYPE_CHECKING:
    from pabal.relay.encryption.message_cipher import MessageCipher

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class ConversationDataCounts:
    """How many rows belong to a conversation. `others`: its own row, codes, limits and other small rows."""

    messages: int
    replies: int
    events: int
    dead_letters: int
    others: int

    @property
    def total(self) -> int:
        return self.messages + self.replies + self.events + self.dead_letters + self.others


async def count_conversation_data(tx: Tx, key: str) -> ConversationDataCounts:
    """Count what erasing the conversation would delete."""
    counts = await tx.maybe(ConversationDataCounts, Q.count_conversation_data, conversation=key)
    if counts is None:
        raise conversation_not_found()
    return counts


async def erase_conversation(tx: Tx, key: str, actor: Actor) -> ConversationDataCounts:
    """Delete everything the hub stores about a conversation, of all accounts; returns what was deleted.

    For the user, or for an operator on their behalf. The audit log keeps the action under the conversation's pseudonym.
    Open streams get a control event with the key, which is purged after minutes.
    """
    conversation = await lock_conversation(tx, key)
    if conversation.state == "BLOCKED":
        raise Conflict("The conversation is blocked, and erasing it would lift the block. Unblock it first")
    counts = await count_conversation_data(tx, key)
    message_ids = await tx.column(Q.lock_messages, conversation=key)
    await tx.column(Q.lock_replies, messages=message_ids)
    await tx.run(Q.delete_messages, messages=message_ids)
    for query in (
        Q.delete_queued_events,
        Q.delete_events,
        Q.delete_dead_letters,
        Q.unlink_pairing_codes,
        Q.unlink_sessions,
        Q.delete_control_events,
        Q.delete_limits,
        Q.delete_conversation,
    ):
        await tx.run(query, conversation=key)
    if conversation.state == "PAIRED" and conversation.account_id is not None:
        await sync_sessions_with_pairings(tx, [conversation.account_id])
        await send_control_event(
            tx, ControlEventKind.UNPAIRED, account=conversation.account_id, conversationKey=key, reason="erased"
        )
    elif conversation.state == "PENDING" and conversation.account_id is not None:
        await revoke_abandoned_sessions(tx, [conversation.account_id])
    await record_action(
        tx,
        actor,
        "conversation.erased",
        conversation_pseudonym(key),
        account=account_id_text(conversation),
        **asdict(counts),
    )
    return counts


async def export_conversation(tx: Tx, key: str, actor: Actor, cipher: "MessageCipher | None" = None) -> dict[str, Any]:
    """Export the conversation with its messages, replies and pairings, of all accounts.

    For the user, or for an operator on their behalf. The export is recorded in the audit log. Encrypted texts are
    exported decrypted, as far as their keys can be read.
    """
    conversation = await tx.value(Q.export_conversation, conversation=key)
    if conversation is None:
        raise conversation_not_found()
    document: dict[str, Any] = {
        "exported_at": await tx.value(Q.export_time),
        "conversation": conversation,
        "messages": await decrypt_exported_messages(tx, await tx.column(Q.export_messages, conversation=key), cipher),
        "pairings": await tx.column(Q.export_pairings, conversation=key),
        "wrong_codes": await tx.value(Q.export_wrong_codes, conversation=key),
        "commands": await tx.column(Q.export_commands, conversation=key),
        "pages": await tx.column(Q.export_page_codes, conversation=key),
        "events": await tx.column(Q.export_events, conversation=key),
        "deeds": await tx.column(Q.export_audit_entries, pseudonym=conversation_pseudonym(key)),
    }
    await record_action(
        tx, actor, "conversation.exported", conversation_pseudonym(key), account=conversation["account_id"]
    )
    return document


async def decrypt_exported_messages(
    tx: Tx, messages: list[dict[str, Any]], cipher: "MessageCipher | None"
) -> list[dict[str, Any]]:
    """The exported rows with their texts decrypted. What cannot be decrypted stays as it is stored."""
    if cipher is None:
        return messages
    rows = [
        EncryptedPayload(UUID(message["id"]), UUID(message["account_id"]), message["kakao_payload"])
        for message in messages
    ]
    payloads = await cipher.decrypt_payloads(tx, rows)
    for message in messages:
        if texts := payloads.get(UUID(message["id"])):
            message["kakao_payload"], message["normalized"] = strip_callback_url(texts[0]), texts[1]
        try:
            message["answer"] = await cipher.decrypt_first_response(tx, UUID(message["id"]), message["answer"])
        except DecryptionError:
            message["answer"] = None
        replies = [reply for reply in (message["reply"], *message["further_replies"]) if reply]
        responses = await decrypt_responses(tx, {UUID(reply["id"]): reply["response"] for reply in replies}, cipher)
        for reply in replies:
            reply["response"] = responses[UUID(reply["id"])]
    return messages
