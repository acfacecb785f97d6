"""Messages and replies of the relay, inserted as rows; and helpers to read pages."""

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls
from relay.people import key_of_user
from support.clusters import Connection, open_connection

INSERT_MESSAGE = """
insert into public.inbound_messages
  (id, account_id, conversation_key, kakao_payload, normalized, source_event_id, callback_url, callback_expires_at)
values ($1, $2, $3, $4::jsonb, $5::jsonb, $1::uuid::text, $6, pabal.now() + interval '55 seconds')
"""
INSERT_REPLY = """
insert into public.relay_replies
  (message_id, account_id, conversation_key, spent_by, outcome, response, fence, spent_at, settled_at, answered_at,
   status_code, error, kakao)
select id, account_id, conversation_key, 'agent', $2, $3::jsonb, gen_random_uuid(), pabal.now(), pabal.now(),
       pabal.now(), 200, $4, $5::jsonb
from public.inbound_messages where id = $1
"""
SECRET_URL = "https://bot-api.kakao.com/callback/capability"


@dataclass(frozen=True, slots=True)
class MessageLog:
    """The messages and replies of the relay, as rows."""

    db: Connection

    async def insert_message(self, account: UUID, user: str, text: str | None = "hello", **more: Any) -> UUID:
        """Insert a queued message of a user."""
        message = new_id()
        payload = {"userRequest": {"utterance": text, "callbackUrl": SECRET_URL}} | more
        normalized = {"userId": user, "text": text or "", "channelId": "bot"}
        await self.db.execute(
            INSERT_MESSAGE, message, account, key_of_user(user), json.dumps(payload), json.dumps(normalized), SECRET_URL
        )
        return message

    async def insert_reply(
        self, message: UUID, text: str = "hi there", outcome: str = "sent", error: str | None = None
    ) -> None:
        """Insert a bot's reply with this outcome."""
        response = {"version": "2.0", "template": {"outputs": [{"simpleText": {"text": text}}]}}
        kakao = {"taskId": "task-1", "status": "SUCCESS" if outcome == "sent" else "FAIL", "message": error}
        await self.db.execute(INSERT_REPLY, message, outcome, json.dumps(response), error, json.dumps(kakao))
        await self.db.execute("update public.inbound_messages set status = 'ACKED' where id = $1", message)

    async def count(self, table: str) -> int:
        return await self.db.fetchval(f"select count(*) from {table}")

    async def audit_actions(self) -> list[tuple[str, str]]:
        """Actors and actions of the audit log, in order."""
        rows = await self.db.fetch("select actor, action from pabal.audit_log order by id")
        return [(row["actor"], row["action"]) for row in rows]


@asynccontextmanager
async def open_message_log(database_urls: DatabaseUrls) -> AsyncGenerator[MessageLog]:
    assert database_urls.direct
    async with open_connection(database_urls.direct) as db:
        yield MessageLog(db)


def page_text(page: str) -> str:
    """The text of a page without tags."""
    return re.sub(r"<[^>]*>", " ", page)


def csrf_token_in(page: str) -> str:
    """What the forms of a page carry."""
    found = re.search(r'name="csrf_token" value="([0-9a-f]{64})"', page)
    assert found, "the page has no form"
    return found[1]
