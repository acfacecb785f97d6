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
from pabal.events.repair.repair import repair_event_tables
from pabal.hub import DatabaseUrls, open_hub
from pabal.queue.lane import Capability
from pabal.queue.outcome import DONE, Dead, Outcome, Retry, Snooze
from pabal.settings import Settings
from support.clusters import open_connection
from support.lane_under_test import LANES, Events, LaneUnderTest, Relay

Result = TypeVar("Result")

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
DELETE_ALL = """
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


class LaneRunner:
    """One lane on one database with an event loop, for all examples in turn."""

    def __init__(self, kind: type[LaneUnderTest], database_urls: DatabaseUrls, data_dir: Path) -> None:
        self.kind = kind
        self.database_urls = database_urls
        self.data_dir = data_dir
        self.runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self.runner.run(self._open())
        return self

    def __exit__(self, *exc: object) -> None:
        self.runner.run(self._close())
        self.runner.close()

    async def _open(self) -> None:
        hub_settings = Settings(_env_file=None, data_dir=self.data_dir)  # pyright: ignore[reportCallIssue]
        self._hub = open_hub(hub_settings, self.database_urls)
        self.owner = await asyncpg.connect(self.database_urls.direct)
        self.lane = self.kind(await self._hub.__aenter__(), self.owner, self._no_travel)
        await self.owner.execute(CLOCK)
        await self.lane.prepare()

    async def _close(self) -> None:
        self.owner.terminate()
        await self._hub.__aexit__(None, None, None)

    async def _no_travel(self, duration: timedelta) -> None:
        raise TypeError(f"this test keeps its clock in a table: {duration}")

    def run(self, work: "Coroutine[Any, Any, Result]") -> Result:
        return self.runner.run(work)


class LaneMachine(RuleBasedStateMachine):
    """Applies the same operations to lane and model, and compares the results."""

    lane_runner: LaneRunner
    items: Bundle[Any] = Bundle("items")
    """Every claimed item, also old ones: a holder that lost its lease may still settle."""
    several = st.lists(items, min_size=1, max_size=4)

    @initialize()
    def begin(self) -> None:
        self.lane = self.lane_runner.lane
        self.is_events = isinstance(self.lane, Events)
        self.now = 0
        self.rows: dict[UUID, Row] = {}
        self.until: dict[object, int] = {}
        self.lane_runner.run(self.lane_runner.owner.execute(DELETE_ALL))

    # The model

    def lease_key(self, item: Any) -> object:
        """Events claimed together share one lease; elsewhere each row has its own."""
        return item.lease if self.is_events else (item.lease, item.id)

    def holds(self, item: Any) -> bool:
        return self.rows[item.id].lease == item.lease

    def has_lapsed(self, row_id: UUID) -> bool:
        lease = self.rows[row_id].lease
        return lease is not None and self.until[lease if self.is_events else (lease, row_id)] <= self.now

    def model_lapse(self, row_id: UUID) -> None:
        """A lease expired: the row is due again, or dead after its last attempt."""
        row = self.rows[row_id]
        row.lease, row.due = None, self.now
        row.ended = Capability.DEAD_LETTER in self.lane.capabilities and row.attempts >= row.max_attempts

    # Operations

    @rule(count=st.integers(1, 4), due=steps, expires=st.none() | st.integers(1, 12), retries=st.integers(0, 2))
    def put(self, count: int, due: int, expires: int | None, retries: int) -> None:
        if Capability.DELAY not in self.lane.capabilities:
            due = 0
        if isinstance(self.lane, Relay) and expires is None:
            expires = 12  # a message always expires
        options: dict[str, Any] = {"expires": None if expires is None else timedelta(seconds=expires * STEP)}
        options |= {"due": timedelta(seconds=due * STEP)} if Capability.DELAY in self.lane.capabilities else {}
        options |= {"max_retries": retries} if self.is_events else {}
        max_attempts = retries + 1 if self.is_events else 3
        for row_id in self.lane_runner.run(self.lane.put(count, **options)):
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
                self.model_lapse(row_id)
            if not row.ended:
                expected.add(row_id)

        claimed = self.lane_runner.run(self.lane.claim(limit=1000, hold=timedelta(seconds=hold * STEP)))

        assert {item.id for item in claimed} == expected
        for item in claimed:
            row = self.rows[item.id]
            row.attempts += 1
            row.lease = item.lease
            self.until[self.lease_key(item)] = self.now + hold
            assert item.attempt == row.attempts
        return multiple(*claimed)

    @rule(item=items, kind=st.sampled_from(["done", "retry", "dead", "snooze"]), delay=steps)
    def settle(self, item: Any, kind: str, delay: int) -> None:
        if kind == "dead" and Capability.DEAD_LETTER not in self.lane.capabilities:
            kind = "done"
        wait = timedelta(seconds=delay * STEP)
        outcome: Outcome = {
            "done": DONE,
            "retry": Retry("again", wait),
            "dead": Dead("never"),
            "snooze": Snooze("later", wait),
        }[kind]
        held = self.holds(item)

        assert self.lane_runner.run(self.lane.settle(item, outcome)) == held

        row = self.rows[item.id]
        if held:
            row.lease = None
            last = Capability.RETRY in self.lane.capabilities and row.attempts >= row.max_attempts
            row.ended = kind in {"done", "dead"} or (kind == "retry" and last)
            row.due = self.now + (delay if Capability.DELAY in self.lane.capabilities else 0)
            if kind == "snooze" and Capability.RETRY in self.lane.capabilities:
                row.attempts -= 1

    @rule(sample=several)
    def release(self, sample: list[Any]) -> None:
        claimed = unique_items(sample)
        held = {item.id for item in claimed if self.holds(item)}

        assert self.lane_runner.run(self.lane.release(claimed)) == held

        for row_id in held:
            row = self.rows[row_id]
            row.lease, row.due = None, self.now
            row.attempts -= 1 if Capability.RETRY in self.lane.capabilities else 0

    @rule(sample=several, hold=st.integers(1, 4))
    def extend(self, sample: list[Any], hold: int) -> None:
        claimed = unique_items(sample)
        held = {item.id for item in claimed if self.holds(item)}

        lost = self.lane_runner.run(self.lane.extend(claimed, timedelta(seconds=hold * STEP)))

        assert lost == {item.id for item in claimed} - held
        for item in claimed:
            if item.id in held:
                self.until[self.lease_key(item)] = self.now + hold

    @rule(item=consumes(items))
    def crash(self, item: Any) -> None:
        """The holder crashes."""

    @rule(step_count=st.integers(1, 5))
    def travel(self, step_count: int) -> None:
        self.now += step_count
        self.lane_runner.run(
            self.lane_runner.owner.execute(f"update public.clock set at = at + interval '{step_count * STEP} s'")
        )

    @rule()
    def expire(self) -> None:
        self.revive()
        expected = [
            row_id
            for row_id, row in self.rows.items()
            if not row.ended and row.is_late(self.now) and (row.lease is None or self.has_lapsed(row_id))
        ]

        assert self.lane_runner.run(self.lane.expire()) == len(expected)

        for row_id in expected:
            self.rows[row_id].ended, self.rows[row_id].lease = True, None

    @rule(item=items)
    def cancel(self, item: Any) -> None:
        """Plain SQL that ignores the holder."""
        row_id = item.id
        self.lane_runner.run(self.lane_runner.owner.execute(self.lane.cancel_sql, row_id))
        if not self.rows[row_id].ended:
            self.rows[row_id].ended, self.rows[row_id].lease = True, None

    def revive(self) -> None:
        if self.is_events:
            for row_id in [row_id for row_id in self.rows if self.has_lapsed(row_id)]:
                self.model_lapse(row_id)
            self.lane_runner.run(self.chore(self.lane.lane.revive))

    async def chore(self, work: Any) -> int:
        async with self.lane.hub.transaction() as tx:
            return await work(tx, 5000)

    # Invariants

    @invariant()
    def open_rows_match_the_model(self) -> None:
        if hasattr(self, "lane"):
            open_rows = sum(not row.ended for row in self.rows.values())
            assert self.lane_runner.run(self.lane_runner.owner.fetchval(self.lane.open_sql)) == open_rows

    def teardown(self) -> None:
        if hasattr(self, "lane") and self.is_events:
            assert self.lane_runner.run(self.chore(repair_event_tables)) == 0


def unique_items(items: list[Any]) -> list[Any]:
    return [*{item.id: item for item in items}.values()]


@pytest.fixture
def lane_runner(
    request: pytest.FixtureRequest, postgres: embedded.ServerAddress, template_database: str
) -> Generator[LaneRunner]:
    name = f"machine_{request.param.__name__.lower()}"

    async def execute(statement: str) -> None:
        async with open_connection(postgres.owner_url) as owner:
            await owner.execute(statement)

    asyncio.run(execute(f"create database {name} template {template_database}"))
    main_url, direct_url = (url.rpartition("/")[0] + f"/{name}" for url in (postgres.hub_url, postgres.owner_url))
    with (
        tempfile.TemporaryDirectory() as data_dir,
        LaneRunner(request.param, DatabaseUrls(main_url, direct_url), Path(data_dir)) as runner,
    ):
        yield runner
    asyncio.run(execute(f"drop database {name} with (force)"))


@pytest.mark.parametrize("lane_runner", LANES, ids=lambda kind: kind.__name__.lower(), indirect=True)
def test_the_lane_and_the_model_agree(lane_runner: LaneRunner) -> None:
    machine = type("Machine", (LaneMachine,), {"lane_runner": lane_runner})
    run_state_machine_as_test(machine, settings=BOUNDED)
