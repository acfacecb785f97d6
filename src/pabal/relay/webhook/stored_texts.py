"""The texts of webhooks as they are stored: unchanged, or encrypted with the key of the conversation's account."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec

from pabal.core.errors import Invalid, Unavailable
from pabal.db.tx import Tx
from pabal.relay.encryption.encrypted_values import (
    CALLBACK_COLUMN,
    NORMALIZED_REFERENCE,
    check_payload_json,
    encrypt_payload,
)
from pabal.relay.encryption.message_cipher import KEY_UNREADABLE, MessageCipher
from pabal.relay.webhook.payload import InboundPayload


@dataclass(frozen=True, slots=True)
class StoredTexts:
    """The columns of a batch of webhooks that contain texts.

    If they are encrypted, `accounts` has the account of each key. The statement stores a message only if its
    conversation is still paired with that account.
    """

    payloads: list[str]
    normalized: list[str]
    callbacks: list[str | None]
    accounts: list[UUID | None]
    is_encrypted: bool = False
    decoded: list[Any] = field(default_factory=list[Any])
    """The payload of each message, for a stream that it is handed to."""
    errors: dict[tuple[int, UUID | None], Exception] = field(default_factory=dict[tuple[int, UUID | None], Exception])
    """Why a message cannot be encrypted, by position and account. It is not stored."""

    def add(self, payload: str, normalized: str, callback: str | None, account: UUID | None, decoded: Any) -> None:
        self.payloads.append(payload)
        self.normalized.append(normalized)
        self.callbacks.append(callback)
        self.accounts.append(account)
        self.decoded.append(decoded)

    def add_nothing(self) -> None:
        self.add("{}", "{}", None, None, None)

    def refuse(self, position: int, account: UUID, error: Exception) -> None:
        self.errors[position, account] = error
        self.add_nothing()


def plain_texts(payloads: Sequence[InboundPayload]) -> StoredTexts:
    return StoredTexts(
        [payload.raw_json for payload in payloads],
        [msgspec.json.encode(payload.normalized).decode() for payload in payloads],
        [payload.callback_url for payload in payloads],
        [None] * len(payloads),
    )


async def encrypt_texts(
    tx: Tx,
    cipher: MessageCipher,
    payloads: Sequence[InboundPayload],
    ids: Sequence[UUID | None],
    find_account: Callable[[str], UUID | None],
) -> StoredTexts:
    """Encrypt the texts of messages; `ids` has None for commands. What has no account yet is not stored at all."""
    conversations = [payload.conversation_key for payload in payloads]
    wanted = [key for key, message_id in zip(conversations, ids, strict=True) if message_id]
    accounts = await cipher.find_conversation_accounts(tx, wanted, find_account)
    keys = await cipher.load_keys(tx, {*accounts.values()})
    texts = StoredTexts([], [], [], [], is_encrypted=True)
    for position, (payload, conversation, message_id) in enumerate(zip(payloads, conversations, ids, strict=True)):
        account = accounts.get(conversation) if message_id else None
        if account is None or message_id is None:
            texts.add_nothing()
            continue
        key = keys.get(account)
        if key is None:
            texts.refuse(position, account, Unavailable(KEY_UNREADABLE, nothing_sent=True))
            continue
        try:
            decoded = check_payload_json(payload.raw_json)
        except Invalid as error:
            texts.refuse(position, account, error)
            continue
        url = payload.callback_url
        texts.add(
            encrypt_payload(key, message_id, payload.raw_json, msgspec.json.encode(payload.normalized)),
            NORMALIZED_REFERENCE,
            url and key.encrypt(url.encode(), CALLBACK_COLUMN, message_id.bytes),
            account,
            decoded,
        )
    return texts
