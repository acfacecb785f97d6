"""Replies that are already recorded: what became of a repeated reply, and further blocks of an answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from uuid import UUID

from pabal.core.errors import Unavailable
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.encryption.encrypted_values import encrypt_response
from pabal.relay.encryption.message_cipher import KEY_UNREADABLE, MessageCipher
from pabal.relay.messages import ReplyState
from pabal.relay.reply.callback import LATE_REPLY_RETENTION

Q = load_queries(__file__)

MAX_FURTHER_REPLIES = 10
"""Further blocks that are kept for one message."""


@dataclass(frozen=True, slots=True)
class ReplyToAnswered:
    """A reply to a message that has one already. `id` is used if it is kept as a further block.

    `is_open`: it is the first one, stored for the webhook that is held open for it.
    """

    id: UUID
    account_id: UUID
    message_id: UUID
    response_hash: bytes = field(repr=False)
    response_json: bytes = field(repr=False)
    response: dict[str, Any] = field(repr=False)
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class RecordedReply:
    """The recorded reply to a message, compared with a new one.

    `is_waiting`: it waits for its account's rate limit; `has_waited` also after its callback expired. `is_repeat`: the
    new reply has the same response. `further_id` is the further block with the same response, if one is kept;
    `is_joined` if it goes along with the first block's POST.
    """

    position: int
    id: UUID
    fence: UUID | None
    state: ReplyState
    error: str | None
    has_waited: bool
    is_waiting: bool
    settled_at_ms: int | None
    is_repeat: bool
    further_id: UUID | None
    is_joined: bool


@dataclass(frozen=True, slots=True)
class FurtherReplyRow:
    position: int
    is_kept: bool


async def find_recorded_replies(tx: Tx, replies: Sequence[ReplyToAnswered]) -> Sequence[RecordedReply | None]:
    """The recorded reply to each message; None if the message was deleted meanwhile.

    The recorded one may have been stored before encryption was switched on, under the plain hash of its response.
    """
    rows = await tx.all(
        RecordedReply,
        Q.find_recorded_replies,
        accounts=[reply.account_id for reply in replies],
        messages=[reply.message_id for reply in replies],
        hashes=[reply.response_hash for reply in replies],
        plain_hashes=[sha256(reply.response_json).digest() for reply in replies],
        responses=[reply.response_json.decode() for reply in replies],
    )
    recorded = {row.position: row for row in rows}
    return [recorded.get(position) for position in range(1, len(replies) + 1)]


async def keep_further_replies(
    tx: Tx, replies: Sequence[ReplyToAnswered], cipher: MessageCipher | None = None
) -> Sequence[bool | Exception]:
    """Keep further blocks like late replies. False for one that is kept already, or above the limit of its message."""
    responses: list[str | None] = [reply.response_json.decode() for reply in replies]
    if cipher is not None and cipher.is_on:
        responses = await encrypt_further_replies(tx, cipher, replies)
    stored = [(reply, response) for reply, response in zip(replies, responses, strict=True) if response is not None]
    rows = await tx.all(
        FurtherReplyRow,
        Q.keep_further_replies,
        ids=[reply.id for reply, _ in stored],
        accounts=[reply.account_id for reply, _ in stored],
        messages=[reply.message_id for reply, _ in stored],
        hashes=[reply.response_hash for reply, _ in stored],
        responses=[response for _, response in stored],
        keep=LATE_REPLY_RETENTION,
        max_blocks=MAX_FURTHER_REPLIES,
    )
    kept = {stored[row.position - 1][0].id: row.is_kept for row in rows}
    return [kept.get(reply.id, Unavailable(KEY_UNREADABLE)) for reply in replies]


async def encrypt_further_replies(
    tx: Tx, cipher: MessageCipher, replies: Sequence[ReplyToAnswered]
) -> list[str | None]:
    """The responses encrypted; None for one whose account's key is missing."""
    keys = await cipher.load_keys(tx, {reply.account_id for reply in replies})
    return [
        (key := keys.get(reply.account_id)) and encrypt_response(key, reply.id, reply.response_json, reply.response)
        for reply in replies
    ]
