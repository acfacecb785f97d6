"""Helpers to register templates, request notifications and read them."""

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
from support.clusters import open_connection

TESTER = Actor("tester")
ALL_SERVICES = NotificationAccess("hub", all_services=True)
PAID: dict[str, Any] = {"item": "Nitro", "amount": 12900, "currency": "KRW"}
NEWS: dict[str, Any] = {"headline": "Spring", "story": "It is here."}
ATTACK: dict[str, Any] = {"guild": "Minu", "actor": "eve", "action": "ban", "count": 40}


async def register_builtin_templates(hub: Hub) -> Hub:
    """Register the built-in templates, as a hub does at its start."""
    async with hub.transaction() as tx:
        await register_templates(tx, hub.templates)
    return hub


def draft_notification(hub: Hub, key: str = "payment.succeeded", **overrides: Any) -> NotificationDraft:
    payload = {"payment.succeeded": PAID, "marketing.news": NEWS, "antinuke.triggered": ATTACK}[key]
    values: dict[str, Any] = {
        "channel": NotificationChannel.USER_DM,
        "recipient": "100",
        "payload": payload,
    } | overrides
    return NotificationDraft(template=hub.templates.get(key), **values)


async def request_drafts(hub: Hub, *drafts: NotificationDraft) -> list[RequestedNotification]:
    async with hub.transaction() as tx:
        return await request_notifications(tx, drafts, TESTER)


async def load_notification(hub: Hub, row: UUID) -> Notification:
    async with hub.autocommit() as tx:
        return await find_notification(tx, row, ALL_SERVICES)


async def list_all_notifications(hub: Hub, **chosen: Any) -> list[Notification]:
    async with hub.autocommit() as tx:
        return (await scan_notifications(tx, ALL_SERVICES, NotificationFilter(**chosen), limit=100_000)).rows


async def sql(database_urls: DatabaseUrls, statement: str, *arguments: Any) -> Any:
    """Run a statement as the owner of the database and return the first value."""
    async with open_connection(database_urls.direct or database_urls.main) as conn:
        return await conn.fetchval(statement, *arguments)
