"""JSON nested deeper than Python can parse, inserted with plain SQL: pages render and secrets stay redacted."""

import re
from collections.abc import AsyncGenerator

import httpx2
import pytest

from pabal.hub import DatabaseUrls, Hub
from relay.people import add_account, create_code, pair_user, send_command
from support.clusters import Connection, open_connection
from support.failed_events import open_event_queue
from support.notifications import draft_notification, register_builtin_templates, request_drafts
from support.operator import SignedInOperator
from support.relay_log import MessageLog

pytestmark = pytest.mark.anyio

LEVELS = 10_000
SECRET = "hunter-two"
USER = "mina-plusfriend-1"


def nested_json(levels: int = LEVELS) -> str:
    """Return nested JSON with one secret at the top level and another at the innermost."""
    inner = '{"n":[' * (levels // 2) + f'{{"password":"{SECRET}"}}' + "]}" * (levels // 2)
    return f'{{"password":"{SECRET}","deep":{inner}}}'


@pytest.fixture
async def db(database_urls: DatabaseUrls) -> AsyncGenerator[Connection]:
    async with open_connection(database_urls.direct or database_urls.main) as owner:
        yield owner


async def assert_redacted(admin: SignedInOperator, *paths: str) -> None:
    for path in paths:
        page = await admin.get(path)
        assert page.status_code == 200, path
        assert SECRET not in page.text.replace(", ", ""), path


@pytest.mark.parametrize("levels", [900, LEVELS])
async def test_a_deeply_nested_event_and_its_dead_letter(
    admin: SignedInOperator, hub: Hub, database_urls: DatabaseUrls, db: Connection, levels: int
) -> None:
    async with open_event_queue(hub, database_urls) as deaths:
        event, letter = await deaths.publish_failed()
    await db.execute("update event_queue set payload = $1::text::jsonb", nested_json(levels))
    await db.execute(
        "update dead_letter_queue set original_payload = $1::text::jsonb, original_envelope = $1::text::jsonb",
        nested_json(levels),
    )

    await assert_redacted(
        admin, "/console/events", f"/console/events/{event}", f"/console/dead/{letter}", f"/console/trace?id={event}"
    )


async def test_a_deeply_nested_message_and_its_reply(admin: SignedInOperator, hub: Hub, db: Connection) -> None:
    owner, talk = await add_account(hub), MessageLog(db)
    await pair_user(hub, USER, owner.account)
    message = await talk.insert_message(owner.account, USER, "hello")
    await talk.insert_reply(message)
    await db.execute("update inbound_messages set kakao_payload = $1::text::jsonb", nested_json())
    await db.execute("update relay_replies set response = $1::text::jsonb", nested_json())
    await create_code(hub, owner.account)
    await db.execute("update pairing_codes set metadata = $1::text::jsonb", nested_json())

    await assert_redacted(admin, f"/console/relay/messages/{message}", f"/console/relay/accounts/{owner.account}")
    await assert_redacted(admin, "/console/relay/messages", f"/console/trace?id={message}")
    home = str(admin.web.base_url).rstrip("/")
    async with httpx2.AsyncClient(base_url=home, headers={"origin": home}) as web:
        await web.post("/portal/login", data={"token": owner.token})
        [code] = re.findall(r"/chat\?code=([\w-]+)", await send_command(hub, USER, "/code"))
        await web.post("/chat", data={"code": code})
        for path in ("/portal", "/portal/messages", f"/portal/messages/{message}", "/chat"):
            page = await web.get(path)
            assert (page.status_code, SECRET in page.text) == (200, False), path


async def test_a_deeply_nested_notification_and_audit_row(admin: SignedInOperator, hub: Hub, db: Connection) -> None:
    await register_builtin_templates(hub)
    [row] = await request_drafts(hub, draft_notification(hub))
    await db.execute("update notification.requests set payload = $1::text::jsonb", nested_json())
    await db.execute(
        "insert into pabal.audit_log (actor, action, details) values ('sql', 'x', $1::text::jsonb)", nested_json()
    )

    await assert_redacted(
        admin, "/console/notifications", f"/console/notifications/{row.id}", f"/console/trace?id={row.id}"
    )
    await assert_redacted(admin, "/console/audit")
