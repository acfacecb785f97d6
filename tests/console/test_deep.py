"""What plain SQL may put in, nested deeper than Python reads: it has its page, and what it hides stays hidden."""

import re
from collections.abc import AsyncGenerator

import httpx2
import pytest

from pabal.hub import DatabaseUrls, Hub
from relay.people import a_code, an_owner, pair, write
from support.clusters import Connection, connected
from support.failed_events import deaths_of
from support.notifications import draft_notification as notice
from support.notifications import register_builtin_templates as registered
from support.notifications import request_drafts as asked
from support.operator import Signed
from support.relay_log import Talk

pytestmark = pytest.mark.anyio

LEVELS = 10_000
SECRET = "hunter-two"
USER = "mina-plusfriend-1"


def nested(levels: int = LEVELS) -> str:
    """JSON that begins harmlessly, with a secret on top and another at the bottom."""
    inner = '{"n":[' * (levels // 2) + f'{{"password":"{SECRET}"}}' + "]}" * (levels // 2)
    return f'{{"password":"{SECRET}","deep":{inner}}}'


@pytest.fixture
async def db(database_urls: DatabaseUrls) -> AsyncGenerator[Connection]:
    async with connected(database_urls.direct or database_urls.main) as owner:
        yield owner


async def shown(admin: Signed, *paths: str) -> None:
    for path in paths:
        page = await admin.get(path)
        assert page.status_code == 200, path
        assert SECRET not in page.text.replace(", ", ""), path


@pytest.mark.parametrize("levels", [900, LEVELS])
async def test_an_event_and_its_letter(
    admin: Signed, hub: Hub, database_urls: DatabaseUrls, db: Connection, levels: int
) -> None:
    async with deaths_of(hub, database_urls) as deaths:
        event, letter = await deaths.dead()
    await db.execute("update event_queue set payload = $1::text::jsonb", nested(levels))
    await db.execute(
        "update dead_letter_queue set original_payload = $1::text::jsonb, original_envelope = $1::text::jsonb",
        nested(levels),
    )

    await shown(
        admin, "/console/events", f"/console/events/{event}", f"/console/dead/{letter}", f"/console/trace?id={event}"
    )


async def test_a_message_and_its_reply(admin: Signed, hub: Hub, db: Connection) -> None:
    owner, talk = await an_owner(hub), Talk(db)
    await pair(hub, USER, owner.account)
    message = await talk.written(owner.account, USER, "hello")
    await talk.answered(message)
    await db.execute("update inbound_messages set kakao_payload = $1::text::jsonb", nested())
    await db.execute("update relay_replies set response = $1::text::jsonb", nested())
    await a_code(hub, owner.account)
    await db.execute("update pairing_codes set metadata = $1::text::jsonb", nested())

    await shown(admin, f"/console/relay/messages/{message}", f"/console/relay/accounts/{owner.account}")
    await shown(admin, "/console/relay/messages", f"/console/trace?id={message}")
    home = str(admin.web.base_url).rstrip("/")
    async with httpx2.AsyncClient(base_url=home, headers={"origin": home}) as web:
        await web.post("/portal/login", data={"token": owner.token})
        [code] = re.findall(r"/chat\?code=([\w-]+)", await write(hub, USER, "/code"))
        await web.post("/chat", data={"code": code})
        for path in ("/portal", "/portal/messages", f"/portal/messages/{message}", "/chat"):
            page = await web.get(path)
            assert (page.status_code, SECRET in page.text) == (200, False), path


async def test_a_notification_and_what_is_in_the_log(admin: Signed, hub: Hub, db: Connection) -> None:
    await registered(hub)
    [row] = await asked(hub, notice(hub))
    await db.execute("update notification.requests set payload = $1::text::jsonb", nested())
    await db.execute(
        "insert into pabal.audit_log (actor, action, details) values ('sql', 'x', $1::text::jsonb)", nested()
    )

    await shown(admin, "/console/notifications", f"/console/notifications/{row.id}", f"/console/trace?id={row.id}")
    await shown(admin, "/console/audit")
