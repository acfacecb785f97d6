"""What encrypted values look like in their columns. Pure functions.

| column | value |
|---|---|
| `inbound_messages.kakao_payload` | `{"envelope": …}` of the JSON array `[payload, normalized]` |
| `inbound_messages.normalized` | `{"envelope": "kakao_payload"}`: the envelope of that column contains it |
| `inbound_messages.callback_url` | the envelope itself |
| `inbound_messages.answer`, `command_answers.answer` | `{"envelope": …}` |
| `relay_replies.response` | `{"template": {"outputs": [{"envelope": …, "reply": …}, null, …]}}` |

The number of a reply's outputs stays readable: statements choose by it which late replies fit into a response.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

import msgspec

from pabal.core.errors import DecryptionError, Invalid
from pabal.core.json_object import JsonObject
from pabal.db.stored_json import decode_any_json, decode_jsonb
from pabal.relay.encryption.data_keys import DataKey, envelope_owner
from pabal.relay.reply.validate import MAX_QUICK_REPLIES

PAYLOAD_COLUMN, CALLBACK_COLUMN = b"inbound_messages.kakao_payload:", b"inbound_messages.callback_url:"
ANSWER_COLUMN, COMMAND_COLUMN = b"inbound_messages.answer:", b"command_answers.answer:"
RESPONSE_COLUMN = b"relay_replies.response:"
OUTPUT_FIELDS = {"envelope", "reply"}
NORMALIZED_REFERENCE = '{"envelope":"kakao_payload"}'


@dataclass(frozen=True, slots=True)
class Envelope:
    """An envelope with the column and the row it belongs to."""

    text: str
    owner: UUID
    column: bytes
    row: bytes

    def decrypt(self, keys: Mapping[UUID, DataKey]) -> bytes:
        key = keys.get(self.owner)
        if key is None:
            raise DecryptionError(f"no key decrypts {self.column.decode().rstrip(':')} of {self.owner}")
        return key.decrypt(self.text, self.column, self.row)


def find_envelope(value: object, column: bytes, row: bytes) -> Envelope | None:
    """The envelope in a column's value; None if it is stored as it is, although it may have a field of that name."""
    match value:
        case {"envelope": str() as text} if len(cast("JsonObject", value)) == 1:
            pass
        case str() as text:
            pass
        case _:
            return None
    owner = envelope_owner(text)
    return owner and Envelope(text, owner, column, row)


def check_payload_json(raw: str) -> JsonObject:
    """Decode a webhook's body as PostgreSQL would; raise Invalid for what could not be sent on."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        decoded = decode_any_json(raw)
        try:
            json.dumps(decoded, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError):
            decoded = None
        if not isinstance(decoded, dict):
            raise Invalid.of_field("body", "is not JSON that can be stored") from None
        return cast("JsonObject", decoded)


def encrypt_payload(key: DataKey, message_id: UUID, raw_json: str, normalized_json: bytes) -> str:
    """The value of `kakao_payload`."""
    texts = b"[%b,%b]" % (raw_json.encode(), normalized_json)
    return f'{{"envelope":"{key.encrypt(texts, PAYLOAD_COLUMN, message_id.bytes)}"}}'


def decrypt_payload(keys: Mapping[UUID, DataKey], envelope: Envelope) -> tuple[JsonObject, JsonObject]:
    """The payload and the normalized message."""
    payload, normalized = decode_jsonb(envelope.decrypt(keys).decode())
    return payload, normalized


def encrypt_document(key: DataKey, column: bytes, row: bytes, document: JsonObject) -> JsonObject:
    return {"envelope": key.encrypt(msgspec.json.encode(document), column, row)}


def decrypt_document(keys: Mapping[UUID, DataKey], envelope: Envelope) -> JsonObject:
    return decode_jsonb(envelope.decrypt(keys).decode())


def encrypt_response(key: DataKey, reply_id: UUID, response_json: bytes, response: JsonObject) -> str:
    """The value of `response`. The outputs after the first are null."""
    envelope = f'{{"envelope":"{key.encrypt(response_json, RESPONSE_COLUMN, reply_id.bytes)}","reply":"{reply_id}"}}'
    template = response.get("template")
    outputs = cast("JsonObject", template).get("outputs") if isinstance(template, dict) else None
    if not isinstance(outputs, list) or not outputs:
        return envelope
    others = ",null" * (len(cast("list[object]", outputs)) - 1)
    return f'{{"template":{{"outputs":[{envelope}{others}]}}}}'


def find_response_envelope(response: Mapping[str, Any] | None) -> Envelope | None:
    """The envelope in a stored response."""
    match response:
        case {"template": {"outputs": [first, *_]}}:
            return find_output_envelope(first)
        case _:
            return find_output_envelope(response)


def find_output_envelope(output: object) -> Envelope | None:
    match output:
        case {"envelope": str() as text, "reply": str() as reply} if cast("JsonObject", output).keys() == OUTPUT_FIELDS:
            return find_envelope(text, RESPONSE_COLUMN, reply_bytes(reply))
        case _:
            return None


def reply_bytes(reply: str) -> bytes:
    try:
        return UUID(reply).bytes
    except ValueError:
        return b""


def list_output_envelopes(outputs: Sequence[object]) -> Iterator[Envelope]:
    for output in outputs:
        if envelope := find_output_envelope(output):
            yield envelope


def decrypt_outputs(keys: Mapping[UUID, DataKey], outputs: Sequence[Any]) -> list[Any]:
    """Outputs of several replies, each encrypted reply in place of its first output."""
    decrypted: list[Any] = []
    for output in outputs:
        if output is None:
            continue
        envelope = find_output_envelope(output)
        decrypted += json.loads(envelope.decrypt(keys))["template"]["outputs"] if envelope else [output]
    return decrypted


def decrypt_body(keys: Mapping[UUID, DataKey], reply_id: UUID, body: JsonObject, outputs: Sequence[Any]) -> bytes:
    """A response to post, with all of its outputs decrypted. What surrounds the own outputs of `reply_id` stays."""
    for output in outputs:
        envelope = find_output_envelope(output)
        if envelope and envelope.row == reply_id.bytes:
            plain, added = envelope.decrypt(keys), list_quick_replies(body)
            if not added and len([other for other in outputs if other is not None]) == 1:
                return plain
            body = add_quick_replies(json.loads(plain), added)
            break
    template: JsonObject = body.get("template") or {}
    complete: JsonObject = body | {"template": template | {"outputs": decrypt_outputs(keys, outputs)}}
    return json.dumps(complete, ensure_ascii=False).encode()


def list_quick_replies(response: JsonObject) -> list[JsonObject]:
    template: JsonObject = response.get("template") or {}
    return template.get("quickReplies") or []


def add_quick_replies(response: JsonObject, added: Sequence[JsonObject]) -> JsonObject:
    """The response with the hub's quick replies after those of the bot, as many as Kakao allows."""
    if not added:
        return response
    quick_replies = [*list_quick_replies(response), *added][:MAX_QUICK_REPLIES]
    return response | {"template": response["template"] | {"quickReplies": quick_replies}}
