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

from pabal.api.bind import read_body
from pabal.api.door import Answer, Door, Shape
from pabal.api.mistakes import named
from pabal.api.nul import NO_NUL, field_with_nul
from pabal.api.visit import Visit
from pabal.core.errors import Invalid, TooLarge, TooMany, Unauthenticated, Unavailable
from pabal.core.log import get_logger
from pabal.db.faults import Broken, Contended
from pabal.relay.arrival import Arrival, Payload, read
from pabal.relay.command import Command, command_in
from pabal.relay.commands import obey
from pabal.relay.receive import Brought, Received, remember
from pabal.relay.reply import late_for
from pabal.relay.route import BLOCKED, on_the_spot, passed_on
from pabal.relay.skill import Skill, said
from pabal.relay.texts import Texts, texts
from pabal.settings import Settings
from pabal.wiring import Hub

log = get_logger()

BUDGET = 4.0
"""Seconds; Kakao waits five, and the answer has to travel."""
SIGNATURE = "x-kakao-signature"
MOST_BODY = 1_048_576
MOST_OUTPUTS = 3

decoder = msgspec.json.Decoder()
encode = msgspec.json.Encoder().encode


class SkillResponse(Answer, frozen=True, rename="camel", omit_defaults=True):
    """A skill response of version 2.0: an answer on the spot, or the promise of one through the callback."""

    version: str
    template: dict[str, Any] | None = None
    use_callback: bool | None = None
    data: dict[str, Any] | None = None


async def webhook(hub: Hub, visit: Visit) -> Response:
    """What Kakao posts for each message a user writes. Repeats of one message get its first answer again."""
    began = time.monotonic()
    hub.relay.figures.received.add(1)
    body = await read_body(visit.request, min(hub.settings.body_limit, MOST_BODY))
    if not authentic(hub.settings, visit.request.headers, body):
        raise Unauthenticated("the webhook is not signed with our secret")
    arrival = arrived(body)
    language = texts(hub.settings.chat_language)
    if hub.relay.recalls.full:
        log.warning("webhook not stored", why="too many wait for the database already")
        return Response(encode(said(language.unavailable)), media_type="application/json")
    coming = asyncio.ensure_future(take_in(hub, arrival))
    try:
        async with asyncio.timeout(BUDGET - (time.monotonic() - began)):
            answer = await answered(hub, arrival, await asyncio.shield(coming), language)
    except TimeoutError:
        hub.relay.recalls.recall(arrival, coming)  # the user was told something else, so the callback is void
        answer = said(language.too_late)
    except (Unavailable, Contended) as error:
        log.warning("webhook not stored", why=str(error))
        hub.relay.recalls.recall(arrival, coming)
        answer = said(language.unavailable)
    return Response(encode(answer), media_type="application/json")


async def take_in(hub: Hub, arrival: Arrival) -> tuple[Command | None, Received]:
    command = command_in(arrival.text, hub.settings.command_prefix)
    try:
        received = await hub.relay.reception.put(Brought(arrival, is_command=command is not None))
    except Contended:
        raise
    except Broken as error:
        raise Invalid.one("body", f"holds what PostgreSQL cannot keep: {error}") from None
    if received.message_id:
        hub.relay.figures.queued.add(1)
    return command, received


async def answered(hub: Hub, arrival: Arrival, known: tuple[Command | None, Received], language: Texts) -> Skill:
    command, received = known
    settings = hub.settings
    if command and received.state != BLOCKED:
        async with hub.transaction() as tx:
            return await obey(tx, arrival, command, settings, hub.relay.figures)
    on_spot = on_the_spot(received, language, settings.command_prefix)
    answer = on_spot or passed_on(received, settings.waiting_text)
    if answer is not None:
        return answer
    async with hub.transaction() as tx:  # no callback: what there is to say is said now
        late = await late_for(tx, arrival.key, MOST_OUTPUTS - 1, received.message_id)
        answer = said(language.no_callback)
        answer["template"]["outputs"][:0] = late
        if late and received.message_id:  # otherwise a repeat is told the same by itself
            await remember(tx, received, answer)
    return answer


def arrived(body: bytes) -> Arrival:
    if field := field_with_nul(body, "body"):
        raise Invalid.one(field, NO_NUL)
    try:
        raw = body.decode()
        payload = msgspec.convert(decoder.decode(raw), Payload)
    except msgspec.ValidationError as error:
        raise named(error, "body") from None
    except RecursionError:
        raise Invalid.one("body", "is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid.one("body", f"is not JSON: {error}") from None
    return read(payload, raw, int(time.time() // 10))


def authentic(settings: Settings, headers: Headers, body: bytes) -> bool:
    """Whether it shows one of our secrets: as the key of its signature, or as the value of the fixed header."""
    secrets = [each for each in (settings.webhook_secret, settings.webhook_secret_previous) if each]
    if not secrets:
        return True
    signature = headers.get(SIGNATURE, "").removeprefix("sha256=").lower().encode()
    shown = headers.get(settings.webhook_header, "").encode()
    return any([signed(secret, body, signature) | same(secret, shown) for secret in secrets])  # noqa: C419 every one is tried


def signed(secret: SecretStr, body: bytes, signature: bytes) -> bool:
    right = hmac.new(secret.get_secret_value().encode(), body, hashlib.sha256).hexdigest().encode()
    return hmac.compare_digest(right, signature)


def same(secret: SecretStr, shown: bytes) -> bool:
    return hmac.compare_digest(secret.get_secret_value().encode(), shown)


DOORS = tuple(
    Door(
        "POST",
        path,
        webhook,
        may_raise=(Invalid, Unauthenticated, TooLarge, TooMany),
        shape=Shape.RELAY,
        gives=SkillResponse,
        tag="relay",
    )
    for path in ("/kakao/webhook", "/kakao-talkchannel/webhook")
)
