"""Toast inboxes: helpers to add, list and mark toasts, and to authenticate people."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from pabal.core.actor import Actor
from pabal.hub import DatabaseUrls, Hub
from pabal.notifications.lane import LANE, ClaimedNotification
from pabal.notifications.people.tokens import Person, exchange_person_link, find_person_by_token, issue_person_link
from pabal.notifications.templates.render import RenderedText
from pabal.notifications.toasts.inbox import (
    Toast,
    ToastAction,
    ToastChange,
    add_toast,
    list_toast_changes,
    list_toasts,
    load_inbox_state,
    mark_toast,
)
from support.clusters import Connection, open_connection

MINA, JUN = "80351110224678912", "190320984123768832"
"""Two Discord users."""
SHOP = Actor("shop")
MINUTE = timedelta(minutes=1)
HOSTILE_TEXTS = (
    "<script>window.hacked = true</script>",
    "<img src=x onerror='window.hacked = true'>",
    "\"'><svg onload=window.hacked=true>",
    "{{ 7 * 7 }} javascript:window.hacked=true",
    "</textarea></article><h1>no</h1>",
)
"""Values that try to inject markup or scripts."""
CATEGORIES = ("payment", "recovery", "antinuke", "marketing", "system")


@dataclass(frozen=True, slots=True)
class Inbox:
    """A hub and a connection to its database."""

    hub: Hub
    db: Connection

    async def request(self, person: str = MINA, category: str = "payment") -> ClaimedNotification:
        """Insert and claim a notification for a dashboard."""
        await self.db.execute(
            "insert into notification.requests (id, recipient_type, recipient_id, template_key, payload, state) "
            "values (pabal.uuid7(), 'dashboard_toast', $1, $2, '{}', 'pending')",
            person,
            f"test.{category}",
        )
        async with self.hub.autocommit() as tx:
            [held] = await LANE.claim(tx, 1, MINUTE, "tester")
        return held

    async def insert_toast(
        self, person: str = MINA, title: str | None = "Paid", body: str = "Thank you.", **details: Any
    ) -> UUID:
        held = await self.request(person, details.pop("category", "payment"))
        async with self.hub.transaction() as tx:
            assert await add_toast(tx, held, RenderedText(title, body), **details)
        return held.id

    async def list_toasts(self, person: str = MINA, *, archived: bool = False) -> list[Toast]:
        async with self.hub.autocommit() as tx:
            return await list_toasts(tx, person, archived=archived, limit=100)

    async def unread(self, person: str = MINA) -> int:
        async with self.hub.autocommit() as tx:
            return (await load_inbox_state(tx, person)).unread

    async def mark(self, toast: UUID, details: ToastAction, person: str = MINA) -> Toast:
        async with self.hub.transaction() as tx:
            return await mark_toast(tx, person, toast, details)

    async def changes(self, since: int = 0, person: str = MINA) -> list[ToastChange]:
        async with self.hub.autocommit() as tx:
            return await list_toast_changes(tx, {person: since}, 1000)

    async def token(self, person: str = MINA) -> str:
        async with self.hub.transaction() as tx:
            return (await issue_person_link(tx, person, SHOP)).token

    async def cookie(self, person: str = MINA) -> str:
        link = await self.token(person)
        async with self.hub.transaction() as tx:
            cookie = await exchange_person_link(tx, link)
        assert cookie
        return cookie

    async def person(self, person: str = MINA) -> Person:
        async with self.hub.transaction() as tx:
            return await find_person_by_token(tx, await self.cookie(person), "cookie")


@asynccontextmanager
async def open_inbox(hub: Hub, database_urls: DatabaseUrls) -> AsyncGenerator[Inbox]:
    assert database_urls.direct
    async with open_connection(database_urls.direct) as db:
        await db.execute(
            "insert into notification.templates (key, category, criticality, texts, checksum) "
            "select 'test.' || c, c, case c when 'antinuke' then 'emergency' else 'normal' end, '{}'::jsonb, 'x' "
            "from unnest($1::text[]) c "
            "union all select 'system.undelivered', 'system', 'emergency', '{}'::jsonb, 'x'",
            [*CATEGORIES],
        )
        yield Inbox(hub, db)
