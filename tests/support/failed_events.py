"""Events that fail: published, claimed, and settled as dead; and their dead letters."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from pabal.core.actor import Actor
from pabal.events.consume.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.events.dead_letters.dead_letters import DeadLetter, DeadLetterFilter, DeadLetterState, list_dead_letters
from pabal.events.dead_letters.replay import replay_dead_letters
from pabal.events.publish.publish import EventDraft, PublishResult, publish_events
from pabal.hub import DatabaseUrls, Hub
from pabal.queue.lane import Settlement
from pabal.queue.outcome import DONE, Dead, Outcome
from support.clusters import Connection, open_connection

MINUTE = timedelta(minutes=1)
MINA = Actor("operator:mina", "192.0.2.7", request_id="r1")

INSERT_FAILED_EVENTS = """
insert into public.event_queue (id, event_type, source_service, target_service, status, last_error, error_code, payload)
select pabal.uuid7(), $2, $3, $4, 'failed', format($5, i), $6, $7::text::jsonb from generate_series(1, $1::integer) i
returning id
"""


@dataclass(frozen=True, slots=True)
class EventQueue:
    """The events of a hub, and a connection of the database owner."""

    hub: Hub
    owner: Connection

    async def publish(self, event_type: str = "order.paid", **overrides: Any) -> UUID:
        fields: dict[str, Any] = {"source": "minu_find", "event_type": event_type, "target": "minu_build"} | overrides
        draft = EventDraft(**fields)
        async with self.hub.autocommit() as tx:
            [event] = await publish_events(tx, [draft])
        assert isinstance(event, PublishResult), event
        return event.id

    async def claim(self, limit: int = 10, service: str = "minu_build") -> list[ClaimedEvent]:
        async with self.hub.autocommit() as tx:
            return await LANE.claim(tx, limit, MINUTE, "w1", EventClaimFilter(service))

    async def settle(self, event: ClaimedEvent, outcome: Outcome = DONE) -> None:
        async with self.hub.transaction() as tx:
            assert await LANE.settle(tx, [Settlement(event, outcome)]) == {event.id}

    async def fail(self, event: UUID, outcome: Outcome | None = None, service: str = "minu_build") -> UUID:
        """Claim the event and settle it as dead; returns its dead letter."""
        for claimed in await self.claim(service=service):
            await self.settle(claimed, (outcome or Dead("boom")) if claimed.id == event else DONE)
        return await self.find_dead_letter(event)

    async def publish_failed(
        self, event_type: str = "order.paid", why: str = "boom", **overrides: Any
    ) -> tuple[UUID, UUID]:
        """Publish an event and let it fail; returns the event and its dead letter."""
        event = await self.publish(event_type, **overrides)
        return event, await self.fail(event, Dead(why))

    async def insert_failed(self, count: int, why: str = "boom %s", **overrides: Any) -> list[UUID]:
        """Insert failed events by plain SQL."""
        fields: dict[str, Any] = {
            "event_type": "order.paid",
            "source": "minu_find",
            "target": "minu_build",
            "code": None,
            "payload": {},
        }
        fields |= overrides
        rows = await self.owner.fetch(
            INSERT_FAILED_EVENTS,
            count,
            fields["event_type"],
            fields["source"],
            fields["target"],
            why,
            fields["code"],
            msgspec.json.encode(fields["payload"]).decode(),
        )
        return [row["id"] for row in rows]

    async def find_dead_letter(self, event: UUID) -> UUID:
        return await self.owner.fetchval(
            "select id from public.dead_letter_queue where original_event_id = $1 order by death desc limit 1", event
        )

    async def load_event(self, event: UUID) -> dict[str, Any]:
        row = await self.owner.fetchrow("select * from public.event_queue where id = $1", event)
        return dict(row or {})

    async def audit_entries(self, *subjects: UUID) -> list[tuple[str, str, str]]:
        rows = await self.owner.fetch(
            "select actor, action, subject from pabal.audit_log where subject = any($1::text[]) order by id",
            [*map(str, subjects)],
        )
        return [(row["actor"], row["action"], row["subject"]) for row in rows]


@asynccontextmanager
async def open_event_queue(hub: Hub, database_urls: DatabaseUrls) -> AsyncGenerator[EventQueue]:
    assert database_urls.direct
    async with open_connection(database_urls.direct) as owner:
        yield EventQueue(hub, owner)


async def read_dead_letters(
    hub: Hub, letter_filter: DeadLetterFilter | None = None, state: DeadLetterState = "unresolved"
) -> list[DeadLetter]:
    async with hub.autocommit() as tx:
        return await list_dead_letters(tx, letter_filter or DeadLetterFilter(), state, limit=100)


async def replay_as_operator(hub: Hub, *ids: UUID, by: Actor = MINA) -> dict[UUID, UUID]:
    async with hub.transaction() as tx:
        return await replay_dead_letters(tx, ids, by)
