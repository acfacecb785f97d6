"""The webhook is closed by default, and users who never pair cost nothing lasting."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from pabal.core.errors import InvalidSettings
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.webhook import receive
from pabal.relay.webhook.payload import MAX_CALLBACK_URL_LENGTH, MAX_EVENT_ID_LENGTH, MAX_UTTERANCE_LENGTH
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from pabal.settings import Settings
from relay.people import add_account, create_code
from relay.skills import send_message, skill_payload, text_of
from support.clusters import Connection
from support.server import serve_hub
from support.webhook import WEBHOOK_HEADERS

pytestmark = pytest.mark.anyio

PATH = "/kakao/webhook"
HINT = KOREAN_TEXTS.hint.format(prefix="/")


@asynccontextmanager
async def hub_with(
    database_urls: DatabaseUrls, settings: Settings, **changes: object
) -> AsyncGenerator[httpx2.AsyncClient]:
    """A hub with changed settings, and a client that sends no secret."""
    async with (
        open_hub(settings.model_copy(update=changes), database_urls) as hub,
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address) as client,
    ):
        yield client


async def count_conversations(owner: Connection) -> int:
    return await owner.fetchval("select count(*) from conversation_mappings")


class TestClosed:
    async def test_without_a_configured_secret_every_request_is_refused(
        self, database_urls: DatabaseUrls, settings: Settings, owner: Connection
    ) -> None:
        async with hub_with(database_urls, settings, webhook_secret=None) as web:
            for headers in ({}, WEBHOOK_HEADERS, {"x-pabal-secret": ""}, {"x-kakao-signature": "0" * 64}):
                response = await web.post(PATH, json=skill_payload("/code"), headers=headers)
                assert (response.status_code, response.json()["code"]) == (401, "UNAUTHORIZED")
        assert await count_conversations(owner) == 0

    async def test_a_wrong_secret_is_refused_before_the_body_arrives(self, web: httpx2.AsyncClient) -> None:
        address = urlsplit(str(web.base_url))
        for header in ("X-Pabal-Secret: wrong", "X-Kakao-Signature: not-a-signature"):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(
                f"POST {PATH} HTTP/1.1\r\nHost: {address.netloc}\r\n{header}\r\n"
                "Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n".encode()
            )
            async with asyncio.timeout(10):  # the hub waits 30 seconds for a body that it reads
                assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
            writer.close()

    @pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
    async def test_only_json_is_read(self, web: httpx2.AsyncClient, owner: Connection, content_type: str) -> None:
        headers = WEBHOOK_HEADERS | {"content-type": content_type}

        response = await web.post(PATH, content=json.dumps(skill_payload("hello")), headers=headers)

        assert (response.status_code, response.json()["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
        assert await count_conversations(owner) == 0
        headers["content-type"] = "Application/JSON; charset=utf-8"
        assert (await web.post(PATH, content=json.dumps(skill_payload("hello")), headers=headers)).status_code == 200


class TestOpen:
    @pytest.fixture
    async def open_web(self, database_urls: DatabaseUrls, settings: Settings) -> AsyncGenerator[httpx2.AsyncClient]:
        async with hub_with(database_urls, settings, webhook_secret=None, webhook_open=True) as client:
            yield client

    @pytest.mark.parametrize(
        "values",
        [
            {"host": "0.0.0.0"},
            {"host": "hub.example.org"},
            {"public_url": "https://hub.example.org"},
            {"public_url": "http://127.0.0.1:8700"},
            {"webhook_secret": "hush"},
            {"trusted_proxies": "127.0.0.1"},  # a proxy that adds no header makes every request look local
        ],
    )
    def test_it_opens_only_on_loopback_without_a_public_url(self, values: dict[str, str], tmp_path: Path) -> None:
        with pytest.raises(InvalidSettings, match="PABAL_WEBHOOK_OPEN"):
            Settings(_env_file=None, data_dir=tmp_path, webhook_open=True, **values)  # pyright: ignore[reportCallIssue, reportArgumentType]
        Settings(_env_file=None, data_dir=tmp_path, webhook_open=True)  # pyright: ignore[reportCallIssue]

    async def test_a_program_on_this_computer_needs_no_secret(self, open_web: httpx2.AsyncClient) -> None:
        response = await open_web.post(PATH, json=skill_payload("hello"))

        assert (response.status_code, text_of(response.json())) == (200, HINT)

    @pytest.mark.parametrize(
        "headers",
        [
            {"forwarded": "for=192.0.2.1"},
            {"x-forwarded-for": "192.0.2.1"},
            {"x-forwarded-host": "hub.example.org"},
            {"x-real-ip": "192.0.2.1"},
            {"cf-connecting-ip": "192.0.2.1"},
            {"via": "1.1 tunnel"},
            {"tailscale-user-login": "mina"},
            {"host": "evil.example"},
            {"host": "evil.example:8700"},
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-origin"},
        ],
        ids=str,
    )
    async def test_pages_proxies_and_tunnels_are_refused(
        self, open_web: httpx2.AsyncClient, owner: Connection, headers: dict[str, str]
    ) -> None:
        assert (await open_web.post(PATH, json=skill_payload("hello"), headers=headers)).status_code == 403
        assert await count_conversations(owner) == 0

    async def test_no_page_of_a_conversation_opens_and_no_pairing_ends(
        self, open_web: httpx2.AsyncClient, hub: Hub, owner: Connection
    ) -> None:
        bot = await add_account(hub)
        await open_web.post(PATH, json=skill_payload(f"/pair {await create_code(hub, bot.account)}"))

        responses = [await open_web.post(PATH, json=skill_payload(command)) for command in ("/code", "/unpair")]

        assert [text_of(response.json()) for response in responses] == [KOREAN_TEXTS.command_unavailable] * 2
        assert await owner.fetchval("select count(*) from conversation_codes") == 0
        assert await owner.fetchval("select state from conversation_mappings") == "PAIRED"


@pytest.mark.usefixtures("stopped_clock")
class TestNewUsers:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(receive, "MAX_NEW_CONVERSATIONS_PER_CHANNEL", 3)
        monkeypatch.setattr(receive, "MAX_NEW_CONVERSATIONS_PER_HUB", 5)

    async def test_made_up_users_and_channels_are_answered_but_not_stored(
        self, web: httpx2.AsyncClient, owner: Connection
    ) -> None:
        async def storage() -> list[int]:
            tables = ("conversation_mappings", "pabal.limits", "command_answers", "conversation_codes")
            return [await owner.fetchval(f"select count(*) from {table}") for table in tables]

        for number in range(20):
            assert text_of(await send_message(web, "hello", f"user-{number}")) == HINT
        assert await count_conversations(owner) == 3, "of one channel"
        for number in range(10):
            payload = skill_payload("hello", f"user-{number}") | {"bot": {"id": f"channel-{number}"}}
            assert (await web.post(PATH, json=payload, headers=WEBHOOK_HEADERS)).status_code == 200
        full = await storage()
        assert full[0] <= 5, "in all"

        for number in range(30, 60):
            payload = skill_payload(("/help", "/status", "/code", "hello")[number % 4], f"user-{number}")
            payload |= {"bot": {"id": f"channel-{number}"}}
            assert (await web.post(PATH, json=payload, headers=WEBHOOK_HEADERS)).status_code == 200
        assert await storage() == full

    async def test_many_at_once_stay_within_the_limits(self, web: httpx2.AsyncClient, owner: Connection) -> None:
        responses = await asyncio.gather(*(send_message(web, "hello", f"user-{number}") for number in range(40)))

        assert {*map(text_of, responses)} == {HINT}
        assert await count_conversations(owner) == 3

    async def test_known_users_are_not_counted(self, web: httpx2.AsyncClient, hub: Hub, owner: Connection) -> None:
        bot = await add_account(hub)
        await send_message(web, f"/pair {await create_code(hub, bot.account)}", "mina")
        for number in range(10):
            await send_message(web, "hello", f"user-{number}")

        assert (await send_message(web, "hello", "mina"))["useCallback"] is True
        assert await owner.fetchval("select count(*) from inbound_messages") == 1

    async def test_a_user_beyond_the_limits_can_still_pair(
        self, web: httpx2.AsyncClient, hub: Hub, owner: Connection
    ) -> None:
        bot = await add_account(hub)
        for number in range(10):
            await send_message(web, "hello", f"user-{number}")

        assert text_of(await send_message(web, "/pair ABCD-2345", "late")) == KOREAN_TEXTS.wrong_code
        assert text_of(await send_message(web, "/pair", "late")) == KOREAN_TEXTS.code_missing.format(prefix="/")
        assert text_of(await send_message(web, "/unpair", "late")) == KOREAN_TEXTS.not_paired
        assert await count_conversations(owner) == 3
        code = await create_code(hub, bot.account)
        assert text_of(await send_message(web, f"/pair {code}", "late")) == KOREAN_TEXTS.paired.format(prefix="/")
        assert text_of(await send_message(web, f"/pair {code}", "later")) == KOREAN_TEXTS.wrong_code, "used"
        assert (await send_message(web, "hello", "late"))["useCallback"] is True


LONG_FIELDS = {
    "utterance": {"utterance": "x" * (MAX_UTTERANCE_LENGTH + 1)},
    "callbackUrl": {"callbackUrl": "https://bot-api.kakao.com/" + "x" * MAX_CALLBACK_URL_LENGTH},
    "eventId": {"eventId": "x" * (MAX_EVENT_ID_LENGTH + 1)},
}


class TestLongInput:
    @pytest.mark.parametrize("field", LONG_FIELDS)
    async def test_a_field_that_is_too_long_is_refused(
        self, web: httpx2.AsyncClient, owner: Connection, field: str
    ) -> None:
        response = await web.post(PATH, json=skill_payload("hello", **LONG_FIELDS[field]), headers=WEBHOOK_HEADERS)

        assert response.status_code == 400
        assert response.json()["message"].startswith(f"userRequest.{field}: is longer than ")
        assert await count_conversations(owner) == 0

    @pytest.mark.parametrize(
        "text",
        [
            "/pair " + "a" + "\u0301\u0316" * (MAX_UTTERANCE_LENGTH // 2 - 10),
            "/pair " + "\ufdfa" * (MAX_UTTERANCE_LENGTH - 10),
            "/pair " + "- " * (MAX_UTTERANCE_LENGTH // 2 - 10),
            "/" + "\u1e9e" * (MAX_UTTERANCE_LENGTH - 10),
            " " * (MAX_UTTERANCE_LENGTH - 10) + "/pair",
        ],
        ids=["combining marks", "ligatures", "separators", "a long word", "spaces"],
    )
    async def test_the_longest_command_takes_no_time(self, web: httpx2.AsyncClient, text: str) -> None:
        """Server and client run in this thread. Normalising 20,000 combining marks takes half a second."""
        await send_message(web, "/pair ABCD-2345", "warm-up")
        started = time.thread_time()

        response = await send_message(web, text)

        assert time.thread_time() - started < 0.1
        assert text_of(response)
