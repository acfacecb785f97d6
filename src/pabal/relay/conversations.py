"""Conversations: who is connected to whose bot, and everything that ends or resumes it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from pabal.audit.pseudonym import conversation_pseudonym
from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.core.secrets import decode_base64url, encode_base64url
from pabal.db.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.delivery.stream import ControlEventKind, send_control_event
from pabal.relay.metrics import RelayMetrics
from pabal.relay.pairing.sessions import revoke_abandoned_sessions, sync_sessions_with_pairings

Q = load_queries(__file__)

CancelReason = Literal["unpaired", "replaced", "blocked", "disabled"]


async def cancel_messages(tx: Tx, account: UUID, reason: CancelReason, *, conversation: str | None = None) -> int:
    """End an account's open messages, or those of one conversation; how many.

    Whoever calls holds the conversation's row, or the account's: with it, this statement sees every message that was
    put before, and none comes after.
    """
    return await tx.run(Q.cancel_messages, account=account, reason=reason, conversation=conversation)


APPROVAL_TIMEOUT = timedelta(minutes=30)
"""How long an owner's approval is awaited."""
INACTIVE_CONVERSATION_RETENTION = timedelta(days=30)
"""How long somebody who is connected to nobody is remembered."""

ConversationState = Literal["UNPAIRED", "PENDING", "PAIRED", "BLOCKED"]
BLOCKED_BY_OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Conversation:
    """One Kakao user on one channel, and the account they are connected to, wait for or are blocked by."""

    conversation_key: str
    plusfriend_user_key: str
    account_id: UUID | None
    state: ConversationState
    paired_at: datetime | None
    last_seen_at: datetime | None
    blocked_by: str | None


async def list_conversations(
    tx: Tx, *, account: UUID | None = None, after: str | None = None, limit: int = 50
) -> list[Conversation]:
    """Conversations by their keys: one account's, or for an operator everybody's; `after` is where a page ended."""
    if account is None:
        return await tx.all(Conversation, Q.list_all_conversations, after=after, limit=limit)
    return await tx.all(Conversation, Q.list_account_conversations, account=account, after=after, limit=limit)


async def lock_conversation(tx: Tx, key: str, account: UUID | None = None) -> Conversation:
    """The conversation, which nobody changes meanwhile; an account's own, or for an operator anybody's."""
    found = await tx.maybe(Conversation, Q.lock_conversation, conversation=key, account=account)
    if found is None:
        raise NotFound("there is no such conversation")
    return found


async def unpair_conversation(tx: Tx, key: str, actor: Actor, account: UUID | None = None) -> Conversation:
    """End a pairing, or the wait for one; what was not answered yet is cancelled."""
    before = await lock_conversation(tx, key, account)
    if before.state == "BLOCKED":
        raise Conflict("the conversation is blocked; unblock it first")
    after = await unpair_locked_conversation(tx, before)
    if before.account_id:
        await record_action(tx, actor, "pairing.unpaired", conversation_pseudonym(key), account=str(before.account_id))
    return after


async def unpair_locked_conversation(tx: Tx, conversation: Conversation) -> Conversation:
    """Let a conversation that is held go from its account; one that has none stays as it is."""
    if conversation.account_id is None:
        return conversation
    after = await _set_conversation_state(tx, conversation, "UNPAIRED")
    await clean_up_ended_pairing(tx, conversation, "unpaired")
    return after


async def block_conversation(tx: Tx, key: str, actor: Actor, account: UUID | None = None) -> Conversation:
    """Take nothing more from this user, until somebody unblocks them. An operator's block is the stronger."""
    before = await lock_conversation(tx, key, account)
    blocker = BLOCKED_BY_OPERATOR if account is None else "owner"
    if before.state == "BLOCKED" and before.blocked_by in {blocker, BLOCKED_BY_OPERATOR}:
        return before
    after = await _set_conversation_state(tx, before, "BLOCKED", blocked_by=blocker)
    if before.state != "BLOCKED":
        await clean_up_ended_pairing(tx, before, "blocked")
    await record_action(tx, actor, "conversation.blocked", conversation_pseudonym(key), account=account_id_text(before))
    return after


async def unblock_conversation(tx: Tx, key: str, actor: Actor, account: UUID | None = None) -> Conversation:
    """Undo a block: who was connected is connected again, to the same account; everybody else may pair."""
    before = await lock_conversation(tx, key, account)
    if before.state != "BLOCKED":
        return before
    if account is not None and before.blocked_by == BLOCKED_BY_OPERATOR:
        raise Conflict("an operator blocked this conversation")
    back = before.account_id is not None and before.paired_at is not None
    after = await _set_conversation_state(tx, before, "PAIRED" if back else "UNPAIRED")
    if back:
        await announce_pairing(tx, after)
    await record_action(
        tx, actor, "conversation.unblocked", conversation_pseudonym(key), account=account_id_text(before)
    )
    return after


async def approve_pairing(
    tx: Tx, key: str, actor: Actor, metrics: RelayMetrics, account: UUID | None = None
) -> Conversation:
    """Let in who has redeemed a code and waits for it, for half an hour, whether or not the chore has come by since."""
    before = await lock_conversation(tx, key, account)
    if before.state == "PAIRED":
        return before
    _require_pending(before)
    if await tx.value(Q.is_approval_overdue, conversation=key, account=before.account_id, approval=APPROVAL_TIMEOUT):
        raise Conflict("it was not approved within half an hour; the user may ask again with a new code")
    after = await _set_conversation_state(tx, before, "PAIRED")
    await record_action(tx, actor, "pairing.approved", conversation_pseudonym(key), account=account_id_text(before))
    await announce_pairing(tx, after)
    await publish_pairing_verified(tx, after, metrics)
    return after


async def deny_pairing(tx: Tx, key: str, actor: Actor, account: UUID | None = None) -> Conversation:
    """Send away who has redeemed a code and waits for approval. The code is spent."""
    before = await lock_conversation(tx, key, account)
    _require_pending(before)
    await record_action(tx, actor, "pairing.denied", conversation_pseudonym(key), account=account_id_text(before))
    after = await _set_conversation_state(tx, before, "UNPAIRED")
    await clean_up_ended_pairing(tx, before, "unpaired")
    return after


async def expire_pending_pairings(tx: Tx, batch: int) -> int:
    """Take back what no owner approved in half an hour, and give up the sessions that waited for it."""
    lapsed = await tx.run(Q.expire_pending_pairings, approval=APPROVAL_TIMEOUT, batch=batch)
    await revoke_abandoned_sessions(tx)
    return lapsed


async def purge_inactive_conversations(tx: Tx, batch: int) -> int:
    """Forget who is connected to nobody, has nothing kept here, and has not written for a month. A block stays."""
    return await tx.run(Q.purge_inactive_conversations, keep=INACTIVE_CONVERSATION_RETENTION, batch=batch)


async def clean_up_ended_pairing(tx: Tx, conversation: Conversation, reason: CancelReason) -> None:
    """See to everything that hung on a pairing that has just ended: its messages, its sessions, its open streams.

    Where it was only waited for, nothing hung on it but a session that now waits in vain.
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
    """Tell a new pairing to the account's streams, and to a session that waited for its first user by its name."""
    account = conversation.account_id
    assert account is not None
    waited = await tx.value(Q.find_waiting_session, account=account)
    await sync_sessions_with_pairings(tx, [account])
    await send_control_event(
        tx,
        ControlEventKind.PAIRED,
        account=account,
        session=waited,
        kakaoUserId=conversation.plusfriend_user_key,
        conversationKey=conversation.conversation_key,
        pairedAt=conversation.paired_at,
        accountId=account,
    )


async def publish_pairing_verified(tx: Tx, conversation: Conversation, metrics: RelayMetrics) -> None:
    """Let the rest of the hub know that somebody is connected."""
    await tx.value(
        Q.publish_pairing_verified, account=conversation.account_id, conversation=conversation.conversation_key
    )
    tx.notify(Channel.EVENTS)
    metrics.pairings_verified.add(1)


async def _set_conversation_state(
    tx: Tx, before: Conversation, state: ConversationState, blocked_by: str | None = None
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
        raise Conflict(f"nobody waits for approval here: the conversation is {conversation.state}")


def account_id_text(conversation: Conversation) -> str | None:
    return str(conversation.account_id) if conversation.account_id else None


def encode_conversation_cursor(conversation: Conversation) -> str:
    """The cursor of a page of conversations that ends with this one."""
    return encode_base64url(conversation.conversation_key.encode())


def decode_conversation_cursor(cursor: str | None) -> str | None:
    """The key of the last conversation on the previous page."""
    if cursor is None:
        return None
    try:
        key = decode_base64url(cursor).decode()
    except ValueError:
        raise Invalid.of_field("cursor", "is not one this list gave") from None
    if "\0" in key:
        raise Invalid.of_field("cursor", "is not one this list gave")
    return key
