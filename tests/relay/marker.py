"""Markers: events sent after everything else. What does not arrive before the marker never arrives."""

import asyncio
from itertools import count
from uuid import UUID

import httpx2

from pabal.hub import Hub
from pabal.relay.delivery.control_events import ControlEventKind, send_control_event
from relay.bot import ReceivedEvent, StreamClient
from relay.skills import send_message
from support.relay_rows import Chat, Owner

MARKER_NUMBERS = count(1)


async def mark(hub: Hub, account: UUID) -> str:
    """Send a meaningless control event to the account's streams, behind everything sent so far."""
    marker = f"marker:{next(MARKER_NUMBERS)}"
    async with hub.transaction() as tx:
        await send_control_event(
            tx, ControlEventKind.UNPAIRED, account=account, conversationKey=marker, reason="a marker"
        )
    return marker


async def events_before_marker(
    hub: Hub, web: httpx2.AsyncClient, chat: Chat, owner: Owner, *clients: StreamClient
) -> list[ReceivedEvent]:
    """All events still to come on these streams, which are all streams of the owner.

    The first two markers are messages, claimed in order after everything that is due. The first may be delivered by a
    claim that began earlier; the second is delivered only after every stream has claimed again, so everything due has
    been delivered by then. The third is a control event, which each stream gets after its messages.
    """
    events: list[ReceivedEvent] = []
    keys = [await chat.conversation(owner, f"marker-{next(MARKER_NUMBERS)}") for _ in range(2)]
    for key in keys:
        await send_message(web, "marker", key.partition(":")[2])
        events += await events_until(key, clients)
    marker = await mark(hub, owner.id)
    for client in clients:
        events += await client.until(marker)
    return [event for event in events if event.data.get("conversationKey") not in keys]


async def events_until(key: str, clients: tuple[StreamClient, ...]) -> list[ReceivedEvent]:
    """Events on any of the streams, up to the first from this conversation."""
    events: list[ReceivedEvent] = []
    reads = {asyncio.create_task(client.first()): client for client in clients}
    while not any(event.data.get("conversationKey") == key for event in events):
        done, _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            events.append(task.result())
            client = reads.pop(task)
            reads[asyncio.create_task(client.first())] = client
    for task in reads:
        task.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
    return events
