"""Claimed messages as their bots get them: decrypted, if they are stored encrypted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from pabal.core.errors import DecryptionError
from pabal.core.log import get_logger
from pabal.db.tx import Tx
from pabal.relay.delivery.lane import LANE, ClaimedMessage, MessagePollRequest
from pabal.relay.encryption.data_keys import DataKey
from pabal.relay.encryption.encrypted_values import PAYLOAD_COLUMN, Envelope, decrypt_payload, find_envelope
from pabal.relay.encryption.message_cipher import MessageCipher

log = get_logger()


@dataclass(frozen=True, slots=True)
class MessageClaimer:
    """Claims messages for the bots that wait in this process."""

    cipher: MessageCipher

    async def claim(
        self, tx: Tx, requests: Mapping[MessagePollRequest, int]
    ) -> dict[MessagePollRequest, list[ClaimedMessage]]:
        claimed = await LANE.claim_for_polls(tx, requests)
        all_messages = [message for messages in claimed.values() for message in messages]
        decrypted = {message.id: message for message in await decrypt_messages(tx, self.cipher, all_messages)}
        return {
            request: [decrypted[message.id] for message in messages if message.id in decrypted]
            for request, messages in claimed.items()
        }


async def decrypt_messages(
    tx: Tx, cipher: MessageCipher | None, messages: Sequence[ClaimedMessage]
) -> list[ClaimedMessage]:
    """Decrypt messages. One that cannot be decrypted is left out: it stays claimed, and comes back after its lease."""
    envelopes = [find_envelope(message.kakao_payload, PAYLOAD_COLUMN, message.id.bytes) for message in messages]
    if cipher is None or not any(envelopes):
        return [*messages]
    keys = await cipher.decryption_keys(tx, filter(None, envelopes))
    decrypted: list[ClaimedMessage] = []
    for message, envelope in zip(messages, envelopes, strict=True):
        try:
            decrypted.append(decrypt_message(keys, message, envelope) if envelope else message)
        except DecryptionError as error:
            log.error("message not delivered", message=str(message.id), error=str(error))
    return decrypted


def decrypt_message(keys: Mapping[UUID, DataKey], message: ClaimedMessage, envelope: Envelope) -> ClaimedMessage:
    if envelope.owner != message.account_id:
        raise DecryptionError(f"the text of message {message.id} is another account's")
    payload, normalized = decrypt_payload(keys, envelope)
    return replace(message, kakao_payload=payload, normalized=normalized)
