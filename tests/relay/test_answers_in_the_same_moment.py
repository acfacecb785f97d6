"""An answer that comes after its message is stored and before its webhook is answered, without a callback."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.core.errors import CallbackExpired
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.reply import reply
from pabal.relay.webhook import handle, held
from pabal.relay.webhook.skill_response import KOREAN_TEXTS, build_quick_reply
from pabal.settings import Settings
from relay.holding import HeldChat, held_chat
from relay.skills import skill_payload, text_of
from support.answer_loss import AnswerLossProxy, PausedQuery, losing_answers
from support.relay_rows import Chat, skill_response
from support.wait import wait_until

pytestmark = pytest.mark.anyio

BUTTON = [build_quick_reply(KOREAN_TEXTS.check_answer)]


@pytest.fixture(autouse=True)
def _timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Webhooks are held, but not for long, and have time for their response."""
    monkeypatch.setattr(held, "HOLD_WINDOW", held.WINDOW_MARGIN + timedelta(seconds=0.05))
    monkeypatch.setattr(handle, "WEBHOOK_TIMEOUT", 60.0)


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
async def paused_hub(
    request: pytest.FixtureRequest, settings: Settings, database_urls: DatabaseUrls
) -> AsyncGenerator[tuple[AnswerLossProxy, Hub]]:
    settings = settings.model_copy(update={"relay_encrypt_text": request.param})
    async with (
        losing_answers(database_urls.main) as (proxy, url),
        open_hub(settings, DatabaseUrls(url, database_urls.direct)) as hub,
    ):
        yield proxy, hub


async def start_paused(
    user: HeldChat, proxy: AnswerLossProxy, *payloads: dict[str, Any]
) -> "tuple[UUID, PausedQuery, list[asyncio.Task[dict[str, Any]]]]":
    """Post webhooks of one message, and pause each before it looks for late replies, in this order."""
    responding = proxy.pause(reply.Q.claim_late_outputs)
    webhooks: list[asyncio.Task[dict[str, Any]]] = []
    for number, payload in enumerate(payloads, 1):
        webhooks.append(user.start_payload(payload))
        await wait_until(lambda number=number: len(responding.waiting) == number)
    return await user.next_message(), responding, webhooks


async def reply_late(user: HeldChat, message: UUID, text: str) -> None:
    with pytest.raises(CallbackExpired):
        await user.reply(message, text)


@pytest.mark.parametrize("mode", ["held", "synchronous"])
async def test_the_answer_is_the_response_and_nothing_says_that_it_is_being_prepared(
    paused_hub: tuple[AnswerLossProxy, Hub], chat: Chat, mode: str
) -> None:
    proxy, hub = paused_hub
    async with held_chat(hub, chat, answer_mode=mode) as user:
        payload = skill_payload("hi", callbackUrl=None, eventId="one")
        message, responding, [webhook] = await start_paused(user, proxy, payload)

        await reply_late(user, message, "hello")
        responding.resume()

        assert await webhook == skill_response("hello")
        assert await user.start_payload(payload) == skill_response("hello")
        row = await chat.reply(message)
        assert row
        assert row["shown_with"] == message


async def test_both_requests_of_a_repeated_webhook_get_the_answer(
    paused_hub: tuple[AnswerLossProxy, Hub], chat: Chat
) -> None:
    proxy, hub = paused_hub
    async with held_chat(hub, chat, answer_mode="held") as user:
        payload = skill_payload("hi", callbackUrl=None, eventId="one")
        message, responding, webhooks = await start_paused(user, proxy, payload, payload)

        await reply_late(user, message, "hello")
        responding.resume()

        assert [await webhook for webhook in webhooks] == [skill_response("hello")] * 2


async def test_a_repeated_webhook_takes_no_late_reply_that_the_first_response_does_not_show(
    paused_hub: tuple[AnswerLossProxy, Hub], chat: Chat
) -> None:
    proxy, hub = paused_hub
    async with held_chat(hub, chat, answer_mode="held") as user:
        assert text_of(await user.start("earlier")) == KOREAN_TEXTS.preparing
        earlier = await user.next_message()
        payload = skill_payload("hi", callbackUrl=None, eventId="one")
        message, responding, [first, repeat] = await start_paused(user, proxy, payload, payload)
        await reply_late(user, message, "hello")
        responding.resume_first()
        response = await first
        await reply_late(user, earlier, "late")
        responding.resume()

        assert await repeat == response
        assert text_of(response) == "hello"
        assert response["template"]["quickReplies"] == BUTTON  # for the earlier message
        assert text_of(await user.start("답변 확인")) == "late"
