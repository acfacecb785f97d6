"""Markers: events sent after everything else. What does not arrive before the marker never arrives."""

import asyncio
from itertools import count
from uuid import UUID

import httpx2

from pabal.hub import Hub
from pabal.relay.delivery.control_events import ControlEventKind, send_control_event
from relay.bot import Bot, Heard
from relay.skills import write
from support.relay_rows import Chat, Owner

NUMBER = count(1)


async def mark(hub: Hub, account: UUID) -> str:
    """Send a meaningless control event to the account's streams, behind everything sent so far."""
    marker = f"marker:{next(NUMBER)}"
    async with hub.transaction() as tx:
        await send_control_event(
            tx, ControlEventKind.UNPAIRED, account=account, conversationKey=marker, reason="a marker"
        )
    return marker


async def came_before(hub: Hub, web: httpx2.AsyncClient, chat: Chat, owner: Owner, *clients: Bot) -> list[Heard]:
    """All events still to come on these streams, which are all streams of the owner.

    The first two markers are messages, claimed in order after everything that is due. The first may be delivered by a
    claim that began earlier; the second is delivered only after every stream has claimed again, so everything due has
    been delivered by then. The third is a control event, which each stream gets after its messages.
    """
    heard: list[Heard] = []
    keys = [await chat.conversation(owner, f"marker-{next(NUMBER)}") for _ in range(2)]
    for key in keys:
        await write(web, "marker", key.partition(":")[2])
        heard += await heard_until(key, clients)
    marker = await mark(hub, owner.id)
    for client in clients:
        heard += await client.until(marker)
    return [event for event in heard if event.data.get("conversationKey") not in keys]


async def heard_until(key: str, clients: tuple[Bot, ...]) -> list[Heard]:
    """Events on any of the streams, up to the first from this conversation."""
    heard: list[Heard] = []
    reading = {asyncio.create_task(client.first()): client for client in clients}
    while not any(event.data.get("conversationKey") == key for event in heard):
        done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            heard.append(task.result())
            client = reading.pop(task)
            reading[asyncio.create_task(client.first())] = client
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    return heard
