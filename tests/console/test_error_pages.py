"""Internal errors: the visitor gets a translated error page that does not reveal the cause."""

import re
from collections.abc import AsyncGenerator, Generator

import httpx2
import pytest
import structlog
from markupsafe import escape
from structlog.testing import LogCapture

from pabal.console.access.login import OPERATOR_COOKIE as SESSION
from pabal.console.i18n import TEXTS, Language
from pabal.core.log import add_request_id
from pabal.hub import Hub
from pabal.operators.operators import Role
from pabal.web.auth import PERSON_COOKIE as PERSON
from relay.people import RelayAccount, send_command
from support.clusters import Connection
from support.inbox import Inbox
from support.operator import sign_in
from support.relay_log import csrf_token_in
from support.revoked_account import MINA
from support.server import serve_hub

pytestmark = pytest.mark.anyio

RENAMED_TABLES = ("public.inbound_messages", "pabal.audit_log", "notification.toasts")
"""Tables that the pages below read."""
PAGES = ("/console/audit", "/console/relay/messages", "/portal", "/portal/messages", "/chat", "/me", "/me/inbox")
CAUSE = re.compile(r"inbound_messages|audit_log|toasts|relation|Traceback|Error", re.IGNORECASE)


@pytest.fixture
def log_capture() -> Generator[LogCapture]:
    """Capture log events with their request ids."""
    capture = LogCapture()
    structlog.configure(processors=[structlog.processors.format_exc_info, add_request_id, capture])
    yield capture
    structlog.reset_defaults()


@pytest.fixture
async def web(hub: Hub, paired_account: RelayAccount, inbox: Inbox) -> AsyncGenerator[httpx2.AsyncClient]:
    """A client that is signed in as an admin, a bot owner, a chat user and a person."""
    async with serve_hub(hub) as address, httpx2.AsyncClient(base_url=address, headers={"origin": address}) as client:
        client.cookies.set(SESSION, (await sign_in(hub, client, Role.ADMIN)).token)
        client.cookies.set(PERSON, await inbox.cookie())
        [code] = re.findall(r"/chat\?code=([\w-]+)", await send_command(hub, MINA, "/code"))
        for path, fields in (("/portal/login", {"token": paired_account.token}), ("/chat", {"code": code})):
            assert (await client.post(path, data=fields)).status_code == 303
        for path in PAGES:
            assert (await client.get(path)).status_code == 200, path
        yield client


async def rename_tables(owner: Connection) -> None:
    for table in RENAMED_TABLES:
        await owner.execute(f"alter table {table} rename to gone")


def error_page_request_id(response: httpx2.Response, language: Language) -> str:
    """Check the error page and return its request id."""
    assert response.status_code == 500
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
    assert f'<html lang="{language}">' in response.text
    surface = "common" if response.request.url.path.startswith("/console") else "people"
    assert escape(TEXTS[language][f"{surface}.error.internal"]) in response.text
    assert not CAUSE.search(response.text)
    [number] = re.findall(r'class="detail"[^>]*>([0-9a-f]{32})<', response.text)
    assert number == response.headers["x-request-id"]
    return number


@pytest.mark.parametrize("language", ["ko", "en"])
async def test_an_error_page_is_translated_and_shows_the_request_id_of_the_log(
    web: httpx2.AsyncClient, owner: Connection, log_capture: LogCapture, language: Language
) -> None:
    await rename_tables(owner)

    numbers = [
        error_page_request_id(await web.get(path, headers={"accept-language": language}), language) for path in PAGES
    ]

    failed = {line["request"]: line for line in log_capture.entries if line["event"] == "request failed"}
    assert [failed[number]["path"] for number in numbers] == [*PAGES]
    assert all("does not exist" in line["exception"] for line in failed.values())


async def test_a_failed_action_shows_an_error_page_and_changes_nothing(
    web: httpx2.AsyncClient, owner: Connection
) -> None:
    csrf_token = csrf_token_in((await web.get("/portal")).text)
    [csrf] = {*re.findall(r'name="csrf_token" value="([^"]+)"', (await web.get("/console")).text)}
    await rename_tables(owner)

    error_page_request_id(
        await web.post("/portal/code", data={"csrf_token": csrf_token}, headers={"accept-language": "en"}), "en"
    )
    error_page_request_id(await web.post("/console/relay/accounts", data={"csrf_token": csrf, "name": "x"}), "ko")
    error_page_request_id(await web.post("/me/read"), "ko")

    assert await owner.fetchval("select count(*) from public.accounts") == 1


async def test_an_unexpected_exception_shows_the_same_error_page(
    web: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text_id in ("login.password_hint", "portal.login.hint"):
        monkeypatch.delitem(TEXTS["en"], text_id)
    web.cookies.clear()

    for path in ("/console/login", "/portal/login"):
        error_page_request_id(await web.get(path, headers={"accept-language": "en"}), "en")
