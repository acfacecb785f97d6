"""Kakao's webhook: authenticate and parse the request, then run the webhook flow."""

from time import monotonic, time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pabal.core.errors import (
    BodyTooLarge,
    Forbidden,
    ForeignOrigin,
    Invalid,
    Unauthenticated,
    UnsupportedMediaType,
)
from pabal.core.forwarding import find_forwarding_header
from pabal.hub import Hub
from pabal.relay.webhook.authenticity import has_signature, is_secret_valid, is_signature_valid, webhook_secrets
from pabal.relay.webhook.held import HeldAnswer, HeldWebhooks
from pabal.relay.webhook.payload import InboundPayload, KakaoPayload, parse_inbound_payload
from pabal.web.endpoint import media_type_of, read_body
from pabal.web.errors import invalid_from_msgspec
from pabal.web.origin import refuse_unknown_host
from pabal.web.request import NUL_MESSAGE, RequestContext, find_nul_field, mark_authenticated
from pabal.web.route import ErrorFormat, HandlerAuth, ResponseBody, Route
from pabal.web.server.connection import find_connection
from pabal.web.untyped_json import decode_untyped_json
from pabal.web.webhook_path import WEBHOOK_PATH

MAX_WEBHOOK_BYTES = 1_048_576
JSON_MEDIA_TYPE = "application/json"
UNAUTHENTIC = "the request carries neither a valid signature nor the webhook secret"
DUPLICATE_WINDOW = 10
"""Seconds within which equal bodies without an id are duplicates."""

encode_webhook_response = msgspec.json.Encoder().encode


class SkillResponseView(ResponseBody, frozen=True, rename="camel", omit_defaults=True):
    """A skill response, version 2.0: an immediate answer, or the promise of one through the callback."""

    version: str
    template: dict[str, Any] | None = None
    use_callback: bool | None = None
    data: dict[str, Any] | None = None


async def post_kakao_webhook(hub: Hub, context: RequestContext) -> Response:
    """Receive a KakaoTalk message. Kakao calls this for every message a user sends.

    A repeated request gets the first response again.
    """
    started = monotonic()
    hub.relay.metrics.webhooks_received.add(1)
    settings, request = hub.settings, context.request
    secrets = webhook_secrets(settings)
    has_secret = is_secret_valid(request.headers, secrets, settings.webhook_header)
    if settings.webhook_open:
        refuse_remote_request(request, hub)
    elif not secrets:
        raise Unauthenticated("this hub has no webhook secret; set PABAL_WEBHOOK_SECRET")
    elif not has_secret and not has_signature(request.headers):  # without reading the body
        raise Unauthenticated(UNAUTHENTIC)
    if has_secret:
        mark_authenticated(request)
    if media_type_of(request) != JSON_MEDIA_TYPE:
        raise UnsupportedMediaType(JSON_MEDIA_TYPE)
    body = await read_body(request, min(settings.body_limit, MAX_WEBHOOK_BYTES))
    if not (settings.webhook_open or has_secret):
        if not is_signature_valid(request.headers, body, secrets):
            raise Unauthenticated(UNAUTHENTIC)
        mark_authenticated(request)
    response = await hub.relay.webhooks.handle(parse_webhook(body), started, context.cancel_on_disconnect)
    if isinstance(response, HeldAnswer):
        return HeldAnswerResponse(response, request, hub.relay.held_webhooks)
    return Response(encode_webhook_response(response), media_type=JSON_MEDIA_TYPE)


class HeldAnswerResponse(Response):
    """A bot's answer in the response to its webhook. Reports whether the client got it."""

    def __init__(self, held: HeldAnswer, request: Request, held_webhooks: HeldWebhooks) -> None:
        super().__init__(held.body, media_type=JSON_MEDIA_TYPE)
        self._held = held
        self._request = request
        self._held_webhooks = held_webhooks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._held.is_claimed:
            await super().__call__(scope, receive, send)
            return
        connection = find_connection(self._request)
        is_sent = False
        try:
            await super().__call__(scope, receive, send)
            is_sent = connection.was_open
        finally:
            self._held_webhooks.record_response(self._held, connection.wait_until_acknowledged(is_sent=is_sent))


def refuse_remote_request(request: Request, hub: Hub) -> None:
    """An open webhook serves programs on this computer: no pages, no proxies, no tunnels."""
    refuse_unknown_host(request, hub)
    if "origin" in request.headers or "sec-fetch-site" in request.headers:
        raise ForeignOrigin
    if header := find_forwarding_header(request.headers.raw):
        raise Forbidden(f"an open webhook accepts no forwarded requests, but this one has the header {header}")


def parse_webhook(body: bytes) -> InboundPayload:
    if field := find_nul_field(body, "body"):
        raise Invalid.of_field(field, NUL_MESSAGE)
    fields = decode_untyped_json(body, "body")
    try:
        payload = msgspec.convert(fields, KakaoPayload)
    except msgspec.ValidationError as error:
        raise invalid_from_msgspec(error, "body") from None
    return parse_inbound_payload(payload, body.decode(), int(time() // DUPLICATE_WINDOW))


ROUTES = tuple(
    Route(
        "POST",
        path,
        post_kakao_webhook,
        handler_auth=HandlerAuth.WEBHOOK,
        may_raise=(Invalid, Unauthenticated, BodyTooLarge, UnsupportedMediaType),
        error_format=ErrorFormat.RELAY,
        documented_body=KakaoPayload,
        response=SkillResponseView,
        tag="relay",
    )
    for path in ("/kakao/webhook", WEBHOOK_PATH)
)
