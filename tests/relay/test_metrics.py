"""The relay's metrics, as Prometheus scrapes them."""

import re

import httpx2
import pytest

from pabal.hub import Hub
from relay.bot import connect_stream
from relay.skills import send_message
from support.fake_kakao import FakeKakao, kakao_response
from support.relay_rows import Chat, Owner, skill_response
from support.server import serve_hub

pytestmark = pytest.mark.anyio

SAMPLE = re.compile(r"^relay_(\w+)_total(?:{[^}]*})? ([\d.]+)$", re.MULTILINE)


async def read_metrics(web: httpx2.AsyncClient) -> dict[str, float]:
    text = (await web.get("/metrics")).text
    return {name: float(number) for name, number in SAMPLE.findall(text)}


async def send_reply(web: httpx2.AsyncClient, owner: Owner, message: str) -> None:
    response = await web.post(
        "/openclaw/reply", json={"messageId": message, "response": skill_response("hello")}, headers=owner.header
    )
    assert response.status_code in {200, 502}, response.text


async def test_seven_of_the_eight_metrics_count_in_the_code_path(hub: Hub, chat: Chat, fake_kakao: FakeKakao) -> None:
    """The eighth, expired messages, is counted by its chore."""
    owner = await chat.owner()
    async with (
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address) as web,
        connect_stream(address, owner.token) as client,
    ):
        await client.next("connected")
        code = (await web.post("/openclaw/pairing/generate", json={}, headers=owner.header)).json()["code"]
        await send_message(web, f"/pair {code}", user="mina")
        await client.next("pairing_complete")
        assert await read_metrics(web) == {"webhook_received": 1, "pairing_created": 1, "pairing_verified": 1}

        await send_message(web, "hi", user="mina", callbackUrl=fake_kakao.url("first"))
        await send_reply(web, owner, (await client.next_message())["id"])
        fake_kakao.responder = kakao_response("FAIL", "no")
        await send_message(web, "hi again", user="mina", callbackUrl=fake_kakao.url("second"))
        await send_reply(web, owner, (await client.next_message())["id"])

        assert await read_metrics(web) == {
            "webhook_received": 3,
            "pairing_created": 1,
            "pairing_verified": 1,
            "message_queued": 2,
            "message_delivered": 2,
            "callback_sent": 1,
            "callback_failed": 1,
        }
