"""Pair: a code typed in the chat connects its conversation with an account."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.core.errors import TooMany
from pabal.core.ids import new_id
from pabal.core.log import get_logger
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.limits import Limit, take
from pabal.relay import sessions
from pabal.relay.alias import alias
from pabal.relay.conversations import Conversation, joined, left, verified
from pabal.relay.figures import Figures
from pabal.relay.spelling import code_in

Q = beside(__file__)
log = get_logger()

CHAT = Actor("chat")
"""Whoever writes in the conversation: the audit log says which."""
WRONG, WINDOW, LOCK = 5, timedelta(minutes=10), timedelta(minutes=30)
BUDGET = Limit("wrong pairing codes on this channel", 100, timedelta(minutes=10))
TO_NOTE = Limit("notes of wrong pairing codes", 1, timedelta(minutes=1))


@dataclass(frozen=True, slots=True)
class Connected:
    """The conversation as it is now; `replaced` when another pairing had to end for it."""

    conversation: Conversation
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class Wrong:
    """No code that can be redeemed. Whether it never was one, has expired or is used, nobody is told."""


@dataclass(frozen=True, slots=True)
class Locked:
    """Too many wrong codes in this conversation: for a while none is looked at."""

    wait: timedelta


Redeemed = Connected | Wrong | Locked


@dataclass(frozen=True, slots=True)
class Taken:
    account_id: UUID


async def redeem(tx: Tx, before: Conversation, typed: str, figures: Figures, *, approval: bool) -> Redeemed:
    """Redeem what was typed in a conversation that is held. Where owners approve, it waits for its owner from here on.

    The code's change from unused to used is one statement, and whoever makes it is connected: of a hundred, one.
    """
    key = before.conversation_key
    if wait := await tx.value(Q.locked, conversation=key):
        return Locked(wait)
    code = code_in(typed)
    taken = await tx.maybe(Taken, Q.redeem, code=code, conversation=key, account=new_id()) if code else None
    if taken is None:
        if code and await tx.value(Q.redeemed, code=code, conversation=key, account=before.account_id):
            return Connected(before)
        return await _failed(tx, before, figures)
    return await _connect(tx, before, taken.account_id, figures, approval=approval)


async def _connect(tx: Tx, before: Conversation, account: UUID, figures: Figures, *, approval: bool) -> Connected:
    same, wanted = before.account_id == account, "PENDING" if approval else "PAIRED"
    if same and before.state in {wanted, "PAIRED"}:  # whoever is let in stays in
        return Connected(before)
    now = await tx.one(Conversation, Q.connect, conversation=before.conversation_key, account=account, state=wanted)
    if not same:
        await sessions.hold(tx, [each for each in (before.account_id, account) if each])
        await left(tx, before, "replaced")
    if now.state == "PAIRED":
        await joined(tx, now)
        await did(tx, CHAT, "pairing.verified", alias(now.conversation_key), account=str(account))
        await verified(tx, now, figures)
    return Connected(now, replaced=not same and before.state == "PAIRED")


async def _failed(tx: Tx, conversation: Conversation, figures: Figures) -> Wrong:
    """Count it against the conversation and against its channel.

    A right code does not make up for wrong ones: whoever has codes of their own could then guess without end.
    """
    key = conversation.conversation_key
    await tx.run(Q.fail, conversation=key, most=WRONG, window=WINDOW, lock=LOCK)
    channel = key.partition(":")[0]
    try:
        await take(tx, BUDGET, channel)
    except TooMany:
        figures.alarm.add(1)
        await _alarm(tx, channel)
    return Wrong()


async def _alarm(tx: Tx, channel: str) -> None:
    try:
        await take(tx, TO_NOTE, channel)
    except TooMany:
        return
    log.error("codes guessed", channel=channel, more_than=BUDGET.count, within=str(BUDGET.span))


async def forget_failures(tx: Tx, batch: int) -> int:
    """Forget wrong codes that no longer count and lock nobody."""
    return await tx.run(Q.forget_failures, window=WINDOW, batch=batch)
