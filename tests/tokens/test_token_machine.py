"""Stateful test of tokens against a small model: which ones are valid, until when, and what a refresh returns."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from pabal.core.errors import InvalidGrant
from pabal.db import embedded
from pabal.db.tx import Tx
from pabal.hub import DatabaseUrls, open_hub
from pabal.settings import Settings
from pabal.tokens.issue import OAuthClient, issue_tokens
from pabal.tokens.issuer import TokenPair
from pabal.tokens.revoke import expire_tokens, purge_token_families, revoke_access_token
from support.clusters import open_connection
from tokens.token_operations import (
    BY,
    add_shop,
    is_accepted,
    load_token_state,
    present_refresh_token,
    revoke_whole_family,
    set_shop_active,
)

Answer = TypeVar("Answer")

SERVICES = ("shop", "other")
HOUR, DAY = 3600, 86400
ACCESS, REFRESH, FAMILY, LOST_ANSWER = HOUR, 7 * DAY, 30 * DAY, 30
moments = st.sampled_from([0, 1, 29, 30, 31])
pauses = st.sampled_from([1, 30, HOUR - 1, HOUR, HOUR + 1, 6 * DAY, REFRESH - 1, REFRESH, FAMILY - HOUR])
"""Seconds. The clock stands still between the steps, so that no result depends on timing."""

BOUNDED = settings(
    max_examples=40,
    stateful_step_count=20,
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
delete from public.token_families;
update public.services set is_active = true, disabled_at = null;
"""
COUNT_EVENTS = "select count(*) from public.event_queue where event_type = $1"
DONE = "select count(*) from pabal.audit_log where action = $1 and id > $2"


@dataclass(slots=True, eq=False)
class Family:
    """The expected state of one token family."""

    id: UUID
    service: str
    ends: int
    revoked_at: int | None = None
    purged: bool = False
    members: "list[Access | Refresh]" = field(default_factory=list["Access | Refresh"])

    @property
    def ended_at(self) -> int:
        return self.ends if self.revoked_at is None else min(self.ends, self.revoked_at)


@dataclass(slots=True, eq=False)
class Access:
    token: str
    family: Family
    ends: int
    marked: bool = False


@dataclass(slots=True, eq=False)
class Refresh:
    token: str
    family: Family
    ends: int
    access: Access
    marked: bool = False
    spent_at: int | None = None
    successor: "Refresh | None" = None


class Stage:
    """A hub on one database and an event loop, shared by all examples."""

    def __init__(self, database_urls: DatabaseUrls, home: Path) -> None:
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
        self._opening = open_hub(Settings(_env_file=None, data_dir=self.home), self.database_urls)  # pyright: ignore[reportCallIssue]
        self.hub = await self._opening.__aenter__()
        self.owner = await asyncpg.connect(self.database_urls.direct)
        await self.owner.execute(CLOCK)
        for name in SERVICES:
            await add_shop(self.hub, name)

    async def _close(self) -> None:
        self.owner.terminate()
        await self._opening.__aexit__(None, None, None)

    def run(self, work: "Coroutine[Any, Any, Answer]") -> Answer:
        return self.runner.run(work)


class TokenMachine(RuleBasedStateMachine):
    """Applies the same steps to the hub and the model, and compares the results."""

    stage: Stage
    refreshes: Bundle[Refresh] = Bundle("refreshes")
    """All tokens that were ever issued, also used, revoked and purged ones: a client may still present them."""

    @initialize(target=refreshes)
    def begin(self) -> MultipleResults[Refresh]:
        self.now = 0
        self.reuses = 0
        self.active: dict[str, bool] = dict.fromkeys(map(str, SERVICES), True)
        self.families: list[Family] = []
        self.settled: set[Family] = set()  # ended and checked since; checked once more at the end
        self.stage.run(self.stage.owner.execute(EMPTY))
        self.before = self.stage.run(self.stage.owner.fetchval("select coalesce(max(id), 0) from pabal.audit_log"))
        self.stage.hub.token_verifier.invalidate()
        return multiple(*map(self.found, SERVICES))

    # The model

    def is_good(self, token: Access | Refresh) -> bool:
        family = token.family
        lives = family.revoked_at is None and self.active[family.service] and min(token.ends, family.ends) > self.now
        return lives and not token.marked and not family.purged

    def expected(self, held: Refresh) -> str:
        family = held.family
        if family.purged or family.revoked_at is not None or not self.active[family.service]:
            return "no"
        if family.ends <= self.now + 1:
            return "no"
        if held.successor is not None and held.spent_at is not None:
            unused = held.successor.successor is None and not held.successor.marked
            return "again" if unused and self.now - held.spent_at <= LOST_ANSWER else "reuse"
        return "no" if held.marked or held.ends <= self.now else "rotate"

    def end(self, family: Family) -> None:
        family.revoked_at = self.now
        for member in family.members:
            member.marked = True

    def admit(self, pair: TokenPair, family: Family) -> Refresh:
        """Add a new pair to the model."""
        assert pair.refresh_token is not None
        access = Access(pair.access_token, family, min(self.now + ACCESS, family.ends))
        refresh = Refresh(pair.refresh_token, family, min(self.now + REFRESH, family.ends), access)
        family.members += [access, refresh]
        assert pair.expires_in == timedelta(seconds=access.ends - self.now)
        return refresh

    # Steps

    @rule(target=refreshes, service=st.sampled_from(SERVICES))
    def issue(self, service: str) -> Refresh:
        return self.found(service)

    def usable_token(self, held: Refresh) -> Refresh:
        """The token, or one of a new family if it is not valid: most existing tokens have ended."""
        return self.found(held.family.service) if self.expected(held) == "no" else held

    def found(self, service: str) -> Refresh:
        """A family with its first pair; enables the service if necessary."""
        if not self.active[service]:
            self.switch(service)
        pair = self.stage.run(self.grant(service))
        family = Family(pair.family_id, service, self.now + FAMILY)
        self.families.append(family)
        return self.admit(pair, family)

    async def grant(self, service: str) -> TokenPair:
        at = await self.stage.owner.fetchval("select pabal.now()")
        async with self.stage.hub.autocommit() as tx:
            return await issue_tokens(
                tx, self.stage.hub.token_issuer, OAuthClient(service, ("write",), at), ("write",), BY
            )

    @rule(target=refreshes, held=refreshes)
    def refresh(self, held: Refresh) -> Refresh:
        return self.bring(held)

    def bring(self, held: Refresh) -> Refresh:
        """Present a refresh token; returns the valid token afterwards."""
        family, expected = held.family, self.expected(held)

        answer = self.stage.run(present_refresh_token(self.stage.hub, held.token, family.service))

        match expected:
            case "rotate":
                assert isinstance(answer, TokenPair), answer
                assert (answer.family_id, answer.refresh_token == held.token) == (family.id, False)
                held.spent_at, held.marked = self.now, True
                held.successor = self.admit(answer, family)
                return held.successor
            case "again":
                assert isinstance(answer, TokenPair), answer
                assert held.successor is not None
                assert (answer.refresh_token, answer.access_token) == (
                    held.successor.token,
                    held.successor.access.token,
                )
                return held.successor
            case "reuse":
                assert isinstance(answer, InvalidGrant)
                assert "already used" in str(answer)
                self.reuses += 1
                self.end(family)
            case _:
                assert isinstance(answer, InvalidGrant)
                assert "already used" not in str(answer)
        return held

    @rule(target=refreshes, held=refreshes, after=moments, times=st.integers(2, 3))
    def refresh_again(self, held: Refresh, after: int, times: int) -> Refresh:
        """A client lost the response, or two clients have the token."""
        held = self.usable_token(held)
        for _ in range(times - 1):
            self.bring(held)
            self.travel(after)
        return self.bring(held)

    @rule(target=refreshes, held=refreshes, pause=moments | pauses, times=st.integers(1, 4), stolen=st.booleans())
    def go_on_refreshing(self, held: Refresh, pause: int, times: int, stolen: bool) -> Refresh:
        """Refresh several times, and perhaps present the first token again."""
        first = held = self.usable_token(held)
        for _ in range(times):
            self.travel(pause)
            held = self.bring(held)
        if stolen:
            self.bring(first)
        return held

    @rule(held=refreshes, is_one=st.booleans())
    def refresh_what_is_not_ones_own(self, held: Refresh, is_one: bool) -> None:
        held = self.usable_token(held)
        [stranger] = {*SERVICES} - {held.family.service}

        answer = self.stage.run(
            present_refresh_token(self.stage.hub, held.token if is_one else held.token[::-1], stranger)
        )

        assert isinstance(answer, InvalidGrant)
        assert "unknown refresh token" in str(answer)

    @rule(held=refreshes, end=st.sampled_from(["access", "refresh", "family"]), left=st.sampled_from([0, 1, 2]))
    def come_close(self, held: Refresh, end: str, left: int) -> None:
        """Move the clock to the end of a token or family, or just before it."""
        held = self.usable_token(held)
        ends = {"access": held.access.ends, "refresh": held.ends, "family": held.family.ends}[end]
        self.travel(max(0, ends - left - self.now))
        self.bring(held)

    @rule(by=pauses)
    def travel(self, by: int) -> None:
        self.now += by
        self.stage.run(self.stage.owner.execute(f"update public.clock set at = at + interval '{by} s'"))
        self.stage.hub.token_verifier.invalidate()

    @rule(held=refreshes)
    def revoke_access(self, held: Refresh) -> None:
        access = self.usable_token(held).access
        could = not access.marked and not access.family.purged

        assert self.stage.run(self.end_access(access)) == could

        access.marked = access.marked or could

    async def end_access(self, access: Access) -> bool:
        found = await load_token_state(self.stage.hub, access.token)
        if found is None:
            return False
        async with self.stage.hub.transaction() as tx:
            return await revoke_access_token(tx, found.id, BY)

    @rule(held=refreshes)
    def revoke_family(self, held: Refresh) -> None:
        family = held.family
        could = family.revoked_at is None and not family.purged

        assert self.stage.run(revoke_whole_family(self.stage.hub, family.id)) == could

        if could:
            self.end(family)

    @rule(service=st.sampled_from(SERVICES))
    def switch(self, service: str) -> None:
        self.active[service] = not self.active[service]
        self.stage.run(set_shop_active(self.stage.hub, active=self.active[service], name=service))

    @rule()
    def expire(self) -> None:
        over = [
            member
            for family in self.families
            if not family.purged
            for member in family.members
            if member.ends < self.now and not member.marked
        ]

        assert self.stage.run(self.chore(expire_tokens)) == sum(isinstance(member, Access) for member in over)

        for member in over:
            member.marked = True

    @rule(keep=st.sampled_from([0, HOUR, 5 * DAY]))
    def purge(self, keep: int) -> None:
        gone = [family for family in self.families if not family.purged and family.ended_at < self.now - keep]

        assert self.stage.run(self.chore(partial(forget, timedelta(seconds=keep)))) == len(gone)

        for family in gone:
            family.purged = True

    async def chore(self, work: Callable[[Tx, int], Awaitable[int]]) -> int:
        async with self.stage.hub.transaction() as tx:
            return await work(tx, 1000)

    # Invariants

    @invariant()
    def every_token_has_the_state_of_the_model(self) -> None:
        open_families = [family for family in getattr(self, "families", ()) if family not in self.settled]
        self.stage.run(self.compare(open_families))
        self.settled |= {family for family in open_families if family.ended_at <= self.now}

    async def compare(self, families: list[Family]) -> None:
        for member in (member for family in families for member in family.members):
            found = await load_token_state(self.stage.hub, member.token)
            assert (found is None) == member.family.purged
            assert (found is not None and found.is_valid) == self.is_good(member)
            if isinstance(member, Access):
                assert await is_accepted(self.stage.hub, member.token) == self.is_good(member)

    def teardown(self) -> None:
        if hasattr(self, "families"):
            self.stage.run(self.compare(self.families))
            published = self.stage.run(self.stage.owner.fetchval(COUNT_EVENTS, "security.token_reuse"))
            done = self.stage.run(self.stage.owner.fetchval(DONE, "token.reused", self.before))
            assert (published, done) == (self.reuses, self.reuses)


async def forget(keep: timedelta, tx: Tx, batch: int) -> int:
    return await purge_token_families(tx, keep, batch)


@pytest.fixture
def stage(postgres: embedded.ServerAddress, template_database: str, tmp_path: Path) -> Generator[Stage]:
    name = "machine_tokens"

    async def order(statement: str) -> None:
        async with open_connection(postgres.owner_url) as connection:
            await connection.execute(statement)

    asyncio.run(order(f"create database {name} template {template_database}"))
    work, direct = (url.rpartition("/")[0] + f"/{name}" for url in (postgres.hub_url, postgres.owner_url))
    with Stage(DatabaseUrls(work, direct), tmp_path) as opened:
        yield opened
    asyncio.run(order(f"drop database {name} with (force)"))


def test_the_hub_and_the_model_agree(stage: Stage) -> None:
    machine = type("Machine", (TokenMachine,), {"stage": stage})
    run_state_machine_as_test(machine, settings=BOUNDED)
