"""The bot's relay session: its requests, and how it reconnects."""

import json
from collections.abc import AsyncGenerator, AsyncIterator

import httpx2
import pytest

from pabal.demo.bot import DemoRelaySession, create_demo_session, demo_response, read_sse_events
from pabal.relay.reply.validate import validate_skill_response
from pabal.relay.webhook.skill_response import ChatLanguage
from support.receiver import Receiver, Responder, close_connection, respond_with, run_receiver

pytestmark = pytest.mark.anyio

TOKEN = "0a1b2c3d" * 8
CREATED = {"sessionToken": TOKEN, "pairingCode": "ABCD-2345", "expiresIn": 300, "status": "pending_pairing"}


def stream(*blocks: str) -> bytes:
    return "".join(f"{block}\n\n" for block in blocks).encode()


@pytest.fixture
async def hub() -> AsyncGenerator[Receiver]:
    async with run_receiver() as there:
        yield there


@pytest.fixture
async def session(hub: Receiver) -> AsyncGenerator[DemoRelaySession]:
    hub.script.append(respond_with(body=json.dumps(CREATED).encode()))
    async with httpx2.AsyncClient(base_url=hub.url.removesuffix("/hook"), trust_env=False) as web:
        yield await create_demo_session(web)


async def test_it_reconnects_with_the_last_id_until_its_token_ends(hub: Receiver, session: DemoRelaySession) -> None:
    hub.script += [
        respond_with(
            body=stream(
                'id: 0\nevent: connected\ndata: {"status":"paired"}',
                ": ping",
                'id: 7\nevent: message\ndata: {"id":"m"}',
            )
        ),
        respond_with(body=b'{"status":"paired"}'),
        close_connection,
        respond_with(401),
    ]
    result = [item async for item in session.events()]

    assert [(item.name, item.event_id) for item in result] == [("connected", "0"), ("message", "7")]
    assert [request.target for request in hub.requests] == [
        "/v1/sessions/create",
        "/v1/events",
        f"/v1/sessions/{TOKEN}/status",
        "/v1/events",
        "/v1/events",
    ]
    streams = [request for request in hub.requests if request.target == "/v1/events"]
    assert [request.headers.get("last-event-id") for request in streams] == [None, "7", "7"]
    assert {request.headers["authorization"] for request in streams} == {f"Bearer {TOKEN}"}


async def test_after_pairing_it_reconnects_at_once_as_the_account(hub: Receiver, session: DemoRelaySession) -> None:
    hub.script += [
        respond_with(
            body=stream('id: 0\nevent: pairing_complete\ndata: {"kakaoUserId":"u"}', "id: 1\nevent: x\ndata: {}")
        ),
        respond_with(410),
    ]
    result = [item.name async for item in session.events()]

    assert result == ["pairing_complete"]
    assert [request.target for request in hub.requests[1:]] == ["/v1/events", "/v1/events"]


@pytest.mark.parametrize("answer", [respond_with(body=b'{"status":"expired"}'), respond_with(404)])
async def test_an_ended_session_is_not_reconnected(hub: Receiver, session: DemoRelaySession, answer: Responder) -> None:
    hub.script += [respond_with(body=stream("id: 0\nevent: connected\ndata: {}")), answer]

    assert [item.name async for item in session.events()] == ["connected"]
    assert len(hub.requests) == 3


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_events_are_parsed_across_chunk_boundaries(size: int) -> None:
    text = "가\u2028나"
    wire = stream(": ping", f'id: 3\nevent: message\ndata: {{"text":"{text}"}}', 'data: {"a":"b: c"}')

    async def cut() -> AsyncIterator[bytes]:
        for start in range(0, len(wire), size):
            yield wire[start : start + size]

    result = [item async for item in read_sse_events(cut())]
    assert [(item.name, item.event_id, item.data) for item in result] == [
        ("message", "3", {"text": text}),
        ("message", "", {"a": "b: c"}),
    ]


@pytest.mark.parametrize("language", ["ko", "en"])
@pytest.mark.parametrize("text", ["hello", "카드", "CARD ", "slowly", "천천히", "x" * 2000])
def test_every_reply_of_the_bot_keeps_kakaos_limits(text: str, language: ChatLanguage) -> None:
    assert validate_skill_response(demo_response(text, language))
