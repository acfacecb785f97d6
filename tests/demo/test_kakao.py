"""The fake Kakao: its webhooks, its chat and its callbacks."""

import json
import socket
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import httpx2
import msgspec
import pytest

from pabal.demo.kakao import CALLBACK_LIFETIME_SECONDS, FakeKakao
from pabal.demo.run import listener_url, serve_fake_kakao
from pabal.relay.webhook.payload import KakaoPayload, parse_inbound_payload
from support.demo import USER
from support.receiver import Receiver, close_connection, respond_with, run_receiver
from support.webhook import WEBHOOK_HEADERS

pytestmark = pytest.mark.anyio

AWAITED = respond_with(body=b'{"version":"2.0","useCallback":true,"data":{"text":"Hm"}}')
ON_THE_SPOT = respond_with(body=b'{"version":"2.0","template":{"outputs":[{"simpleText":{"text":"Hello"}}]}}')


def skill(text: str) -> dict[str, Any]:
    return {"version": "2.0", "template": {"outputs": [{"simpleText": {"text": text}}]}}


@dataclass(slots=True)
class Platform:
    """The fake Kakao with a skill server and a clock of the test."""

    kakao: FakeKakao
    skill_server: Receiver
    web: httpx2.AsyncClient
    now: float = 0.0

    @property
    def entries(self) -> list[dict[str, Any]]:
        return self.kakao.chat(USER).entries

    @property
    def kinds(self) -> list[str]:
        return [entry["kind"] for entry in self.entries]

    def callback(self) -> str:
        """The callback URL of the last webhook."""
        return json.loads(self.skill_server.requests[-1].body)["userRequest"]["callbackUrl"]


@pytest.fixture
async def platform() -> AsyncGenerator[Platform]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with (
            run_receiver() as skill_server,
            serve_fake_kakao(
                listener,
                skill_server.url.removesuffix("/hook"),
                WEBHOOK_HEADERS,
                has_bot=True,
                clock=lambda: platform.now,
            ) as kakao,
            httpx2.AsyncClient(base_url=listener_url(listener)) as web,
        ):
            platform = Platform(kakao, skill_server, web)
            platform.skill_server.responder = AWAITED
            yield platform


async def test_the_payload_is_one_the_hub_reads(platform: Platform) -> None:
    await platform.kakao.send_message(USER, "안녕: 여기")

    [request] = platform.skill_server.requests
    assert (request.method, request.target) == ("POST", "/kakao-talkchannel/webhook")
    assert WEBHOOK_HEADERS.items() <= dict(request.headers).items()
    raw = request.body.decode()
    arrival = parse_inbound_payload(msgspec.json.decode(raw, type=KakaoPayload), raw, 0)
    assert (arrival.conversation_key, arrival.text) == (f"pabal-demo:{USER}", "안녕: 여기")
    assert arrival.callback_url == platform.callback()


async def test_an_immediate_response_is_shown_and_ends_the_callback(platform: Platform) -> None:
    platform.skill_server.responder = ON_THE_SPOT
    await platform.kakao.send_message(USER, "hi")

    assert platform.kinds == ["mine", "said"]
    assert platform.entries[1]["outputs"] == [{"simpleText": {"text": "Hello"}}]
    late = await platform.web.post(platform.callback(), json=skill("and more"))
    assert (late.status_code, late.json()["status"]) == (404, "FAIL")
    assert platform.kinds == ["mine", "said"]


async def test_a_callback_is_valid_once(platform: Platform) -> None:
    await platform.kakao.send_message(USER, "hi")
    assert platform.entries[1] | {"at": 0} == {"number": 2, "kind": "awaited", "at": 0, "text": "Hm", "answers": 1}

    first = await platform.web.post(platform.callback(), json=skill("one"))
    second = await platform.web.post(platform.callback(), json=skill("two"))

    assert first.json().keys() == {"taskId", "status", "message", "timestamp"}
    assert (first.status_code, first.json()["status"]) == (200, "SUCCESS")
    assert (second.status_code, second.json()["status"]) == (200, "FAIL")
    assert platform.kinds == ["mine", "awaited", "said"]
    assert platform.entries[2]["answers"] == 1


async def test_a_callback_is_valid_for_a_minute(platform: Platform) -> None:
    await platform.kakao.send_message(USER, "quick")
    platform.now = CALLBACK_LIFETIME_SECONDS - 0.1
    in_time = await platform.web.post(platform.callback(), json=skill("one"))
    await platform.kakao.send_message(USER, "slow")
    platform.now = 2 * CALLBACK_LIFETIME_SECONDS
    too_late = await platform.web.post(platform.callback(), json=skill("two"))

    assert in_time.json()["status"] == "SUCCESS"
    assert (too_late.status_code, too_late.json()["status"]) == (200, "FAIL")
    assert "expired" in too_late.json()["message"]
    assert platform.kinds == ["mine", "awaited", "said", "mine", "awaited"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"version":"2.0"}', b'{"template":{"outputs":[]}}'])
async def test_an_invalid_response_uses_up_the_callback(platform: Platform, body: bytes) -> None:
    await platform.kakao.send_message(USER, "hi")

    burnt = await platform.web.post(platform.callback(), content=body)
    after = await platform.web.post(platform.callback(), json=skill("one"))

    assert (burnt.status_code, burnt.json()["status"]) == (400, "ERROR")
    assert after.json()["status"] == "FAIL"
    assert platform.kinds == ["mine", "awaited", "lapsed"]


async def test_a_failing_skill_server_is_shown_in_the_chat(platform: Platform) -> None:
    platform.skill_server.script.extend([respond_with(503), respond_with(200, b"<html>"), close_connection])
    for _ in range(3):
        await platform.kakao.send_message(USER, "hi")

    result = [(entry.get("why"), entry.get("status")) for entry in platform.entries if entry["kind"] == "failed"]
    assert result == [("refused", 503), ("refused", 200), ("silent", None)]


async def test_a_reconnecting_page_resumes(platform: Platform) -> None:
    for text in ("one", "two"):
        await platform.kakao.send_message(USER, text)

    seen: list[bytes] = []
    headers = {"last-event-id": "3"}
    async with platform.web.stream("GET", f"/chats/{USER}", headers=headers) as stream:
        assert stream.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        async for chunk in stream.aiter_bytes():
            seen += [line for line in chunk.split(b"\n") if line.startswith(b"id: ")]
            if len(seen) >= 2:  # the missed entry and the bot status
                break
    assert seen == [b"id: 4", b"id: 4"]


async def test_what_a_page_may_send(platform: Platform) -> None:
    chat = f"/chats/{USER}"
    foreign = await platform.web.post(chat, content='{"text":"hi"}', headers={"content-type": "text/plain"})
    crooked = await platform.web.post(chat, json={"text": 7})
    unknown = await platform.web.post("/chats/a%2Fb", json={"text": "hi"})
    huge = await platform.web.post(chat, json={"text": "x" * 1_100_000})

    assert [item.status_code for item in (foreign, crooked, unknown, huge)] == [415, 400, 404, 413]
    assert platform.entries == []
    good = await platform.web.post(chat, json={"text": "hi", "language": "en"})
    assert good.status_code == 204
    assert platform.kinds == ["mine", "awaited"]
