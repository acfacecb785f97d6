"""Neither the log nor the database contains a secret that was entered or shown in the console."""

import json
import logging
import re
from collections.abc import Generator

import httpx2
import pytest
import structlog

from pabal.console.access.login import LOGIN_FORM_COOKIE, OPERATOR_COOKIE
from pabal.core.log import configure_logging
from pabal.hub import DatabaseUrls, Hub
from pabal.operators.operators import ensure_first_operator
from relay.people import add_account, key_of_user, pair_user, send_command
from support.dump import dump_database
from support.inbox import open_inbox
from support.operator import PASSWORD
from support.relay_log import csrf_token_in

pytestmark = pytest.mark.anyio

USER = "mina-plusfriend-1"
CLIENTS = ("httpx2", "httpcore2")
"""HTTP clients of the test, whose logs are not the hub's."""
TYPED_SECRETS = ("a wrong horse", "my password as a name", "a new horse")


@pytest.fixture(autouse=True)
def _restore_logging() -> Generator[None]:
    root, *others = (logging.getLogger(name) for name in ("", "uvicorn", "asyncio", *CLIENTS))
    handlers, levels = root.handlers[:], [logger.level for logger in (root, *others)]
    for name in CLIENTS:
        logging.getLogger(name).setLevel(logging.WARNING)
    yield
    root.handlers[:] = handlers
    for logger, level in zip((root, *others), levels, strict=True):
        logger.setLevel(level)
    structlog.reset_defaults()


def hidden_field(page: httpx2.Response, name: str) -> str:
    match = re.search(rf'name="{name}" value="([^"]+)"', page.text)
    assert match, page.text
    return match[1]


async def test_using_the_console_logs_no_secret(
    hub: Hub, web: httpx2.AsyncClient, database_urls: DatabaseUrls, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("debug", "json")
    web.headers["origin"] = str(web.base_url).rstrip("/")
    async with hub.transaction() as tx:
        await ensure_first_operator(tx, PASSWORD)
    secrets = {*TYPED_SECRETS, PASSWORD, USER}

    for name, password in (("admin", TYPED_SECRETS[0]), (TYPED_SECRETS[1], TYPED_SECRETS[0]), ("admin", PASSWORD)):
        form = {
            "csrf_token": hidden_field(await web.get("/console/login"), "csrf_token"),
            "name": name,
            "password": password,
        }
        secrets |= {web.cookies[LOGIN_FORM_COOKIE]}
        signed_in = await web.post("/console/login", data=form)
    assert signed_in.status_code == 303
    csrf = hidden_field(await web.get("/console/you"), "csrf_token")
    changed = {"csrf_token": csrf, "old": PASSWORD, "new": TYPED_SECRETS[2], "again": TYPED_SECRETS[2]}
    secrets |= {web.cookies[OPERATOR_COOKIE], csrf}
    await web.post("/console/you/password", data=changed)
    csrf = hidden_field(await web.get("/console"), "csrf_token")
    service = {"csrf_token": csrf, "name": "shop", "permission": "events:publish"}
    created = [
        await web.post("/console/services", data=service),
        await web.post("/console/relay/accounts", data={"csrf_token": csrf, "name": "bot"}),
    ]
    shown_secrets = [*map(secret_in, created)]
    secrets |= {web.cookies[OPERATOR_COOKIE], csrf, *shown_secrets}

    owner = await add_account(hub, "mina's bot")
    await pair_user(hub, USER, owner.account)
    await web.post("/portal/login", data={"token": owner.token[:-1]})
    await web.post("/portal/login", data={"token": owner.token})
    csrf_token = csrf_token_in((await web.get("/portal")).text)
    again = await web.post("/portal/rotate", data={"csrf_token": csrf_token, "count": "0"})
    secrets |= {owner.token, csrf_token, web.cookies["pabal_portal"], secret_in(again)}
    [code] = re.findall(r"/chat\?code=([\w-]+)", await send_command(hub, USER, "/code"))
    await web.get("/chat", params={"code": code})
    await web.post("/chat", data={"code": code})
    async with open_inbox(hub, database_urls) as inbox:
        link = await inbox.token()
    await web.get("/me", params={"token": link})
    await web.post("/me", data={"token": link})
    secrets |= {code, link, web.cookies["pabal_chat"], web.cookies["pabal_me"]}
    for path in ("/console/relay/conversation?key=", "/console/relay/messages?conversation=", "/console/trace?id="):
        assert (await web.get(path + key_of_user(USER))).status_code == 200
    for path in ("/portal/messages?conversation=", "/console/relay/conversations?key=", "/console/nowhere?id="):
        await web.get(path + key_of_user(USER))

    lines = capsys.readouterr().err
    entries = [json.loads(line) for line in lines.splitlines()]
    assert sum(line["event"] == "request answered" for line in entries) > 20
    assert {"/chat", "/me", "/portal/login", "/console/relay/conversation"} <= {line.get("path") for line in entries}
    assert [secret for secret in secrets if secret in lines] == []
    assert min(map(len, secrets)) > 8
    dump = await dump_database(database_urls)  # contains the stored webhook reply and the user
    assert [secret for secret in secrets - {USER, csrf, code} if secret.encode() in dump] == []


def secret_in(page: httpx2.Response) -> str:
    """Return the secret that a page shows once."""
    match = re.search(r"<code>((?:pbs|prt)_[\w-]{43})</code>", page.text)
    assert match, page.text
    return match[1]
