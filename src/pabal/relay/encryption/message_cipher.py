"""Encrypts what the relay stores of messages and replies, and decrypts it where it leaves the hub."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from pabal.core.errors import DecryptionError, Unavailable
from pabal.db.queries import Query, load_queries
from pabal.db.tx import Tx
from pabal.relay.encryption.data_keys import ENVELOPE_PREFIX, HUB_KEY_OWNER, DataKey, DataKeyCache
from pabal.relay.encryption.encrypted_values import (
    ANSWER_COLUMN,
    CALLBACK_COLUMN,
    PAYLOAD_COLUMN,
    Envelope,
    decrypt_body,
    decrypt_document,
    decrypt_outputs,
    decrypt_payload,
    encrypt_document,
    find_envelope,
    find_response_envelope,
    list_output_envelopes,
)
from pabal.relay.messages import EncryptedPayload

Q = load_queries(__file__)

MAX_REMEMBERED_TOKENS = 10_000
KEY_UNREADABLE = "the key of the account's texts cannot be decrypted: restore keys.json, then `pabal doctor`"
ENVELOPE_MARK = b'"envelope": "d1.'
"""In JSON of PostgreSQL and of `json`, only an encrypted output contains this."""


@dataclass(frozen=True, slots=True)
class NamedAccountRow:
    """The account of a token or of a conversation."""

    name: str
    account_id: UUID


class ClaimedUrl(Protocol):
    """A claimed callback with the reply's id and the message's URL, which may be encrypted."""

    @property
    def id(self) -> UUID: ...
    @property
    def message_id(self) -> UUID: ...
    @property
    def account_id(self) -> UUID: ...
    @property
    def url(self) -> str: ...


class MessageCipher:
    """Encrypts if it `is_on`. Decrypts in any case: a value that is stored as it is passes through."""

    def __init__(self, keys: DataKeyCache, *, is_on: bool) -> None:
        self.is_on = is_on
        self._keys = keys
        self._token_accounts: dict[str, UUID] = {}

    @property
    def unreadable_count(self) -> int:
        """For how many accounts this process lacks the key."""
        return len(self._keys.unreadable)

    def forget(self) -> None:
        """Forget what was read from the database: a fail-over may have lost keys and pairings."""
        self._keys.forget()
        self._token_accounts.clear()

    async def load_keys(self, tx: Tx, owners: Collection[UUID]) -> dict[UUID, DataKey]:
        """The keys to encrypt with, of those accounts that exist; generated at their first use."""
        return await self._keys.load(tx, owners, create=True)

    def hash_cached(self, event_id: str) -> str | None:
        """Like `hash_event_id`; None if the key is not loaded yet."""
        key = self._keys.get(HUB_KEY_OWNER)
        return key and hash_with_key(key, event_id)

    async def hash_event_id(self, tx: Tx, event_id: str) -> str:
        """A webhook's id that only this hub can derive from the webhook's text."""
        key = (await self.load_keys(tx, {HUB_KEY_OWNER})).get(HUB_KEY_OWNER)
        if key is None:
            raise Unavailable(KEY_UNREADABLE, nothing_sent=True)
        return hash_with_key(key, event_id)

    async def find_token_accounts(self, tx: Tx, token_hashes: Sequence[str]) -> dict[str, UUID]:
        """The accounts of these relay tokens, as far as they have one."""
        unknown = {token_hash for token_hash in token_hashes if token_hash not in self._token_accounts}
        if unknown:
            for name, account_id in (await self._find_accounts(tx, Q.find_token_accounts, unknown)).items():
                self._token_accounts[name] = account_id
                if len(self._token_accounts) > MAX_REMEMBERED_TOKENS:
                    del self._token_accounts[next(iter(self._token_accounts))]
        return {name: account for name in token_hashes if (account := self._token_accounts.get(name))}

    async def find_conversation_accounts(
        self, tx: Tx, conversation_keys: Iterable[str], remembered: Callable[[str], UUID | None]
    ) -> dict[str, UUID]:
        """The accounts of these conversations, as far as they have one. Those that are remembered may be outdated."""
        accounts = {key: remembered(key) for key in conversation_keys}
        known = {key: account for key, account in accounts.items() if account}
        unknown = accounts.keys() - known.keys()
        return known | (await self._find_accounts(tx, Q.find_conversation_accounts, unknown) if unknown else {})

    @staticmethod
    async def _find_accounts(tx: Tx, query: Query, names: Collection[str]) -> dict[str, UUID]:
        return {row.name: row.account_id for row in await tx.all(NamedAccountRow, query, names=[*names])}

    async def decryption_keys(self, tx: Tx, envelopes: Iterable[Envelope]) -> dict[UUID, DataKey]:
        """The keys of these envelopes that can be decrypted."""
        return await self._keys.load(tx, {envelope.owner for envelope in envelopes})

    def cached_key(self, owner: UUID) -> DataKey | None:
        return self._keys.get(owner)

    async def find_key(self, tx: Tx, owner: UUID) -> DataKey | None:
        """The key to decrypt the texts of an account; None if it is missing or unreadable."""
        return (await self._keys.load(tx, {owner})).get(owner)

    async def decrypt_outputs(self, tx: Tx, outputs: Sequence[Any]) -> list[Any]:
        """Outputs of late replies. Raises DecryptionError if a key is missing."""
        envelopes = [*list_output_envelopes(outputs)]
        return decrypt_outputs(await self.decryption_keys(tx, envelopes), outputs) if envelopes else [*outputs]

    async def decrypt_payloads(
        self, tx: Tx, rows: Sequence[EncryptedPayload]
    ) -> dict[UUID, tuple[dict[str, Any], dict[str, Any]]]:
        """The payload and the normalized message of those messages that can be decrypted."""
        envelopes = {
            row.id: envelope
            for row in rows
            if (envelope := find_envelope(row.kakao_payload, PAYLOAD_COLUMN, row.id.bytes))
            and envelope.owner == row.account_id
        }
        keys = await self.decryption_keys(tx, envelopes.values())
        return {
            row_id: texts for row_id, envelope in envelopes.items() if (texts := read_encrypted_payload(keys, envelope))
        }

    async def decrypt_responses(
        self, tx: Tx, responses: Mapping[UUID, Mapping[str, Any] | None]
    ) -> dict[UUID, dict[str, Any]]:
        """Those responses that can be decrypted, by the ids of their replies."""
        envelopes = {
            reply_id: envelope
            for reply_id, response in responses.items()
            if (envelope := find_response_envelope(response)) and envelope.row == reply_id.bytes
        }
        keys = await self.decryption_keys(tx, envelopes.values())
        return {
            reply_id: response
            for reply_id, envelope in envelopes.items()
            if (response := read_encrypted_document(keys, envelope)) is not None
        }

    async def encrypt_answer(self, tx: Tx, account: UUID, column: bytes, row: bytes, answer: Any) -> Any:
        """The response to a webhook, as it is stored for a repeated one."""
        if not self.is_on:
            return answer
        key = (await self.load_keys(tx, {account})).get(account)
        if key is None:
            raise Unavailable(KEY_UNREADABLE, nothing_sent=True)
        return encrypt_document(key, column, row, answer)

    async def decrypt_first_response(self, tx: Tx, message_id: UUID, response: Any) -> Any:
        """The stored response to the webhook of a message."""
        return await self.decrypt_answer(tx, ANSWER_COLUMN, message_id.bytes, response)

    async def decrypt_answer(self, tx: Tx, column: bytes, row: bytes, answer: Any) -> Any:
        envelope = find_envelope(answer, column, row)
        return decrypt_document(await self.decryption_keys(tx, [envelope]), envelope) if envelope else answer


def read_encrypted_payload(
    keys: Mapping[UUID, DataKey], envelope: Envelope
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    try:
        return decrypt_payload(keys, envelope)
    except DecryptionError:
        return None


def read_encrypted_document(keys: Mapping[UUID, DataKey], envelope: Envelope) -> dict[str, Any] | None:
    try:
        return decrypt_document(keys, envelope)
    except DecryptionError:
        return None


def hash_with_key(key: DataKey, event_id: str) -> str:
    return f"keyed:{key.hash(event_id.encode()).hex()}"


def has_encrypted_parts(callback: ClaimedUrl, body: bytes) -> bool:
    """Whether a callback's URL or the body to post may be encrypted."""
    return callback.url.startswith(ENVELOPE_PREFIX) or ENVELOPE_MARK in body


def decrypt_callback(key: DataKey | None, callback: ClaimedUrl, body: bytes) -> tuple[str, bytes]:
    """The URL and the body of a callback. Only the key of its own account decrypts them."""
    keys = {key.owner: key} if key else {}
    url = find_envelope(callback.url, CALLBACK_COLUMN, callback.message_id.bytes)
    return (url.decrypt(keys).decode() if url else callback.url), decrypt_callback_body(keys, callback.id, body)


def decrypt_callback_body(keys: Mapping[UUID, DataKey], reply_id: UUID, body: bytes) -> bytes:
    if ENVELOPE_MARK not in body:
        return body
    response = json.loads(body)
    outputs = list_body_outputs(response)
    if not any(list_output_envelopes(outputs)):
        return body
    return decrypt_body(keys, reply_id, response, outputs)


def list_body_outputs(response: Any) -> list[Any]:
    match response:
        case {"template": {"outputs": [*outputs]}}:
            return outputs
        case {"envelope": str()}:
            return [response]
        case _:
            return []
