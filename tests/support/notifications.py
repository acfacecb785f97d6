"""Notices under test: templates registered, drafts to ask with, and the rows that come of it."""

from typing import Any
from uuid import UUID

from pabal.core.actor import Actor
from pabal.hub import DatabaseUrls, Hub
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.notifications import (
    Notification,
    NotificationAccess,
    NotificationFilter,
    find_notification,
    scan_notifications,
)
from pabal.notifications.requests import NotificationDraft, RequestedNotification, request_notifications
from pabal.notifications.templates.catalogue import register_templates
from support.clusters import connected

TESTER = Actor("tester")
EVERYBODY = NotificationAccess("hub", all_services=True)
PAID: dict[str, Any] = {"item": "Nitro", "amount": 12900, "currency": "KRW"}
NEWS: dict[str, Any] = {"headline": "Spring", "story": "It is here."}
NUKED: dict[str, Any] = {"guild": "Minu", "actor": "eve", "action": "ban", "count": 40}


async def registered(hub: Hub) -> Hub:
    """The hub, as it is after its start."""
    async with hub.transaction() as tx:
        await register_templates(tx, hub.templates)
    return hub


def notice(hub: Hub, key: str = "payment.succeeded", **how: Any) -> NotificationDraft:
    payload = {"payment.succeeded": PAID, "marketing.news": NEWS, "antinuke.triggered": NUKED}[key]
    said: dict[str, Any] = {"channel": NotificationChannel.USER_DM, "recipient": "100", "payload": payload} | how
    return NotificationDraft(template=hub.templates.get(key), **said)


async def asked(hub: Hub, *drafts: NotificationDraft) -> list[RequestedNotification]:
    async with hub.transaction() as tx:
        return await request_notifications(tx, drafts, TESTER)


async def seen(hub: Hub, row: UUID) -> Notification:
    async with hub.autocommit() as tx:
        return await find_notification(tx, row, EVERYBODY)


async def every(hub: Hub, **chosen: Any) -> list[Notification]:
    async with hub.autocommit() as tx:
        return (await scan_notifications(tx, EVERYBODY, NotificationFilter(**chosen), limit=100_000)).rows


async def sql(database_urls: DatabaseUrls, statement: str, *given: Any) -> Any:
    """Run a statement as the database's owner: its first value."""
    async with connected(database_urls.direct or database_urls.main) as conn:
        return await conn.fetchval(statement, *given)
