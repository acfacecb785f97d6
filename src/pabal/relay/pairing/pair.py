"""Redeem pairing codes: a code sent in the chat connects its conversation with an account."""

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
from pabal.relay.conversations import (
    Conversation,
    ConversationState,
    announce_pairing,
    clean_up_ended_pairing,
    note_pairing_verified,
)
from pabal.relay.metrics import RelayMetrics
from pabal.relay.pairing.codes import parse_pairing_code
from pabal.relay.pairing.sessions import lock_relay_sessions

Q = load_queries(__file__)
log = get_logger()

CHAT_ACTOR = Actor("chat")
"""A chat user; the audit entry's subject says which conversation."""
MAX_WRONG_CODES, WRONG_CODE_WINDOW, WRONG_CODE_LOCKOUT = 5, timedelta(minutes=10), timedelta(minutes=30)
CHANNEL_WRONG_CODE_LIMIT = RateLimit("wrong pairing codes on this channel", 100, timedelta(minutes=10))
UNKNOWN_CHANNEL = ":"
"""Key of the count for users who are not stored. No channel id contains a colon."""
GUESSING_LOG_LIMIT = RateLimit("log lines about wrong pairing codes", 1, timedelta(minutes=1))


@dataclass(frozen=True, slots=True)
class CodeAccepted:
    """The conversation after pairing. `replaced`: another pairing ended for it."""

    conversation: Conversation
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class CodeRejected:
    """The code cannot be redeemed. Unknown, expired and used are not distinguished, to help no guessing."""


@dataclass(frozen=True, slots=True)
class CodeEntryLocked:
    """Too many wrong codes in this conversation; none is checked until `retry_after`."""

    retry_after: timedelta


RedeemResult = CodeAccepted | CodeRejected | CodeEntryLocked


@dataclass(frozen=True, slots=True)
class RedeemedCodeRow:
    account_id: UUID


async def redeem_pairing_code(
    tx: Tx, conversation: Conversation, text: str, metrics: RelayMetrics, *, requires_approval: bool, rate_limit: int
) -> RedeemResult:
    """Redeem a code for a conversation whose row is locked. With approval, the pairing is pending until approved.

    `rate_limit` is the limit per minute of an account that a session's first pairing creates.

    One statement marks the code as used, so of any number of concurrent attempts one succeeds.
    """
    key = conversation.conversation_key
    if retry_after := await tx.value(Q.find_lockout, conversation=key):
        return CodeEntryLocked(retry_after)
    code = parse_pairing_code(text)
    redeemed = (
        await tx.maybe(
            RedeemedCodeRow, Q.redeem_pairing_code, code=code, conversation=key, account=new_id(), rate_limit=rate_limit
        )
        if code
        else None
    )
    if redeemed is None:
        if code and await tx.value(
            Q.is_redeemed_by_conversation, code=code, conversation=key, account=conversation.account_id
        ):
            return CodeAccepted(conversation)
        return await _record_wrong_code(tx, conversation, metrics)
    return await _connect_conversation(
        tx, conversation, redeemed.account_id, metrics, requires_approval=requires_approval
    )


async def _connect_conversation(
    tx: Tx, conversation: Conversation, account: UUID, metrics: RelayMetrics, *, requires_approval: bool
) -> CodeAccepted:
    is_same_account = conversation.account_id == account
    state: ConversationState = "PENDING" if requires_approval else "PAIRED"
    if is_same_account and conversation.state in {state, "PAIRED"}:  # an existing pairing needs no new approval
        return CodeAccepted(conversation)
    connected = await tx.one(
        Conversation, Q.connect_conversation, conversation=conversation.conversation_key, account=account, state=state
    )
    if not is_same_account:
        await lock_relay_sessions(tx, [account_id for account_id in (conversation.account_id, account) if account_id])
        await clean_up_ended_pairing(tx, conversation, "replaced")
    if connected.state == "PAIRED":
        await announce_pairing(tx, connected)
        await record_action(
            tx, CHAT_ACTOR, "pairing.verified", conversation_pseudonym(connected.conversation_key), account=str(account)
        )
        await note_pairing_verified(tx, connected, metrics)
    return CodeAccepted(connected, replaced=not is_same_account and conversation.state == "PAIRED")


async def _record_wrong_code(tx: Tx, conversation: Conversation, metrics: RelayMetrics) -> CodeRejected:
    """Count a wrong code against the conversation and its channel.

    A right code does not reset the count: with codes of their own, a user could otherwise guess without limit.
    """
    key = conversation.conversation_key
    await tx.run(
        Q.record_wrong_code,
        conversation=key,
        max_failures=MAX_WRONG_CODES,
        window=WRONG_CODE_WINDOW,
        lock=WRONG_CODE_LOCKOUT,
    )
    await _count_channel_wrong_code(tx, key.partition(":")[0], metrics)
    return CodeRejected()


async def is_pairing_code_live(tx: Tx, text: str) -> bool:
    """Whether the input is a code that can be redeemed now. Redeeming checks again."""
    code = parse_pairing_code(text)
    return code is not None and await tx.value(Q.is_pairing_code_live, code=code)


async def count_unknown_wrong_code(tx: Tx, metrics: RelayMetrics) -> None:
    """Count a wrong code of a user who is not stored. All channels share one count, since channels can be made up."""
    await _count_channel_wrong_code(tx, UNKNOWN_CHANNEL, metrics)


async def _count_channel_wrong_code(tx: Tx, channel: str, metrics: RelayMetrics) -> None:
    try:
        await consume_rate_limit(tx, CHANNEL_WRONG_CODE_LIMIT, channel)
    except RateLimited:
        metrics.code_guessing_alarms.add(1)
        await _log_code_guessing(tx, channel)


async def _log_code_guessing(tx: Tx, channel: str) -> None:
    try:
        await consume_rate_limit(tx, GUESSING_LOG_LIMIT, channel)
    except RateLimited:
        return
    log.error(
        "pairing codes guessed",
        channel=channel,
        threshold=CHANNEL_WRONG_CODE_LIMIT.count,
        window=str(CHANNEL_WRONG_CODE_LIMIT.window),
    )


async def purge_wrong_codes(tx: Tx, batch: int) -> int:
    """Delete counts of wrong codes whose window and lockout are over."""
    return await tx.run(Q.purge_wrong_codes, window=WRONG_CODE_WINDOW, batch=batch)
