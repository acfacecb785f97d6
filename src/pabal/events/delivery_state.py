"""The state of a broadcast: how many of its deliveries are done. Its `status` says only that it was published."""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from pabal.core.messages import Message
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.events import EventAccess

Q = load_queries(__file__)

MAX_COUNTED_DELIVERIES = 10_000
"""Deliveries of one broadcast that are counted."""
MAX_LISTED_DELIVERIES = 1000
"""Deliveries that are counted for each broadcast of a list."""


@dataclass(frozen=True, slots=True)
class DeliveryState:
    """The deliveries of a broadcast, as far as they are counted. A subscriber sees only its own.

    `created` of `deliveries` exist; a chore creates the rest.
    """

    event_id: UUID
    deliveries: int
    created: int
    done: int
    dead: int
    cancelled: int


async def read_delivery_states(
    tx: Tx, broadcasts: Iterable[UUID], access: EventAccess, max_count: int = MAX_LISTED_DELIVERIES
) -> dict[UUID, DeliveryState]:
    """Count the deliveries of these broadcasts, at most `max_count` of each."""
    ids = [*broadcasts]
    if not ids:
        return {}
    states = await tx.all(
        DeliveryState,
        Q.count_deliveries,
        ids=ids,
        service=access.service,
        all=access.all_services,
        max_count=max_count,
    )
    return {state.event_id: state for state in states}


async def read_delivery_state(tx: Tx, broadcast: UUID, access: EventAccess) -> DeliveryState:
    return (await read_delivery_states(tx, [broadcast], access, MAX_COUNTED_DELIVERIES))[broadcast]


def describe_deliveries(state: DeliveryState) -> Message:
    """The state in a few words: `3 of 5 done, 1 dead`."""
    if not state.deliveries:
        return Message("no subscribers")
    if state.created < state.deliveries:
        return Message("being expanded, {} of {} deliveries created", state.created, state.deliveries)
    text = Message("{} of {} done", state.done, state.deliveries)
    if state.dead:
        text = Message("{}, {} dead", text, state.dead)
    if state.cancelled:
        text = Message("{}, {} cancelled", text, state.cancelled)
    return text
