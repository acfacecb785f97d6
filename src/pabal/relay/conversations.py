"""Conversations: a user's pairing with an account, and everything that ends or resumes it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from pabal.audit.pseudonym import conversation_pseudonym
from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.core.secrets import decode_base64url, encode_base64url
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.delivery.control_events import ControlEventKind, send_control_event
from pabal.relay.metrics import RelayMetrics
from pabal.relay.pairing.sessions import revoke_abandoned_sessions, sync_sessions_with_pairings

Q = load_queries(__file__)

APPROVAL_TIMEOUT = timedelta(minutes=30)
"""How long a pairing waits for the owner's approval."""
UNPAIRED_RETENTION = timedelta(hours=1)
"""How long an unpaired conversation is kept after its first message. The next message creates it again."""

ConversationState = Literal["UNPAIRED", "PENDING", "PAIRED", "BLOCKED"]
BlockedBy = Literal["owner", "operator"]
CancelReason = Literal["unpaired", "replaced", "blocked", "disabled"]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One Kakao user on one channel, and the account they are paired with, wait for or are blocked by."""

    conversation_key: str
    plusfriend_user_key: str
    account_id: UUID | None
    state: ConversationState
    paired_at: datetime | None
    last_seen_at: datetime | None
    blocked_by: BlockedBy | None


async def list_conversations(
    tx: Tx, *, account: UUID | None = None, after: str | None = None, limit: int = 50
) -> list[Conversation]:
    """Conversations in the order of their keys, after `after`. Without an account: of all, for operators only."""
    if account is None:
        return await tx.all(Conversation, Q.list_all_conversations, after=after, limit=limit)
    return await tx.all(Conversation, Q.list_account_conversations, account=account, after=after, limit=limit)


async def lock_conversation(tx: Tx, key: str, account: UUID | None = None) -> Conversation:
    """The conversation, with its row locked. Without an account: of any account, for operators only."""
    conversation = await tx.maybe(Conversation, Q.lock_conversation, conversation=key, account=account)
    if conversation is None:
        raise conversation_not_found()
    return conversation


async def unpair_conversation(tx: Tx, key: str, actor: Actor, account: UUID | None = None) -> Conversation:
    """End a pairing, or the wait for one. Open messages are cancelled."""
    before = await lock_conversation(tx, key, account)
    if before.state == "BLOCKED":
        raise Conflict("The conversation is blocked. Unblock it first")
    after = await unpair_locked_conversation(tx, before)
    if before.account_id:
        await record_action(tx, actor, "pairing.unpaired", conversation_pseudonym(key), account=str(before.account_id))
    return after


async def unpair_locked_conversation(tx: Tx, conversation: Conversation) -> Conversation:
    """Unpair a conversation whose row is locked. Without an account, nothing changes."""
    if conversation.account_id is None:
        return conversation
    after = await _set_conversation_state(tx, conversation, "UNPAIRED")
    await clean_up_ended_pairing(tx, conversation, "unpaired")
    return after


async def block_conversation(tx: Tx, key: str, actor: Actor, account: UUID | None = None) -> Conversation:
    """Refuse the user's messages until the conversation is unblocked. An operator's block replaces an owner's."""
    before = await lock_conversation(tx, key, account)
    blocked_by: BlockedBy = "operator" if account is None else "owner"
    if before.state == "BLOCKED" and before.blocked_by in {blocked_by, "operator"}:
        return before
    after = await _set_conversation_state(tx, before, "BLOCKED", blocked_by=blocked_by)
    if before.state != "BLOCKED":
        await clean_up_ended_pairing(tx, before, "blocked")
    await record_action(tx, actor, "conversation.blocked", conversation_pseudonym(key), account=account_id_text(before))
    return after


async def unblock_conversation(tx: Tx, key: str, actor: Actor, account: UUID | None = None) -> Conversation:
    """Undo a block. A conversation that was paired is paired again with the same account; any other may pair."""
    before = await lock_conversation(tx, key, account)
    if before.state != "BLOCKED":
        return before
    if account is not None and before.blocked_by == "operator":
        raise Conflict("An operator blocked this conversation")
    was_paired = before.account_id is not None and before.paired_at is not None
    after = await _set_conversation_state(tx, before, "PAIRED" if was_paired else "UNPAIRED")
    if was_paired:
        await announce_pairing(tx, after)
    await record_action(
        tx, actor, "conversation.unblocked", conversation_pseudonym(key), account=account_id_text(before)
    )
    return after


async def approve_pairing(
    tx: Tx, key: str, actor: Actor, metrics: RelayMetrics, account: UUID | None = None
) -> Conversation:
    """Approve a pairing. After `APPROVAL_TIMEOUT` it is refused, even if the chore has not expired it yet."""
    before = await lock_conversation(tx, key, account)
    if before.state == "PAIRED":
        return before
    _require_pending(before)
    if await tx.value(Q.is_approval_overdue, conversation=key, account=before.account_id, approval=APPROVAL_TIMEOUT):
        raise Conflict("The approval timed out after half an hour. The user can try again with a new code")
    after = await _set_conversation_state(tx, before, "PAIRED")
    await record_action(tx, actor, "pairing.approved", conversation_pseudonym(key), account=account_id_text(before))
    await announce_pairing(tx, after)
    await note_pairing_verified(tx, after, metrics)
    return after


async def deny_pairing(tx: Tx, key: str, actor: Actor, account: UUID | None = None) -> Conversation:
    """Deny a pairing that waits for approval. The code stays used."""
    before = await lock_conversation(tx, key, account)
    _require_pending(before)
    await record_action(tx, actor, "pairing.denied", conversation_pseudonym(key), account=account_id_text(before))
    after = await _set_conversation_state(tx, before, "UNPAIRED")
    await clean_up_ended_pairing(tx, before, "unpaired")
    return after


async def expire_pending_pairings(tx: Tx, batch: int) -> int:
    """Unpair conversations that were not approved in time, and revoke the sessions that waited for them."""
    expired = await tx.run(Q.expire_pending_pairings, approval=APPROVAL_TIMEOUT, batch=batch)
    await revoke_abandoned_sessions(tx)
    return expired


async def purge_unpaired_conversations(tx: Tx, batch: int) -> int:
    """Delete conversations without messages an hour after they began or were unpaired.

    Blocked, pending and locked-out ones stay.
    """
    return await tx.run(Q.purge_unpaired_conversations, keep=UNPAIRED_RETENTION, batch=batch)


async def cancel_messages(tx: Tx, account: UUID, reason: CancelReason, *, conversation: str | None = None) -> int:
    """End an account's open messages, or those of one conversation; returns how many.

    The caller has locked the conversation's row, or the account's: this statement then sees every message that was
    queued before, and none can be queued after.
    """
    return await tx.run(Q.cancel_messages, account=account, reason=reason, conversation=conversation)


async def clean_up_ended_pairing(tx: Tx, conversation: Conversation, reason: CancelReason) -> None:
    """Clean up after a pairing that has just ended: cancel its messages, update its sessions, tell its open streams.

    A pairing that was still pending only leaves a session that waits in vain.
    """
    if conversation.account_id is None or conversation.state not in {"PAIRED", "PENDING"}:
        return
    key, account = conversation.conversation_key, conversation.account_id
    if conversation.state == "PENDING":
        await revoke_abandoned_sessions(tx, [account])
        return
    await cancel_messages(tx, account, reason, conversation=key)
    await sync_sessions_with_pairings(tx, [account])
    await send_control_event(tx, ControlEventKind.UNPAIRED, account=account, conversationKey=key, reason=reason)


async def announce_pairing(tx: Tx, conversation: Conversation) -> None:
    """Send a new pairing to the account's streams, and to the stream of a session that waited for its first user."""
    account = conversation.account_id
    assert account is not None
    waiting_session = await tx.value(Q.find_waiting_session, account=account)
    await sync_sessions_with_pairings(tx, [account])
    await send_control_event(
        tx,
        ControlEventKind.PAIRED,
        account=account,
        session=waiting_session,
        kakaoUserId=conversation.plusfriend_user_key,
        conversationKey=conversation.conversation_key,
        pairedAt=conversation.paired_at,
        accountId=account,
    )


async def note_pairing_verified(tx: Tx, conversation: Conversation, metrics: RelayMetrics) -> None:
    """Put the event `relay.pairing.verified` into the relay's outbox."""
    await tx.run(Q.note_pairing_verified, account=conversation.account_id, conversation=conversation.conversation_key)
    metrics.pairings_verified.add(1)


async def _set_conversation_state(
    tx: Tx, before: Conversation, state: ConversationState, blocked_by: BlockedBy | None = None
) -> Conversation:
    return await tx.one(
        Conversation,
        Q.set_conversation_state,
        conversation=before.conversation_key,
        account=before.account_id,
        state=state,
        blocked_by=blocked_by,
    )


def _require_pending(conversation: Conversation) -> None:
    if conversation.state != "PENDING":
        raise Conflict(f"The conversation does not wait for approval: it is {conversation.state}")


def conversation_not_found() -> NotFound:
    return NotFound("No such conversation")


def account_id_text(conversation: Conversation) -> str | None:
    return str(conversation.account_id) if conversation.account_id else None


def encode_conversation_cursor(conversation: Conversation) -> str:
    """The cursor of the page that ends with this conversation."""
    return encode_base64url(conversation.conversation_key.encode())


def decode_conversation_cursor(cursor: str | None) -> str | None:
    """The key of the last conversation on the previous page."""
    if cursor is None:
        return None
    try:
        key = decode_base64url(cursor).decode()
    except ValueError:
        raise Invalid.of_field("cursor", "is not a cursor of this list") from None
    if "\0" in key:
        raise Invalid.of_field("cursor", "is not a cursor of this list")
    return key
