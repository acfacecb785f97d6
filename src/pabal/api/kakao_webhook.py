"""Kakao's webhook: authenticate and parse the request, then run the webhook flow."""

from time import monotonic, time
from typing import Any

import msgspec
from starlette.responses import Response

from pabal.core.errors import BodyTooLarge, Invalid, RateLimited, Unauthenticated
from pabal.hub import Hub
from pabal.relay.webhook.authenticity import is_webhook_authentic
from pabal.relay.webhook.payload import InboundPayload, KakaoPayload, parse_inbound_payload
from pabal.web.endpoint import read_body
from pabal.web.errors import invalid_from_msgspec
from pabal.web.request import NUL_MESSAGE, RequestContext, find_nul_field
from pabal.web.route import ErrorFormat, ResponseBody, Route
from pabal.web.untyped_json import decode_untyped_json

MAX_WEBHOOK_BYTES = 1_048_576
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
    settings = hub.settings
    body = await read_body(context.request, min(settings.body_limit, MAX_WEBHOOK_BYTES))
    secrets = [
        secret.get_secret_value() for secret in (settings.webhook_secret, settings.webhook_secret_previous) if secret
    ]
    if not is_webhook_authentic(context.request.headers, body, secrets, settings.webhook_header):
        raise Unauthenticated("the request carries neither a valid signature nor the webhook secret")
    response = await hub.relay.webhooks.handle(parse_webhook(body), started)
    return Response(encode_webhook_response(response), media_type="application/json")


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
        may_raise=(Invalid, Unauthenticated, BodyTooLarge, RateLimited),
        error_format=ErrorFormat.RELAY,
        response=SkillResponseView,
        tag="relay",
    )
    for path in ("/kakao/webhook", "/kakao-talkchannel/webhook")
)
