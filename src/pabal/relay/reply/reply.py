"""Claim callbacks for replies: one statement for concurrent replies, before each is one POST (`send.py`)."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

from pabal.core.errors import (
    AccountDisabled,
    CallbackExpired,
    Invalid,
    MessageNotFound,
    RateLimited,
    RequestError,
    SessionNotPaired,
    Unauthenticated,
    Unavailable,
)
from pabal.core.ids import new_id
from pabal.db.errors import CheckViolation, RetryableError
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.delivery.lane import LANE
from pabal.relay.encryption.encrypted_values import encrypt_response
from pabal.relay.encryption.message_cipher import KEY_UNREADABLE, MessageCipher
from pabal.relay.reply.callback import LATE_REPLY_RETENTION, CallbackClaim, ClaimedCallback
from pabal.relay.reply.recorded import ReplyToAnswered, StoredPart, TextPart, hash_response, join_text, store_rest
from pabal.relay.reply.validate import MAX_OUTPUTS, MAX_QUICK_REPLIES, list_skill_outputs
from pabal.relay.webhook.skill_response import ChatTexts, build_quick_reply

Q = load_queries(__file__)

SkillObject = dict[str, Any]

MAX_WAITING_REPLIES = 300
"""Replies of one account that may wait for its rate limit; the next ones are refused."""

RefusalVerdict = Literal["disabled", "unpaired", "missing", "late"]
ClaimVerdict = Literal["spent", "joined", "waiting", "answered", "unknown", "limited"] | RefusalVerdict
"""The statement's decision on a reply. Only `spent` claims the callback; `joined` goes along with it.

`waiting` is stored until the account's rate limit allows its POST.
"""

REFUSALS_BY_VERDICT: dict[RefusalVerdict, type[RequestError]] = {
    "disabled": AccountDisabled,
    "unpaired": SessionNotPaired,
    "missing": MessageNotFound,
    "late": CallbackExpired,
}


@dataclass(frozen=True, slots=True)
class BotReply:
    """A bot's reply and the hash of the token it came with. A `message_id` of None matches no message."""

    token_hash: str = field(repr=False)
    message_id: UUID | None = None
    conversation_key: str | None = None
    response: SkillObject = field(default_factory=dict[str, Any], repr=False)
    """Already validated."""
    response_json: bytes = field(default=b"{}", repr=False)
    """The response unchanged: this is stored, and posted if no other outputs go along."""
    claim: CallbackClaim = field(default_factory=lambda: CallbackClaim(new_id(), new_id()))
    """Made before the first try, so that every try of this reply claims the callback under the same fence."""
    rest: Sequence[TextPart] = field(default=(), repr=False)
    """The rest of a long text, with higher ids: it is shown after the reply."""

    @property
    def identity(self) -> bytes:
        """The bytes by which a repeat of it is recognized."""
        return join_text(self.response_json, self.rest)

    @property
    def response_hash(self) -> bytes:
        """Identifies a repeated reply."""
        return hash_response(self.identity, None)

    def continues(self, first: "BotReply") -> bool:
        """Whether it may go along with this reply: a client may send further blocks only for its own."""
        return (self.token_hash, self.message_id, self.conversation_key) == (
            first.token_hash,
            first.message_id,
            first.conversation_key,
        )

    @property
    def output_count(self) -> int:
        """How many outputs it fills. A response without outputs leaves no space for late ones either."""
        return len(list_skill_outputs(self.response)) or MAX_OUTPUTS


@dataclass(frozen=True, slots=True)
class ReplyClaimRow:
    verdict: ClaimVerdict
    step: timedelta | None
    id: UUID
    message_id: UUID | None
    account_id: UUID | None
    fence: UUID
    callback_url: str | None
    late_outputs: list[SkillObject] | None
    has_more: bool | None
    """Whether further late replies of the conversation did not fit, if the callback is claimed."""
    ended: bool
    """Whether this reply ended its message."""
    is_open: bool | None
    """Whether the message's webhook is held open for this reply."""
    delay: timedelta | None
    """How long after its message the first reply came."""
    rest_count: int | None
    """How many parts of a long text were stored with it."""


@dataclass(frozen=True, slots=True)
class LateOutputs:
    """Outputs of late replies for the response to a webhook. `has_answer`: the answer to its message is among them.

    `first_response` is the response that another request of the same webhook has saved meanwhile.
    """

    outputs: list[SkillObject] = field(repr=False)
    has_answer: bool
    first_response: SkillObject | None = field(repr=False)


def ignore_delay(account_id: UUID, delay: timedelta) -> None:
    del account_id, delay


async def claim_callbacks(
    tx: Tx,
    replies: Sequence[BotReply],
    on_answer: Callable[[UUID, timedelta], object] = ignore_delay,
    cipher: MessageCipher | None = None,
) -> Sequence[ClaimedCallback | ReplyToAnswered | Exception]:
    """Claim the callback of each reply's message, or return the reason why not. A refusal spends nothing.

    `on_answer` is called with the account of each first reply and the time since its message.
    """
    stored = [plain_reply(reply) for reply in replies]
    if cipher is not None and cipher.is_on:
        stored = await encrypt_replies(tx, cipher, replies)
    hashes = [reply.response_hash for reply in stored]
    sizes, joining = plan_joins(replies, hashes)
    try:
        rows = await tx.all(
            ReplyClaimRow,
            Q.claim_callbacks,
            tokens=[reply.token_hash for reply in replies],
            messages=[reply.message_id for reply in stored],
            conversations=[reply.conversation_key for reply in replies],
            responses=[reply.response for reply in stored],
            hashes=hashes,
            sizes=sizes,
            ids=[reply.claim.id for reply in replies],
            fences=[reply.claim.fence for reply in replies],
            joining=joining,
            rests=[encode_rest(reply.rest) if reply.rest else None for reply in stored],
            keep=LATE_REPLY_RETENTION,
            max_outputs=MAX_OUTPUTS,
            max_waiting=MAX_WAITING_REPLIES,
        )
    except CheckViolation:
        if len(replies) > 1:
            raise
        return [Invalid.of_field("response", "is not JSON that PostgreSQL can store")]
    tx.count_outcomes(LANE.name, "done", sum(row.ended for row in rows))
    further_outputs: dict[UUID | None, list[SkillObject]] = {}
    for row, reply in zip(rows, replies, strict=True):
        if row.account_id is not None and row.delay is not None:
            on_answer(row.account_id, row.delay)
        if row.verdict == "joined":
            further_outputs.setdefault(row.message_id, []).extend(list_skill_outputs(reply.response))
    return [
        stored_reply.error
        if stored_reply.error and row.verdict == "missing"
        else to_claim_result(row, reply, stored_reply, further_outputs)
        for row, reply, stored_reply in zip(rows, replies, stored, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class StoredReply:
    """A reply as it is stored. If it cannot be encrypted, it has no message, and `error` is the reason."""

    message_id: UUID | None
    response: str = field(repr=False)
    response_hash: bytes = field(repr=False)
    error: Exception | None = None
    rest: Sequence[StoredPart] = field(default=(), repr=False)


def plain_reply(reply: BotReply) -> StoredReply:
    reply_hash = reply.response_hash
    return StoredReply(
        reply.message_id, reply.response_json.decode(), reply_hash, rest=store_rest(reply.rest, reply_hash, None)
    )


def encode_rest(rest: Sequence[StoredPart]) -> str:
    return json.dumps(
        [{"id": str(part.id), "hash": part.response_hash.hex(), "response": part.response} for part in rest]
    )


async def encrypt_replies(tx: Tx, cipher: MessageCipher, replies: Sequence[BotReply]) -> list[StoredReply]:
    """Encrypt replies with the keys of their tokens' accounts."""
    accounts = await cipher.find_token_accounts(tx, [reply.token_hash for reply in replies])
    keys = await cipher.load_keys(tx, {*accounts.values()})
    stored: list[StoredReply] = []
    for reply in replies:
        account = accounts.get(reply.token_hash)
        if account is None:  # unknown, or paired only now
            error = RetryableError("the token has no account yet") if reply.message_id else None
            stored.append(StoredReply(None, "{}", reply.response_hash, error))
        elif key := keys.get(account):
            response = encrypt_response(key, reply.claim.id, reply.response_json, reply.response)
            reply_hash = hash_response(reply.identity, key)
            rest = store_rest(reply.rest, reply_hash, key)
            stored.append(StoredReply(reply.message_id, response, reply_hash, rest=rest))
        else:
            stored.append(StoredReply(None, "{}", reply.response_hash, Unavailable(KEY_UNREADABLE)))
    return stored


def plan_joins(replies: Sequence[BotReply], hashes: Sequence[bytes]) -> tuple[list[int], list[UUID | None]]:
    """For a batch: how many outputs go along with each reply's POST, its own included, and the fence it joins.

    A reply joins the first one of its token to the same message as a further block, unless it repeats it or does not
    fit. The statement may refuse the first: then nothing joins it.
    """
    sizes = [reply.output_count for reply in replies]
    joining: list[UUID | None] = [None] * len(replies)
    firsts: dict[tuple[str, UUID | None, str | None], int] = {}
    seen: set[tuple[UUID | None, bytes]] = set()
    for position, reply in enumerate(replies):
        first = firsts.setdefault((reply.token_hash, reply.message_id, reply.conversation_key), position)
        key = reply.message_id, hashes[position]
        if first != position and key not in seen and sizes[first] + sizes[position] <= MAX_OUTPUTS:
            sizes[first] += sizes[position]
            joining[position] = replies[first].claim.fence
        seen.add(key)
    return sizes, joining


def to_claim_result(
    row: ReplyClaimRow,
    reply: BotReply,
    stored: StoredReply,
    further_outputs: Mapping[UUID | None, Sequence[SkillObject]],
) -> ClaimedCallback | ReplyToAnswered | RequestError:
    match row.verdict:
        case "spent":
            assert row.message_id is not None
            assert row.account_id is not None
            assert row.callback_url is not None
            return ClaimedCallback(
                row.id,
                row.message_id,
                row.account_id,
                row.fence,
                row.callback_url,
                row.late_outputs or [],
                further_outputs.get(row.message_id, ()),
                bool(row.has_more),
            )
        case "answered" | "joined" | "waiting":
            assert row.message_id is not None
            assert row.account_id is not None
            return ReplyToAnswered(
                row.id,
                row.account_id,
                row.message_id,
                stored.response_hash,
                reply.response_json,
                reply.response,
                is_open=bool(row.is_open),
                rest=reply.rest,
            )
        case "unknown":
            return Unauthenticated("the token is unknown or no longer valid")
        case "limited":
            assert row.step is not None
            return RateLimited("relay requests", row.step)
        case verdict:
            return REFUSALS_BY_VERDICT[verdict]()


async def claim_late_outputs(
    tx: Tx,
    conversation_key: str,
    max_outputs: int,
    shown_with: UUID | None,
    cipher: MessageCipher | None = None,
) -> LateOutputs:
    """Claim up to `max_outputs` outputs of a conversation's late replies, to show them in an immediate response.

    `shown_with` is the message whose webhook gets the response. Raises DecryptionError if an output cannot be
    decrypted; the caller's transaction then claims none.
    """
    late = await tx.one(
        LateOutputs,
        Q.claim_late_outputs,
        conversation_key=conversation_key,
        max_outputs=max_outputs,
        shown_with=shown_with,
    )
    if cipher is not None and late.outputs:
        late = replace(late, outputs=await cipher.decrypt_outputs(tx, late.outputs))
    if cipher is not None and late.first_response is not None and shown_with is not None:
        late = replace(late, first_response=await cipher.decrypt_first_response(tx, shown_with, late.first_response))
    return late


def build_callback_body(reply: BotReply, callback: ClaimedCallback, texts: ChatTexts) -> bytes:
    """The body to post: the response unchanged, or with what goes along."""
    return reply.response_json if is_alone(callback) else encode_full_response(reply.response, callback, texts)


def is_alone(callback: ClaimedCallback) -> bool:
    """Whether nothing goes along with the reply."""
    return not (callback.late_outputs or callback.further_outputs or callback.has_more)


def encode_full_response(response: SkillObject, callback: ClaimedCallback, texts: ChatTexts) -> bytes:
    """The response with late outputs in front, further ones behind, and a button if there are more late replies."""
    full = add_outputs(response, before=callback.late_outputs, after=callback.further_outputs)
    return encode_skill_response(add_quick_reply(full, texts.check_answer) if callback.has_more else full)


def add_quick_reply(response: SkillObject, label: str) -> SkillObject:
    """The response with one more quick reply, if Kakao allows it beside those of the bot."""
    template: SkillObject = response.get("template") or {}
    quick_replies: list[SkillObject] = template.get("quickReplies") or []
    if not template.get("outputs") or len(quick_replies) >= MAX_QUICK_REPLIES:
        return response
    return response | {"template": template | {"quickReplies": [*quick_replies, build_quick_reply(label)]}}


def add_outputs(
    response: SkillObject, *, before: Sequence[SkillObject] = (), after: Sequence[SkillObject] = ()
) -> SkillObject:
    """The response with other outputs before and after its own."""
    if not before and not after:
        return response
    template: SkillObject = response.get("template") or {}
    return response | {"template": template | {"outputs": [*before, *list_skill_outputs(response), *after]}}


def encode_skill_response(response: SkillObject) -> bytes:
    """A response as JSON. Unlike msgspec, `json` keeps integers of any length as the bot wrote them."""
    return json.dumps(response, ensure_ascii=False).encode()
