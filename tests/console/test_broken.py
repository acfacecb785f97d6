"""A page that fails inside: whoever asked for it is told so on a page, in their language, and nothing of the cause."""

import re
from collections.abc import AsyncGenerator, Generator

import httpx2
import pytest
import structlog
from markupsafe import escape
from structlog.testing import LogCapture

from pabal.console.i18n import TEXTS, Language
from pabal.console.login import OPERATOR_COOKIE as SESSION
from pabal.core.log import add_request_id
from pabal.hub import Hub
from pabal.operators.operators import Role
from pabal.web.auth import PERSON_COOKIE as PERSON
from relay.people import Owning, write
from support.clusters import Connection
from support.inbox import Inbox
from support.operator import sign_in
from support.relay_log import csrf_token_in
from support.revoked_account import MINA
from support.server import serving

pytestmark = pytest.mark.anyio

GONE = ("public.inbound_messages", "pabal.audit_log", "notification.toasts")
"""What every page that is asked for here needs."""
PAGES = ("/console/audit", "/console/relay/messages", "/portal", "/portal/messages", "/chat", "/me", "/me/inbox")
CAUSE = re.compile(r"inbound_messages|audit_log|toasts|relation|Traceback|Error", re.IGNORECASE)


@pytest.fixture
def heard() -> Generator[LogCapture]:
    """What the log says, with the request it says it of."""
    listening = LogCapture()
    structlog.configure(processors=[structlog.processors.format_exc_info, add_request_id, listening])
    yield listening
    structlog.reset_defaults()


@pytest.fixture
async def web(hub: Hub, mine: Owning, inbox: Inbox) -> AsyncGenerator[httpx2.AsyncClient]:
    """One browser that is let in everywhere: an admin's, a bot owner's, a chat user's and a person's."""
    async with serving(hub) as address, httpx2.AsyncClient(base_url=address, headers={"origin": address}) as client:
        client.cookies.set(SESSION, (await sign_in(hub, client, Role.ADMIN)).token)
        client.cookies.set(PERSON, await inbox.cookie())
        [code] = re.findall(r"/chat\?code=([\w-]+)", await write(hub, MINA, "/code"))
        for path, given in (("/portal/login", {"token": mine.token}), ("/chat", {"code": code})):
            assert (await client.post(path, data=given)).status_code == 303
        for path in PAGES:
            assert (await client.get(path)).status_code == 200, path
        yield client


async def lose(owner: Connection) -> None:
    for table in GONE:
        await owner.execute(f"alter table {table} rename to gone")


def told(answer: httpx2.Response, language: Language) -> str:
    """The number on a page that says that it failed, and how: as a page, like every other."""
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
    assert f'<html lang="{language}">' in answer.text
    surface = "common" if answer.request.url.path.startswith("/console") else "people"
    assert escape(TEXTS[language][f"{surface}.error.internal"]) in answer.text
    assert not CAUSE.search(answer.text)
    [number] = re.findall(r'class="detail"[^>]*>([0-9a-f]{32})<', answer.text)
    assert number == answer.headers["x-request-id"]
    return number


@pytest.mark.parametrize("language", ["ko", "en"])
async def test_it_says_so_in_the_visitors_language_with_the_number_that_finds_it_in_the_log(
    web: httpx2.AsyncClient, owner: Connection, heard: LogCapture, language: Language
) -> None:
    await lose(owner)

    numbers = [told(await web.get(path, headers={"accept-language": language}), language) for path in PAGES]

    failed = {line["request"]: line for line in heard.entries if line["event"] == "request failed"}
    assert [failed[number]["path"] for number in numbers] == [*PAGES]
    assert all("does not exist" in line["exception"] for line in failed.values())


async def test_a_deed_that_fails_says_so_too_and_did_nothing(web: httpx2.AsyncClient, owner: Connection) -> None:
    csrf_token = csrf_token_in((await web.get("/portal")).text)
    [csrf] = {*re.findall(r'name="csrf_token" value="([^"]+)"', (await web.get("/console")).text)}
    await lose(owner)

    told(await web.post("/portal/code", data={"csrf_token": csrf_token}, headers={"accept-language": "en"}), "en")
    told(await web.post("/console/relay/accounts", data={"csrf_token": csrf, "name": "x"}), "ko")
    told(await web.post("/me/read"), "ko")

    assert await owner.fetchval("select count(*) from public.accounts") == 1


async def test_a_mistake_of_our_own_code_is_told_like_one_of_the_databases(
    web: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text_id in ("login.password_hint", "portal.login.hint"):
        monkeypatch.delitem(TEXTS["en"], text_id)
    web.cookies.clear()

    for path in ("/console/login", "/portal/login"):
        told(await web.get(path, headers={"accept-language": "en"}), "en")
