"""Pair: a code typed in the chat connects its conversation with an account."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from pabal.audit.pseudonym import conversation_pseudonym
from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import RateLimited
from pabal.core.ids import new_id
from pabal.core.log import get_logger
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.limits import RateLimit, consume_rate_limit
from pabal.relay.conversations import Conversation, announce_pairing, clean_up_ended_pairing, publish_pairing_verified
from pabal.relay.metrics import RelayMetrics
from pabal.relay.pairing.codes import parse_pairing_code
from pabal.relay.pairing.sessions import lock_relay_sessions

Q = load_queries(__file__)
log = get_logger()

CHAT_ACTOR = Actor("chat")
"""Whoever writes in the conversation: the audit log says which."""
MAX_WRONG_CODES, WRONG_CODE_WINDOW, WRONG_CODE_LOCKOUT = 5, timedelta(minutes=10), timedelta(minutes=30)
CHANNEL_WRONG_CODE_LIMIT = RateLimit("wrong pairing codes on this channel", 100, timedelta(minutes=10))
GUESSING_LOG_LIMIT = RateLimit("notes of wrong pairing codes", 1, timedelta(minutes=1))


@dataclass(frozen=True, slots=True)
class CodeAccepted:
    """The conversation as it is now; `replaced` when another pairing had to end for it."""

    conversation: Conversation
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class CodeRejected:
    """No code that can be redeemed. Whether it never was one, has expired or is used, nobody is told."""


@dataclass(frozen=True, slots=True)
class CodeEntryLocked:
    """Too many wrong codes in this conversation: for a while none is looked at."""

    retry_after: timedelta


RedeemResult = CodeAccepted | CodeRejected | CodeEntryLocked


@dataclass(frozen=True, slots=True)
class RedeemedCodeRow:
    account_id: UUID


async def redeem_pairing_code(
    tx: Tx, conversation: Conversation, text: str, metrics: RelayMetrics, *, requires_approval: bool
) -> RedeemResult:
    """Redeem what was typed in a conversation that is held. Where owners approve, it waits for its owner from here on.

    The code's change from unused to used is one statement, and whoever makes it is connected: of a hundred, one.
    """
    key = conversation.conversation_key
    if wait := await tx.value(Q.find_lockout, conversation=key):
        return CodeEntryLocked(wait)
    code = parse_pairing_code(text)
    taken = (
        await tx.maybe(RedeemedCodeRow, Q.redeem_pairing_code, code=code, conversation=key, account=new_id())
        if code
        else None
    )
    if taken is None:
        if code and await tx.value(
            Q.is_redeemed_by_conversation, code=code, conversation=key, account=conversation.account_id
        ):
            return CodeAccepted(conversation)
        return await _record_wrong_code(tx, conversation, metrics)
    return await _connect_conversation(tx, conversation, taken.account_id, metrics, requires_approval=requires_approval)


async def _connect_conversation(
    tx: Tx, conversation: Conversation, account: UUID, metrics: RelayMetrics, *, requires_approval: bool
) -> CodeAccepted:
    same, wanted = conversation.account_id == account, "PENDING" if requires_approval else "PAIRED"
    if same and conversation.state in {wanted, "PAIRED"}:  # whoever is let in stays in
        return CodeAccepted(conversation)
    now = await tx.one(
        Conversation, Q.connect_conversation, conversation=conversation.conversation_key, account=account, state=wanted
    )
    if not same:
        await lock_relay_sessions(tx, [each for each in (conversation.account_id, account) if each])
        await clean_up_ended_pairing(tx, conversation, "replaced")
    if now.state == "PAIRED":
        await announce_pairing(tx, now)
        await record_action(
            tx, CHAT_ACTOR, "pairing.verified", conversation_pseudonym(now.conversation_key), account=str(account)
        )
        await publish_pairing_verified(tx, now, metrics)
    return CodeAccepted(now, replaced=not same and conversation.state == "PAIRED")


async def _record_wrong_code(tx: Tx, conversation: Conversation, metrics: RelayMetrics) -> CodeRejected:
    """Count it against the conversation and against its channel.

    A right code does not make up for wrong ones: whoever has codes of their own could then guess without end.
    """
    key = conversation.conversation_key
    await tx.run(
        Q.record_wrong_code, conversation=key, most=MAX_WRONG_CODES, window=WRONG_CODE_WINDOW, lock=WRONG_CODE_LOCKOUT
    )
    channel = key.partition(":")[0]
    try:
        await consume_rate_limit(tx, CHANNEL_WRONG_CODE_LIMIT, channel)
    except RateLimited:
        metrics.code_guessing_alarms.add(1)
        await _log_code_guessing(tx, channel)
    return CodeRejected()


async def _log_code_guessing(tx: Tx, channel: str) -> None:
    try:
        await consume_rate_limit(tx, GUESSING_LOG_LIMIT, channel)
    except RateLimited:
        return
    log.error(
        "codes guessed",
        channel=channel,
        more_than=CHANNEL_WRONG_CODE_LIMIT.count,
        within=str(CHANNEL_WRONG_CODE_LIMIT.window),
    )


async def purge_wrong_codes(tx: Tx, batch: int) -> int:
    """Forget wrong codes that no longer count and lock nobody."""
    return await tx.run(Q.purge_wrong_codes, window=WRONG_CODE_WINDOW, batch=batch)
