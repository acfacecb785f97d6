"""Receive: what becomes of webhooks. Many that come together are one statement and one commit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from pabal.core.errors import PabalError, RateLimited
from pabal.core.ids import new_id
from pabal.db.channels import Channel
from pabal.db.errors import RetryableError
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.webhook.payload import InboundPayload
from pabal.relay.webhook.skill_response import ChatTexts, SkillResponseDict, callback_response, text_response

Q = load_queries(__file__)

CALLBACK_LIFETIME = timedelta(seconds=55)  # Kakao says 60; five are for the road
MINUTE = timedelta(minutes=1)
CONVERSATION_LOCKED = RetryableError("somebody else holds the conversation, or came between")
DUPLICATE_GONE = RetryableError("the first of two went while we looked at the second")


@dataclass(frozen=True, slots=True)
class InboundDraft:
    """An arrival on its way in. A command is looked at, and not put into any queue."""

    payload: InboundPayload
    is_command: bool


@dataclass(frozen=True, slots=True)
class ReceiveResult:
    """What the hub now knows of an arrival: how its conversation stands, and which message it became, if any."""

    state: str
    account_id: UUID | None
    is_disabled: bool
    message_id: UUID | None
    duplicate_of: UUID | None
    first_response: dict[str, Any] | None
    has_callback: bool


@dataclass(frozen=True, slots=True)
class ReceiveRow:
    position: int
    within_conversation_limit: bool
    within_channel_limit: bool
    state: str | None
    account_id: UUID | None
    is_disabled: bool
    message_id: UUID | None
    duplicate_of: UUID | None
    answer: dict[str, Any] | None
    had_callback: bool
    event_published: bool


@dataclass(frozen=True, slots=True)
class DuplicateMessage:
    duplicate_of: UUID
    answer: dict[str, Any] | None
    had_callback: bool


@dataclass(frozen=True, slots=True)
class WebhookReceiver:
    """Takes webhooks in, by the limits and lifetimes it was given. Its `receive` is what a gatherer puts."""

    queue_lifetime: timedelta
    conversation_rate_limit: int
    channel_rate_limit: int

    async def receive(self, tx: Tx, drafts: Sequence[InboundDraft]) -> Sequence[ReceiveResult | Exception]:
        """Take a group in, in the order it came. Two of one conversation go one after the other.

        Each turn is for good. What fails in a later one is put off with all that follows, and tried again without the
        turns before it: nobody is counted twice against their limits.
        """
        results: list[ReceiveResult | Exception | None] = [None] * len(drafts)
        for nth, turn in enumerate(split_by_conversation(drafts)):
            try:
                rows = await self._store(tx, turn)
            except PabalError:
                if nth == 0:
                    raise
                break
            for row in rows:
                results[row.position] = await self._to_result(tx, row, drafts[row.position])
        return [CONVERSATION_LOCKED if result is None else result for result in results]

    async def _store(self, tx: Tx, drafts: dict[int, InboundDraft]) -> list[ReceiveRow]:
        arrivals = [brought.payload for brought in drafts.values()]
        rows = await tx.all(
            ReceiveRow,
            Q.receive_messages,
            places=[*drafts],
            keys=[arrival.conversation_key for arrival in arrivals],
            channels=[arrival.channel for arrival in arrivals],
            users=[arrival.user_key for arrival in arrivals],
            source_events=[arrival.source_event_id for arrival in arrivals],
            payloads=[arrival.raw_json for arrival in arrivals],
            normalized=[msgspec.json.encode(arrival.normalized).decode() for arrival in arrivals],
            callbacks=[arrival.callback_url for arrival in arrivals],
            ids=[None if brought.is_command else new_id() for brought in drafts.values()],
            per_conversation=self.conversation_rate_limit,
            per_channel=self.channel_rate_limit,
            callback_life=CALLBACK_LIFETIME,
            queue_life=self.queue_lifetime,
        )
        for row in rows:
            if row.message_id:
                tx.notify(Channel.MESSAGES, str(row.account_id))
            if row.event_published:
                tx.notify(Channel.EVENTS)
        return rows

    async def _to_result(self, tx: Tx, row: ReceiveRow, draft: InboundDraft) -> ReceiveResult | Exception:
        if not row.within_conversation_limit:
            return RateLimited("messages in this conversation", MINUTE / self.conversation_rate_limit)
        if not row.within_channel_limit:
            return RateLimited("messages on this channel", MINUTE / self.channel_rate_limit)
        assert row.state is not None  # whoever is let in is seen
        repeats, answer, has_callback = row.duplicate_of, row.answer, draft.payload.callback_url is not None
        queues = row.state == "PAIRED" and not row.is_disabled and not draft.is_command
        if queues and row.message_id is None:
            if repeats is None:
                arrival = draft.payload
                first = await tx.maybe(
                    DuplicateMessage,
                    Q.find_duplicate,
                    conversation_key=arrival.conversation_key,
                    channel_id=arrival.channel,
                    source_event_id=arrival.source_event_id,
                )
                if first is None:
                    return DUPLICATE_GONE
                repeats, answer, has_callback = first.duplicate_of, first.answer, first.had_callback
            else:
                has_callback = row.had_callback
        return ReceiveResult(row.state, row.account_id, row.is_disabled, row.message_id, repeats, answer, has_callback)


def split_by_conversation(drafts: Sequence[InboundDraft]) -> list[dict[int, InboundDraft]]:
    """Deal a group out so that no conversation comes twice in one turn; each keeps its place."""
    dealt: list[dict[int, InboundDraft]] = []
    nth: dict[str, int] = {}
    for place, brought in enumerate(drafts):
        turn = nth[brought.payload.conversation_key] = nth.get(brought.payload.conversation_key, -1) + 1
        if turn == len(dealt):
            dealt.append({})
        dealt[turn][place] = brought
    return dealt


async def save_first_response(tx: Tx, result: ReceiveResult, response: dict[str, Any]) -> None:
    """Keep what the webhook was told, for its repeat."""
    await tx.run(Q.save_first_response, id=result.message_id, account_id=result.account_id, answer=response)
    tx.notify(Channel.MESSAGES, str(result.account_id))  # whoever looked meanwhile has passed the message over


BLOCKED = "BLOCKED"


def immediate_response(result: ReceiveResult, texts: ChatTexts, prefix: str) -> SkillResponseDict | None:
    """The hub's own answer to somebody whose message went to nobody; None when it did."""
    match result.state:
        case "BLOCKED":
            return text_response(texts.blocked)
        case "PENDING":
            return text_response(texts.pending)
        case "PAIRED" if result.is_disabled:
            return text_response(texts.disabled)
        case "PAIRED":
            return None
        case _:
            return text_response(texts.hint.format(prefix=prefix), quick_replies=[f"{prefix}help"])


def queued_response(result: ReceiveResult, waiting_text: str | None) -> SkillResponseDict | None:
    """The answer to a message that is on its way to its bot: the first answer again, or that one will come.

    None when there is no callback for it to come by.
    """
    if result.first_response is not None:
        return result.first_response
    return callback_response(waiting_text) if result.has_callback else None
