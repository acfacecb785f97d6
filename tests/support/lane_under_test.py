"""One interface to the three lanes, so that each conformance test is written once."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

import asyncpg

from pabal.events.consume.lane import EventClaimFilter, EventLane
from pabal.hub import Hub
from pabal.notifications.lane import ANY_NOTIFICATION, NotificationClaimFilter, NotificationLane
from pabal.queue.lane import Capability, Lane, Settlement
from pabal.queue.outcome import Outcome
from pabal.relay.delivery.lane import RelayLane

MINUTE = timedelta(minutes=1)
Travel = Callable[[timedelta], Awaitable[None]]


class LaneUnderTest(ABC):
    """A lane, its table, and a clock that the test moves."""

    lane: Lane[Any, Any]
    put_sql: str
    end_sql: str
    """Number of rows per state."""
    open_sql: str
    """Number of rows that have not ended."""
    cancel_sql: str
    """Plain SQL that cancels a row without knowing lanes."""
    claimer: Mapping[str, Any]
    """Fields of the claim's filter."""

    def __init__(self, hub: Hub, owner: "asyncpg.Connection[asyncpg.Record]", travel: Travel) -> None:
        self.hub = hub
        self.owner = owner
        self._travel = travel

    async def prepare(self) -> None:  # noqa: B027 optional
        """Insert the rows that a row of this lane refers to."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self.lane.capabilities

    async def put(self, count: int = 1, **how: Any) -> list[UUID]:
        rows = await self.owner.fetch(self.insert(**how), count)
        return [row["id"] for row in rows]

    @abstractmethod
    def insert(self, **how: Any) -> str: ...

    @abstractmethod
    def claim_filter(self, **claimer: Any) -> Any: ...

    async def claim(self, limit: int = 10, hold: timedelta = MINUTE, **claimer: Any) -> list[Any]:
        async with self.hub.autocommit() as tx:
            return await self.lane.claim(tx, limit, hold, "tester", self.claim_filter(**{**self.claimer, **claimer}))

    async def settle(self, item: Any, outcome: Outcome) -> bool:
        return item.id in await self.settle_all([(item, outcome)])

    async def settle_all(self, ended: list[tuple[Any, Outcome]]) -> set[UUID]:
        async with self.hub.transaction() as tx:
            return await self.lane.settle(tx, [Settlement(item, outcome) for item, outcome in ended])

    async def extend(self, items: list[Any], hold: timedelta = MINUTE) -> set[UUID]:
        async with self.hub.autocommit() as tx:
            return await self.lane.extend(tx, items, hold)

    async def release(self, items: list[Any]) -> set[UUID]:
        async with self.hub.transaction() as tx:
            return await self.lane.release(tx, items)

    async def expire(self) -> int:
        async with self.hub.autocommit() as tx:
            return await self.lane.expire(tx, 5000)

    async def purge(self, days: int) -> int:
        async with self.hub.autocommit() as tx:
            return await self.lane.purge(tx, days, 5000)

    async def travel(self, **by: float) -> None:
        await self._travel(timedelta(**by))

    async def states(self) -> dict[str, int]:
        """Number of rows per state, as the specification names the states."""
        return {row["state"]: row["count"] for row in await self.owner.fetch(self.end_sql)}


class Events(LaneUnderTest):
    lane = EventLane()
    claimer: Mapping[str, Any] = MappingProxyType({"service": "minu_build"})
    end_sql = "select status as state, count(*) from public.event_queue group by 1"
    open_sql = "select count(*) from public.event_queue where processed_at is null"
    cancel_sql = "update public.event_queue set status = 'cancelled' where id = $1 and processed_at is null"

    def claim_filter(self, **claimer: Any) -> EventClaimFilter:
        return EventClaimFilter(**claimer)

    def insert(self, **how: Any) -> str:
        columns: dict[str, Any] = {"priority": 5, "max_retries": 3, "ordering_key": None, "due": None, "expires": None}
        columns |= {"target": "minu_build"} | how
        return f"""
            insert into public.event_queue
                (id, event_type, source_service, target_service, priority, max_retries, ordering_key, next_retry_at,
                 expires_at)
            select pabal.uuid7(), 'order.paid', 'minu_find', {sql(columns["target"])}, {columns["priority"]},
                   {columns["max_retries"]}, {sql(columns["ordering_key"])},
                   {later(columns["due"])}, {later(columns["expires"])}
            from generate_series(1, $1) returning id
        """


class Notifications(LaneUnderTest):
    lane = NotificationLane()
    claimer: Mapping[str, Any] = MappingProxyType({})
    end_sql = "select state, count(*) from notification.requests group by 1"
    open_sql = "select count(*) from notification.requests where ended_at is null"
    cancel_sql = (
        "update notification.requests set state = 'suppressed', reason = 'cancelled' where id = $1 and ended_at is null"
    )

    async def prepare(self) -> None:
        await self.owner.execute(
            """
            insert into notification.templates (key, category, texts, checksum)
            values ('payment.succeeded', 'payment', '{}', 'x')
            """
        )

    def claim_filter(self, **claimer: Any) -> NotificationClaimFilter:
        return replace(ANY_NOTIFICATION, **claimer)

    def insert(self, **how: Any) -> str:
        columns: dict[str, Any] = {"priority": 5, "due": timedelta(), "expires": None} | how
        return f"""
            insert into notification.requests
                (id, recipient_type, recipient_id, template_key, payload, state, priority, scheduled_at, expires_at)
            select pabal.uuid7(), 'dashboard_toast', '1', 'payment.succeeded', '{{}}', 'pending',
                   {columns["priority"]}, {later(columns["due"])}, {later(columns["expires"])}
            from generate_series(1, $1) returning id
        """


class Relay(LaneUnderTest):
    lane = RelayLane()
    end_sql = "select status as state, count(*) from public.inbound_messages group by 1"
    open_sql = "select count(*) from public.inbound_messages where ended_at is null"
    cancel_sql = "update public.inbound_messages set status = 'CANCELLED' where id = $1 and ended_at is null"

    async def prepare(self) -> None:
        account = await self.owner.fetchval(
            "insert into public.accounts (openclaw_user_id) values ('owner') returning id",
        )
        self.claimer = {"account": account}

    def claim_filter(self, **claimer: Any) -> UUID:
        return claimer["account"]

    def insert(self, **how: Any) -> str:
        columns: dict[str, Any] = {"expires": timedelta(minutes=15), "account": self.claimer["account"]} | how
        return f"""
            insert into public.inbound_messages
                (id, account_id, conversation_key, kakao_payload, normalized, source_event_id, expires_at)
            select i, {sql(columns["account"])}, 'bot:user', '{{}}', '{{}}', i::text, {later(columns["expires"])}
            from (select pabal.uuid7() i from generate_series(1, $1)) ids returning id
        """


def sql(value: Any) -> str:
    return "null" if value is None else f"'{value}'"


def later(by: timedelta | None) -> str:
    return "null" if by is None else f"pabal.now() + make_interval(secs => {by.total_seconds()})"


LANES: tuple[type[LaneUnderTest], ...] = (Events, Notifications, Relay)
