"""Replies that are already recorded: what became of a repeated reply, and further blocks of an answer."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from uuid import UUID

from pabal.core.errors import Unavailable
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.encryption.data_keys import DataKey
from pabal.relay.encryption.encrypted_values import encrypt_response
from pabal.relay.encryption.message_cipher import KEY_UNREADABLE, MessageCipher
from pabal.relay.messages import ReplyState
from pabal.relay.reply.callback import LATE_REPLY_RETENTION

Q = load_queries(__file__)

MAX_FURTHER_REPLIES = 10
"""Further blocks that are kept for one message."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """A further block of an answer, or a bubble of a long text that does not fit into its reply."""

    id: UUID
    response: dict[str, Any] = field(repr=False)
    response_json: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReplyToAnswered:
    """A reply to a message that has one already. `id` is used if it is kept as a further block.

    `is_open`: it is the first one, stored for the webhook that is held open for it. `rest` is the rest of a long text.
    """

    id: UUID
    account_id: UUID
    message_id: UUID
    response_hash: bytes = field(repr=False)
    response_json: bytes = field(repr=False)
    response: dict[str, Any] = field(repr=False)
    is_open: bool = False
    rest: Sequence[TextPart] = field(default=(), repr=False)

    @property
    def identity(self) -> bytes:
        """The bytes by which a repeat of it is recognized."""
        return join_text(self.response_json, self.rest)


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part of a long text as it is stored."""

    id: UUID
    response: str = field(repr=False)
    response_hash: bytes = field(repr=False)


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
class BlockToJoin:
    """A further block that goes along with the POST of the first one, and the fence of that POST."""

    block: TextPart
    account_id: UUID
    message_id: UUID
    fence: UUID


@dataclass(frozen=True, slots=True)
class FurtherReplyRow:
    position: int
    is_kept: bool


def join_text(response_json: bytes, rest: Sequence[TextPart]) -> bytes:
    """A reply's response and the rest of its text: the same beginning with another rest is another reply."""
    return b"\n".join((response_json, *(part.response_json for part in rest))) if rest else response_json


def store_rest(rest: Sequence[TextPart], reply_hash: bytes, key: DataKey | None) -> list[StoredPart]:
    """The parts as they are stored, encrypted if there is a key. Parts may be equal, but their hashes differ."""
    return [
        StoredPart(part.id, stored_response(part, key), sha256(b"%b:%d" % (reply_hash, number)).digest())
        for number, part in enumerate(rest, start=1)
    ]


def hash_response(identity: bytes, key: DataKey | None) -> bytes:
    return key.hash(identity) if key else sha256(identity).digest()


def stored_response(block: TextPart | ReplyToAnswered, key: DataKey | None) -> str:
    if key is None:
        return block.response_json.decode()
    return encrypt_response(key, block.id, block.response_json, block.response)


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
        plain_hashes=[sha256(reply.identity).digest() for reply in replies],
        responses=[reply.response_json.decode() for reply in replies],
    )
    recorded = {row.position: row for row in rows}
    return [recorded.get(position) for position in range(1, len(replies) + 1)]


async def keep_further_replies(
    tx: Tx, replies: Sequence[ReplyToAnswered], cipher: MessageCipher | None = None
) -> Sequence[bool | Exception]:
    """Keep further blocks like late replies. False for one that is kept already, or above the limit of its message.

    The rest of a long text is kept with its beginning, also beyond the limit.
    """
    keys = await load_reply_keys(tx, cipher, {reply.account_id for reply in replies})
    blocks = [
        (reply, number, block)
        for reply in replies
        if reply.account_id in keys
        for number, block in enumerate(store_block(reply, keys[reply.account_id]))
    ]
    rows = await tx.all(
        FurtherReplyRow,
        Q.keep_further_replies,
        ids=[block.id for _, _, block in blocks],
        accounts=[reply.account_id for reply, _, _ in blocks],
        messages=[reply.message_id for reply, _, _ in blocks],
        parts=[number for _, number, _ in blocks],
        hashes=[block.response_hash for _, _, block in blocks],
        responses=[block.response for _, _, block in blocks],
        keep=LATE_REPLY_RETENTION,
        max_blocks=MAX_FURTHER_REPLIES,
    )
    kept = {blocks[row.position - 1][2].id: row.is_kept for row in rows}
    return [kept.get(reply.id, Unavailable(KEY_UNREADABLE)) for reply in replies]


async def join_further_replies(
    tx: Tx, joins: Sequence[BlockToJoin], cipher: MessageCipher | None = None
) -> Sequence[bool | Exception]:
    """Record that these blocks go along with the first one's POST. False for one that was shown already."""
    keys = await load_reply_keys(tx, cipher, {join.account_id for join in joins})
    storable = [join for join in joins if join.account_id in keys]
    parts = [(join.block, keys[join.account_id]) for join in storable]
    positions: list[int] = await tx.column(
        Q.join_further_replies,
        fences=[join.fence for join in storable],
        ids=[block.id for block, _ in parts],
        accounts=[join.account_id for join in storable],
        messages=[join.message_id for join in storable],
        hashes=[hash_response(block.response_json, key) for block, key in parts],
        responses=[stored_response(block, key) for block, key in parts],
        keep=LATE_REPLY_RETENTION,
    )
    joined = {storable[position - 1].block.id for position in positions}
    return [join.block.id in joined for join in joins]


async def load_reply_keys(
    tx: Tx, cipher: MessageCipher | None, accounts: Collection[UUID]
) -> Mapping[UUID, DataKey | None]:
    """The keys to encrypt replies with: None if they are stored as they are, and no entry if the key is missing."""
    if cipher is None or not cipher.is_on:
        return dict.fromkeys(accounts)
    return await cipher.load_keys(tx, accounts)


def store_block(reply: ReplyToAnswered, key: DataKey | None) -> list[StoredPart]:
    """The block as it is stored, and the rest of its text."""
    block = StoredPart(reply.id, stored_response(reply, key), reply.response_hash)
    return [block, *store_rest(reply.rest, reply.response_hash, key)]
