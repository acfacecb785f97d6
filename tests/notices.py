"""Notices under test: templates registered, drafts to ask with, and the rows that come of it."""

from typing import Any
from uuid import UUID

from clusters import connected
from pabal.core.actor import Actor
from pabal.notifications import glance, read
from pabal.notifications.catalogue import register
from pabal.notifications.plan import Channel
from pabal.notifications.read import Filter, Notification, Reader
from pabal.notifications.request import Asked, Draft, ask
from pabal.wiring import Hub, Roads

TESTER = Actor("tester")
EVERYBODY = Reader("hub", all=True)
PAID: dict[str, Any] = {"item": "Nitro", "amount": 12900, "currency": "KRW"}
NEWS: dict[str, Any] = {"headline": "Spring", "story": "It is here."}
NUKED: dict[str, Any] = {"guild": "Minu", "actor": "eve", "action": "ban", "count": 40}


async def registered(hub: Hub) -> Hub:
    """The hub, as it is after its start."""
    async with hub.transaction() as tx:
        await register(tx, hub.catalogue)
    return hub


def notice(hub: Hub, key: str = "payment.succeeded", **how: Any) -> Draft:
    payload = {"payment.succeeded": PAID, "marketing.news": NEWS, "antinuke.triggered": NUKED}[key]
    said: dict[str, Any] = {"channel": Channel.USER_DM, "recipient": "100", "payload": payload} | how
    return Draft(template=hub.catalogue.get(key), **said)


async def asked(hub: Hub, *drafts: Draft) -> list[Asked]:
    async with hub.transaction() as tx:
        return await ask(tx, drafts, TESTER)


async def seen(hub: Hub, row: UUID) -> Notification:
    async with hub.autocommit() as tx:
        return await read.find(tx, row, EVERYBODY)


async def every(hub: Hub, **chosen: Any) -> list[Notification]:
    async with hub.autocommit() as tx:
        return (await glance.every(tx, EVERYBODY, Filter(**chosen), limit=100_000)).rows


async def sql(roads: Roads, statement: str, *given: Any) -> Any:
    """Run a statement as the database's owner: its first value."""
    async with connected(roads.direct or roads.work) as conn:
        return await conn.fetchval(statement, *given)
