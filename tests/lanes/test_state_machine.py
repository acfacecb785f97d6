"""Each lane against a small model: the holder of each row, when it is due, and its attempts."""

import asyncio
import tempfile
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, TypeVar
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from pabal.db import embedded
from pabal.events.repair import repair_event_tables
from pabal.hub import DatabaseUrls, open_hub
from pabal.queue.lane import Capability
from pabal.queue.outcome import DONE, Dead, Outcome, Retry, Snooze
from pabal.settings import Settings
from support.clusters import connected
from support.lane_under_test import LANES, Events, LaneUnderTest, Relay

Answer = TypeVar("Answer")

STEP = 10
"""Seconds. All times are multiples of a step, so no two differ by less."""
steps = st.sampled_from([0, 0, 0, 1, 3])

BOUNDED = settings(
    max_examples=60,
    stateful_step_count=30,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

CLOCK = """
create table public.clock (at timestamptz not null);
insert into public.clock values ('2030-01-01');
grant select on public.clock to public;
create or replace function pabal.now() returns timestamptz language sql stable as 'select at from public.clock';
"""
EMPTY = """
delete from public.event_queue;
delete from public.dead_letter_queue;
delete from pabal.event_leases;
delete from notification.requests;
delete from public.inbound_messages;
"""


@dataclass(slots=True)
class Row:
    """Expected state of one row."""

    due: int
    expires: int | None
    max_attempts: int
    attempts: int = 0
    lease: UUID | None = None
    ended: bool = False

    def is_late(self, now: int) -> bool:
        return self.expires is not None and self.expires <= now


class Stage:
    """One lane on one database with an event loop, for all examples in turn."""

    def __init__(self, kind: type[LaneUnderTest], database_urls: DatabaseUrls, home: Path) -> None:
        self.kind = kind
        self.database_urls = database_urls
        self.home = home
        self.runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self.runner.run(self._open())
        return self

    def __exit__(self, *exc: object) -> None:
        self.runner.run(self._close())
        self.runner.close()

    async def _open(self) -> None:
        quiet = Settings(_env_file=None, data_dir=self.home)  # pyright: ignore[reportCallIssue]
        self._hub = open_hub(quiet, self.database_urls)
        self.owner = await asyncpg.connect(self.database_urls.direct)
        self.lane = self.kind(await self._hub.__aenter__(), self.owner, self._no_travel)
        await self.owner.execute(CLOCK)
        await self.lane.prepare()

    async def _close(self) -> None:
        self.owner.terminate()
        await self._hub.__aexit__(None, None, None)

    async def _no_travel(self, by: timedelta) -> None:
        raise TypeError(f"the clock stands in a table here: {by}")

    def run(self, work: "Coroutine[Any, Any, Answer]") -> Answer:
        return self.runner.run(work)


class LaneMachine(RuleBasedStateMachine):
    """Applies the same operations to lane and model, and compares the results."""

    stage: Stage
    items: Bundle[Any] = Bundle("items")
    """Every claimed item, also old ones: a holder that lost its lease may still settle."""
    several = st.lists(items, min_size=1, max_size=4)

    @initialize()
    def begin(self) -> None:
        self.lane = self.stage.lane
        self.is_events = isinstance(self.lane, Events)
        self.now = 0
        self.rows: dict[UUID, Row] = {}
        self.until: dict[object, int] = {}
        self.stage.run(self.stage.owner.execute(EMPTY))

    # The model

    def lease_key(self, item: Any) -> object:
        """Events claimed together share one lease; elsewhere each row has its own."""
        return item.lease if self.is_events else (item.lease, item.id)

    def holds(self, item: Any) -> bool:
        return self.rows[item.id].lease == item.lease

    def has_lapsed(self, row_id: UUID) -> bool:
        lease = self.rows[row_id].lease
        return lease is not None and self.until[lease if self.is_events else (lease, row_id)] <= self.now

    def let_lapsed_go(self, row_id: UUID) -> None:
        """A lease expired: the row is due again, or dead after its last attempt."""
        row = self.rows[row_id]
        row.lease, row.due = None, self.now
        row.ended = Capability.DEAD_LETTER in self.lane.can and row.attempts >= row.max_attempts

    # Operations

    @rule(many=st.integers(1, 4), due=steps, expires=st.none() | st.integers(1, 12), retries=st.integers(0, 2))
    def put(self, many: int, due: int, expires: int | None, retries: int) -> None:
        if Capability.DELAY not in self.lane.can:
            due = 0
        if isinstance(self.lane, Relay) and expires is None:
            expires = 12  # a message always expires
        how: dict[str, Any] = {"expires": None if expires is None else timedelta(seconds=expires * STEP)}
        how |= {"due": timedelta(seconds=due * STEP)} if Capability.DELAY in self.lane.can else {}
        how |= {"max_retries": retries} if self.is_events else {}
        max_attempts = retries + 1 if self.is_events else 3
        for row_id in self.stage.run(self.lane.put(many, **how)):
            self.rows[row_id] = Row(self.now + due, None if expires is None else self.now + expires, max_attempts)

    @rule(target=items, hold=st.integers(1, 4))
    def claim(self, hold: int) -> Any:
        self.revive()
        expected: set[UUID] = set()
        for row_id, row in self.rows.items():
            if row.ended or row.due > self.now or (row.lease is not None and not self.has_lapsed(row_id)):
                continue
            if row.is_late(self.now):
                row.ended = self.is_events  # in other lanes the chore does it
                continue
            if self.has_lapsed(row_id):
                self.let_lapsed_go(row_id)
            if not row.ended:
                expected.add(row_id)

        found = self.stage.run(self.lane.claim(limit=1000, hold=timedelta(seconds=hold * STEP)))

        assert {item.id for item in found} == expected
        for item in found:
            row = self.rows[item.id]
            row.attempts += 1
            row.lease = item.lease
            self.until[self.lease_key(item)] = self.now + hold
            assert item.attempt == row.attempts
        return multiple(*found)

    @rule(item=items, how=st.sampled_from(["done", "retry", "dead", "snooze"]), after=steps)
    def settle(self, item: Any, how: str, after: int) -> None:
        if how == "dead" and Capability.DEAD_LETTER not in self.lane.can:
            how = "done"
        wait = timedelta(seconds=after * STEP)
        outcome: Outcome = {
            "done": DONE,
            "retry": Retry("again", wait),
            "dead": Dead("never"),
            "snooze": Snooze("later", wait),
        }[how]
        held = self.holds(item)

        assert self.stage.run(self.lane.settle(item, outcome)) == held

        row = self.rows[item.id]
        if held:
            row.lease = None
            last = Capability.RETRY in self.lane.can and row.attempts >= row.max_attempts
            row.ended = how in {"done", "dead"} or (how == "retry" and last)
            row.due = self.now + (after if Capability.DELAY in self.lane.can else 0)
            if how == "snooze" and Capability.RETRY in self.lane.can:
                row.attempts -= 1

    @rule(some=several)
    def release(self, some: list[Any]) -> None:
        claimed = each_once(some)
        held = {item.id for item in claimed if self.holds(item)}

        assert self.stage.run(self.lane.release(claimed)) == held

        for row_id in held:
            row = self.rows[row_id]
            row.lease, row.due = None, self.now
            row.attempts -= 1 if Capability.RETRY in self.lane.can else 0

    @rule(some=several, hold=st.integers(1, 4))
    def extend(self, some: list[Any], hold: int) -> None:
        claimed = each_once(some)
        held = {item.id for item in claimed if self.holds(item)}

        lost = self.stage.run(self.lane.extend(claimed, timedelta(seconds=hold * STEP)))

        assert lost == {item.id for item in claimed} - held
        for item in claimed:
            if item.id in held:
                self.until[self.lease_key(item)] = self.now + hold

    @rule(item=consumes(items))
    def crash(self, item: Any) -> None:
        """The holder crashes."""

    @rule(by=st.integers(1, 5))
    def travel(self, by: int) -> None:
        self.now += by
        self.stage.run(self.stage.owner.execute(f"update public.clock set at = at + interval '{by * STEP} s'"))

    @rule()
    def expire(self) -> None:
        self.revive()
        expected = [
            row_id
            for row_id, row in self.rows.items()
            if not row.ended and row.is_late(self.now) and (row.lease is None or self.has_lapsed(row_id))
        ]

        assert self.stage.run(self.lane.expire()) == len(expected)

        for row_id in expected:
            self.rows[row_id].ended, self.rows[row_id].lease = True, None

    @rule(item=items)
    def cancel(self, item: Any) -> None:
        """Plain SQL that ignores the holder."""
        row_id = item.id
        self.stage.run(self.stage.owner.execute(self.lane.cancel_sql, row_id))
        if not self.rows[row_id].ended:
            self.rows[row_id].ended, self.rows[row_id].lease = True, None

    def revive(self) -> None:
        if self.is_events:
            for row_id in [row_id for row_id in self.rows if self.has_lapsed(row_id)]:
                self.let_lapsed_go(row_id)
            self.stage.run(self.chore(self.lane.lane.revive))

    async def chore(self, work: Any) -> int:
        async with self.lane.hub.transaction() as tx:
            return await work(tx, 5000)

    # Invariants

    @invariant()
    def nothing_is_lost_and_nothing_comes_back(self) -> None:
        if hasattr(self, "lane"):
            open_rows = sum(not row.ended for row in self.rows.values())
            assert self.stage.run(self.stage.owner.fetchval(self.lane.open_sql)) == open_rows

    def teardown(self) -> None:
        if hasattr(self, "lane") and self.is_events:
            assert self.stage.run(self.chore(repair_event_tables)) == 0


def each_once(items: list[Any]) -> list[Any]:
    return [*{item.id: item for item in items}.values()]


@pytest.fixture
def stage(request: pytest.FixtureRequest, postgres: embedded.ServerAddress, template_database: str) -> Generator[Stage]:
    name = f"machine_{request.param.__name__.lower()}"

    async def order(statement: str) -> None:
        async with connected(postgres.owner_url) as owner:
            await owner.execute(statement)

    asyncio.run(order(f"create database {name} template {template_database}"))
    work, direct = (url.rpartition("/")[0] + f"/{name}" for url in (postgres.hub_url, postgres.owner_url))
    with tempfile.TemporaryDirectory() as home, Stage(request.param, DatabaseUrls(work, direct), Path(home)) as opened:
        yield opened
    asyncio.run(order(f"drop database {name} with (force)"))


@pytest.mark.parametrize("stage", LANES, ids=lambda kind: kind.__name__.lower(), indirect=True)
def test_the_lane_and_the_model_agree(stage: Stage) -> None:
    machine = type("Machine", (LaneMachine,), {"stage": stage})
    run_state_machine_as_test(machine, settings=BOUNDED)
