"""Notices under test: templates registered, drafts to ask with, and the rows that come of it."""

from typing import Any
from uuid import UUID

from clusters import connected
from pabal.core.actor import Actor
from pabal.notifications import glance, read
from pabal.notifications.catalogue import register_templates
from pabal.notifications.plan import NotificationChannel
from pabal.notifications.read import Notification, NotificationAccess, NotificationFilter
from pabal.notifications.request import NotificationDraft, RequestedNotification, request_notifications
from pabal.wiring import DatabaseUrls, Hub

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
        return await read.find_notification(tx, row, EVERYBODY)


async def every(hub: Hub, **chosen: Any) -> list[Notification]:
    async with hub.autocommit() as tx:
        return (await glance.scan_notifications(tx, EVERYBODY, NotificationFilter(**chosen), limit=100_000)).rows


async def sql(roads: DatabaseUrls, statement: str, *given: Any) -> Any:
    """Run a statement as the database's owner: its first value."""
    async with connected(roads.direct or roads.main) as conn:
        return await conn.fetchval(statement, *given)
