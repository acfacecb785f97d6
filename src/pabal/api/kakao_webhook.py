"""Kakao's webhook: answered within Kakao's five seconds, whatever the database does."""

import asyncio
import hashlib
import hmac
import time
from typing import Any

import msgspec
from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.responses import Response

from pabal.core.errors import BodyTooLarge, Invalid, RateLimited, Unauthenticated, Unavailable
from pabal.core.log import get_logger
from pabal.db.errors import DatabaseError, RetryableError
from pabal.hub import Hub
from pabal.relay.reply.reply import claim_late_outputs
from pabal.relay.webhook.commands import ChatCommand, parse_chat_command, run_chat_command
from pabal.relay.webhook.payload import InboundPayload, KakaoPayload, parse_inbound_payload
from pabal.relay.webhook.receive import (
    BLOCKED,
    InboundDraft,
    ReceiveResult,
    immediate_response,
    queued_response,
    save_first_response,
)
from pabal.relay.webhook.skill_response import ChatTexts, SkillResponseDict, chat_texts, text_response
from pabal.settings import Settings
from pabal.web.endpoint import read_body
from pabal.web.errors import invalid_from_msgspec
from pabal.web.request import NUL_MESSAGE, RequestContext, find_nul_field
from pabal.web.route import ErrorFormat, ResponseBody, Route

log = get_logger()

WEBHOOK_TIMEOUT = 4.0
"""Seconds; Kakao waits five, and the answer has to travel."""
SIGNATURE_HEADER = "x-kakao-signature"
MAX_WEBHOOK_BYTES = 1_048_576
MAX_SKILL_OUTPUTS = 3

webhook_decoder = msgspec.json.Decoder()
encode_webhook_response = msgspec.json.Encoder().encode


class SkillResponseView(ResponseBody, frozen=True, rename="camel", omit_defaults=True):
    """A skill response of version 2.0: an answer on the spot, or the promise of one through the callback."""

    version: str
    template: dict[str, Any] | None = None
    use_callback: bool | None = None
    data: dict[str, Any] | None = None


async def post_kakao_webhook(hub: Hub, context: RequestContext) -> Response:
    """What Kakao posts for each message a user writes. Repeats of one message get its first answer again."""
    began = time.monotonic()
    hub.relay.metrics.webhooks_received.add(1)
    body = await read_body(context.request, min(hub.settings.body_limit, MAX_WEBHOOK_BYTES))
    if not is_webhook_authentic(hub.settings, context.request.headers, body):
        raise Unauthenticated("the webhook is not signed with our secret")
    arrival = parse_webhook(body)
    language = chat_texts(hub.settings.chat_language)
    if hub.relay.recalls.is_full:
        log.warning("webhook not stored", error="too many wait for the database already")
        return Response(encode_webhook_response(text_response(language.unavailable)), media_type="application/json")
    coming = asyncio.ensure_future(store_webhook(hub, arrival))
    try:
        async with asyncio.timeout(WEBHOOK_TIMEOUT - (time.monotonic() - began)):
            answer = await build_skill_response(hub, arrival, await asyncio.shield(coming), language)
    except TimeoutError:
        hub.relay.recalls.recall(arrival, coming)  # the user was told something else, so the callback is void
        answer = text_response(language.too_late)
    except (Unavailable, RetryableError) as error:
        log.warning("webhook not stored", error=str(error))
        hub.relay.recalls.recall(arrival, coming)
        answer = text_response(language.unavailable)
    return Response(encode_webhook_response(answer), media_type="application/json")


async def store_webhook(hub: Hub, payload: InboundPayload) -> tuple[ChatCommand | None, ReceiveResult]:
    command = parse_chat_command(payload.text, hub.settings.command_prefix)
    try:
        received = await hub.relay.webhook_batcher.put(InboundDraft(payload, is_command=command is not None))
    except RetryableError:
        raise
    except DatabaseError as error:
        raise Invalid.of_field("body", f"holds what PostgreSQL cannot keep: {error}") from None
    if received.message_id:
        hub.relay.metrics.messages_queued.add(1)
    return command, received


async def build_skill_response(
    hub: Hub, payload: InboundPayload, stored: tuple[ChatCommand | None, ReceiveResult], reply_texts: ChatTexts
) -> SkillResponseDict:
    command, received = stored
    settings = hub.settings
    if command and received.state != BLOCKED:
        async with hub.transaction() as tx:
            return await run_chat_command(tx, payload, command, settings, hub.relay.metrics)
    on_spot = immediate_response(received, reply_texts, settings.command_prefix)
    answer = on_spot or queued_response(received, settings.waiting_text)
    if answer is not None:
        return answer
    async with hub.transaction() as tx:  # no callback: what there is to say is said now
        late = await claim_late_outputs(tx, payload.conversation_key, MAX_SKILL_OUTPUTS - 1, received.message_id)
        answer = text_response(reply_texts.no_callback)
        answer["template"]["outputs"][:0] = late
        if late and received.message_id:  # otherwise a repeat is told the same by itself
            await save_first_response(tx, received, answer)
    return answer


def parse_webhook(body: bytes) -> InboundPayload:
    if field := find_nul_field(body, "body"):
        raise Invalid.of_field(field, NUL_MESSAGE)
    try:
        raw = body.decode()
        payload = msgspec.convert(webhook_decoder.decode(raw), KakaoPayload)
    except msgspec.ValidationError as error:
        raise invalid_from_msgspec(error, "body") from None
    except RecursionError:
        raise Invalid.of_field("body", "is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid.of_field("body", f"is not JSON: {error}") from None
    return parse_inbound_payload(payload, raw, int(time.time() // 10))


def is_webhook_authentic(settings: Settings, headers: Headers, body: bytes) -> bool:
    """Whether it shows one of our secrets: as the key of its signature, or as the value of the fixed header."""
    secrets = [each for each in (settings.webhook_secret, settings.webhook_secret_previous) if each]
    if not secrets:
        return True
    signature = headers.get(SIGNATURE_HEADER, "").removeprefix("sha256=").lower().encode()
    shown = headers.get(settings.webhook_header, "").encode()
    return any([signature_matches(secret, body, signature) | secret_matches(secret, shown) for secret in secrets])  # noqa: C419 every one is tried


def signature_matches(secret: SecretStr, body: bytes, signature: bytes) -> bool:
    right = hmac.new(secret.get_secret_value().encode(), body, hashlib.sha256).hexdigest().encode()
    return hmac.compare_digest(right, signature)


def secret_matches(secret: SecretStr, header_value: bytes) -> bool:
    return hmac.compare_digest(secret.get_secret_value().encode(), header_value)


ROUTES = tuple(
    Route(
        "POST",
        path,
        post_kakao_webhook,
        may_raise=(Invalid, Unauthenticated, BodyTooLarge, RateLimited),
        error_format=ErrorFormat.RELAY,
        response=SkillResponseView,
        tag="relay",
    )
    for path in ("/kakao/webhook", "/kakao-talkchannel/webhook")
)
