"""Publishes `relay.message.received` for the messages in the relay's outbox."""

from dataclasses import dataclass

from pabal.db.doorbell.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class PublishedMessages:
    messages: int
    events: int


async def publish_message_events(tx: Tx, batch: int) -> int:
    """Publish the events of at most `batch` messages; returns how many left the outbox."""
    published = await tx.one(PublishedMessages, Q.publish_message_events, batch=batch)
    if published.events:
        tx.notify(Channel.EVENTS)
    return published.messages
