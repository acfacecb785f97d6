"""Conversations: who is connected to whose bot, and everything that ends or resumes it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, NotFound
from pabal.db.bells import Bell
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.relay import sessions
from pabal.relay.alias import alias
from pabal.relay.cancel import Reason, cancel
from pabal.relay.figures import Figures
from pabal.relay.news import Kind, tell

Q = beside(__file__)

APPROVAL = timedelta(minutes=30)
"""How long an owner's approval is awaited."""
SILENT = timedelta(days=30)
"""How long somebody who is connected to nobody is remembered."""

State = Literal["UNPAIRED", "PENDING", "PAIRED", "BLOCKED"]
OURS = "operator"


@dataclass(frozen=True, slots=True)
class Conversation:
    """One Kakao user on one channel, and the account they are connected to, wait for or are blocked by."""

    conversation_key: str
    plusfriend_user_key: str
    account_id: UUID | None
    state: State
    paired_at: datetime | None
    last_seen_at: datetime | None
    blocked_by: str | None


async def every(
    tx: Tx, *, account: UUID | None = None, after: str | None = None, limit: int = 50
) -> list[Conversation]:
    """Conversations by their keys: one account's, or for an operator everybody's; `after` is where a page ended."""
    if account is None:
        return await tx.all(Conversation, Q.everybodys, after=after, limit=limit)
    return await tx.all(Conversation, Q.owners, account=account, after=after, limit=limit)


async def held(tx: Tx, key: str, account: UUID | None = None) -> Conversation:
    """The conversation, which nobody changes meanwhile; an account's own, or for an operator anybody's."""
    found = await tx.maybe(Conversation, Q.hold, conversation=key, account=account)
    if found is None:
        raise NotFound("there is no such conversation")
    return found


async def unpair(tx: Tx, key: str, by: Actor, account: UUID | None = None) -> Conversation:
    """End a pairing, or the wait for one; what was not answered yet is cancelled."""
    before = await held(tx, key, account)
    if before.state == "BLOCKED":
        raise Conflict("the conversation is blocked; unblock it first")
    after = await leave(tx, before)
    if before.account_id:
        await did(tx, by, "pairing.unpaired", alias(key), account=str(before.account_id))
    return after


async def leave(tx: Tx, before: Conversation) -> Conversation:
    """Let a conversation that is held go from its account; one that has none stays as it is."""
    if before.account_id is None:
        return before
    after = await _become(tx, before, "UNPAIRED")
    await left(tx, before, "unpaired")
    return after


async def block(tx: Tx, key: str, by: Actor, account: UUID | None = None) -> Conversation:
    """Take nothing more from this user, until somebody unblocks them. An operator's block is the stronger."""
    before = await held(tx, key, account)
    blocker = OURS if account is None else "owner"
    if before.state == "BLOCKED" and before.blocked_by in {blocker, OURS}:
        return before
    after = await _become(tx, before, "BLOCKED", blocked_by=blocker)
    if before.state != "BLOCKED":
        await left(tx, before, "blocked")
    await did(tx, by, "conversation.blocked", alias(key), account=name_of(before))
    return after


async def unblock(tx: Tx, key: str, by: Actor, account: UUID | None = None) -> Conversation:
    """Undo a block: who was connected is connected again, to the same account; everybody else may pair."""
    before = await held(tx, key, account)
    if before.state != "BLOCKED":
        return before
    if account is not None and before.blocked_by == OURS:
        raise Conflict("an operator blocked this conversation")
    back = before.account_id is not None and before.paired_at is not None
    after = await _become(tx, before, "PAIRED" if back else "UNPAIRED")
    if back:
        await joined(tx, after)
    await did(tx, by, "conversation.unblocked", alias(key), account=name_of(before))
    return after


async def approve(tx: Tx, key: str, by: Actor, figures: Figures, account: UUID | None = None) -> Conversation:
    """Let in who has redeemed a code and waits for it, for half an hour, whether or not the chore has come by since."""
    before = await held(tx, key, account)
    if before.state == "PAIRED":
        return before
    _waits(before)
    if await tx.value(Q.is_late, conversation=key, account=before.account_id, approval=APPROVAL):
        raise Conflict("it was not approved within half an hour; the user may ask again with a new code")
    after = await _become(tx, before, "PAIRED")
    await did(tx, by, "pairing.approved", alias(key), account=name_of(before))
    await joined(tx, after)
    await verified(tx, after, figures)
    return after


async def deny(tx: Tx, key: str, by: Actor, account: UUID | None = None) -> Conversation:
    """Send away who has redeemed a code and waits for approval. The code is spent."""
    before = await held(tx, key, account)
    _waits(before)
    await did(tx, by, "pairing.denied", alias(key), account=name_of(before))
    after = await _become(tx, before, "UNPAIRED")
    await left(tx, before, "unpaired")
    return after


async def lapse(tx: Tx, batch: int) -> int:
    """Take back what no owner approved in half an hour, and give up the sessions that waited for it."""
    lapsed = await tx.run(Q.lapse, approval=APPROVAL, batch=batch)
    await sessions.give_up(tx)
    return lapsed


async def sweep(tx: Tx, batch: int) -> int:
    """Forget who is connected to nobody, has nothing kept here, and has not written for a month. A block stays."""
    return await tx.run(Q.sweep, keep=SILENT, batch=batch)


async def left(tx: Tx, before: Conversation, reason: Reason) -> None:
    """See to everything that hung on a pairing that has just ended: its messages, its sessions, its open streams.

    Where it was only waited for, nothing hung on it but a session that now waits in vain.
    """
    if before.account_id is None or before.state not in {"PAIRED", "PENDING"}:
        return
    key, account = before.conversation_key, before.account_id
    if before.state == "PENDING":
        await sessions.give_up(tx, [account])
        return
    await cancel(tx, account, reason, conversation=key)
    await sessions.follow(tx, [account])
    await tell(tx, Kind.UNPAIRED, account=account, conversationKey=key, reason=reason)


async def joined(tx: Tx, now: Conversation) -> None:
    """Tell a new pairing to the account's streams, and to a session that waited for its first user by its name."""
    account = now.account_id
    assert account is not None
    waited = await tx.value(Q.waiting_session, account=account)
    await sessions.follow(tx, [account])
    await tell(
        tx,
        Kind.PAIRED,
        account=account,
        session=waited,
        kakaoUserId=now.plusfriend_user_key,
        conversationKey=now.conversation_key,
        pairedAt=now.paired_at,
        accountId=account,
    )


async def verified(tx: Tx, now: Conversation, figures: Figures) -> None:
    """Let the rest of the hub know that somebody is connected."""
    await tx.value(Q.publish_verified, account=now.account_id, conversation=now.conversation_key)
    tx.ring(Bell.EVENTS)
    figures.verified.add(1)


async def _become(tx: Tx, before: Conversation, state: State, blocked_by: str | None = None) -> Conversation:
    return await tx.one(
        Conversation,
        Q.become,
        conversation=before.conversation_key,
        account=before.account_id,
        state=state,
        blocked_by=blocked_by,
    )


def _waits(conversation: Conversation) -> None:
    if conversation.state != "PENDING":
        raise Conflict(f"nobody waits for approval here: the conversation is {conversation.state}")


def name_of(conversation: Conversation) -> str | None:
    return str(conversation.account_id) if conversation.account_id else None
