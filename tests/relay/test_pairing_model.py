"""The relay against a small model: pairings, queued messages, used codes."""

import asyncio
import tempfile
from collections.abc import Coroutine, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pabal.core.errors import PabalError
from pabal.core.ids import new_id
from pabal.db import embedded
from pabal.hub import DatabaseUrls, open_hub
from pabal.relay.accounts import delete_account, disable_account, enable_account
from pabal.relay.conversations import (
    approve_pairing,
    block_conversation,
    deny_pairing,
    unblock_conversation,
    unpair_conversation,
)
from pabal.relay.webhook.payload import InboundPayload
from pabal.relay.webhook.receive import InboundDraft
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from pabal.settings import Settings
from relay.people import CHANNEL, TESTER, a_code, a_session, an_owner, key_of, write
from support.clusters import connected

Got = TypeVar("Got")
USERS: tuple[str, ...] = ("min", "jun", "kim")
users = st.sampled_from(USERS)

BOUNDED = settings(
    max_examples=40,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
EMPTY = """
delete from public.accounts;
delete from public.relay_sessions;
delete from public.conversation_mappings;
"""
PAIRED, REPLACED, PENDING = (
    KOREAN_TEXTS.paired.format(prefix="/"),
    KOREAN_TEXTS.replaced,
    KOREAN_TEXTS.approval_requested,
)


@dataclass(frozen=True, slots=True)
class Person:
    """The expected state of a user."""

    state: str = "UNPAIRED"
    account: UUID | None = None
    blocked_by: str | None = None
    was_paired: bool = False


@dataclass(slots=True)
class Ticket:
    """The expected state of a code. A session's code has no account before it is redeemed."""

    account: UUID | None
    used_by: str | None = None


class Stage:
    """One hub on one database with its own event loop, shared by all examples."""

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
        free: dict[str, Any] = {"webhook_per_conversation": 0, "webhook_per_channel": 0}
        quiet = Settings(_env_file=None, data_dir=self.home, **free)  # pyright: ignore[reportCallIssue]
        self._opened = open_hub(quiet, self.database_urls)
        self.hub = await self._opened.__aenter__()
        self.owner = await asyncpg.connect(self.database_urls.direct)

    async def _close(self) -> None:
        self.owner.terminate()
        await self._opened.__aexit__(None, None, None)

    def run(self, work: "Coroutine[Any, Any, Got]") -> Got:
        return self.runner.run(work)


class PeopleMachine(RuleBasedStateMachine):
    """Applies the same steps to the relay and the model and compares them."""

    stage: Stage
    codes: Bundle[str] = Bundle("codes")

    @initialize()
    def begin(self) -> None:
        self.people = dict.fromkeys(USERS, Person())
        self.tickets: dict[str, Ticket] = {}
        self.disabled: dict[UUID, bool] = {}
        self.waiting: list[tuple[str, UUID]] = []
        self.stage.run(self.stage.owner.execute(EMPTY))
        for user in USERS:
            self.stage.run(write(self.stage.hub, user, "/help"))
        self.make_account()
        self.make_account()

    def some_account(self, choice: int) -> UUID | None:
        return [*self.disabled][choice % len(self.disabled)] if self.disabled else None

    def leaves(self, user: str, now: Person) -> None:
        """Unpair a user in the model; their open messages are cancelled."""
        self.waiting = [message for message in self.waiting if message[0] != user]
        self.people[user] = now

    def do(self, verb: Any, *what: Any, **how: Any) -> bool:
        """Run in a transaction; returns whether it was accepted."""

        async def go() -> None:
            async with self.stage.hub.transaction() as tx:
                await verb(tx, *what, **how)

        try:
            self.stage.run(go())
        except PabalError:
            return False
        return True

    # Steps

    @rule()
    def another_account(self) -> None:
        self.make_account()

    def make_account(self) -> None:
        made = self.stage.run(an_owner(self.stage.hub, str(new_id())))
        self.disabled[made.account] = False

    @rule(target=codes)
    def begin_session(self) -> str:
        code = self.stage.run(a_session(self.stage.hub)).code
        self.tickets[code] = Ticket(None)
        return code

    @rule(target=codes, choice=st.integers(0, 9))
    def generates(self, choice: int) -> str:
        return self.generate(choice)

    def generate(self, choice: int) -> str:
        account = self.some_account(choice)
        live = sum(ticket.account == account and not ticket.used_by for ticket in self.tickets.values())
        if account is None or self.disabled[account] or live >= 5:
            return "ABCD-2345"  # a code that does not exist
        code = self.stage.run(a_code(self.stage.hub, account))
        self.tickets[code] = Ticket(account)
        return code

    @rule(user=users, choice=st.integers(0, 9))
    def connect_and_say(self, user: str, choice: int) -> None:
        """The most common step."""
        self.redeem(user, self.generate(choice), approval=False)
        self.say(user)

    @rule(user=users, code=codes, approval=st.booleans())
    def redeems(self, user: str, code: str, approval: bool) -> None:
        self.redeem(user, code, approval=approval)

    def redeem(self, user: str, code: str, *, approval: bool) -> None:
        patient = self.stage.hub.settings.model_copy(update={"pairing_approval": approval})
        text = self.stage.run(write(self.stage.hub, user, f"/pair {code}", settings=patient))
        self.stage.run(self.stage.owner.execute("delete from public.pairing_failures"))  # lockouts are tested elsewhere
        before, ticket = self.people[user], self.tickets.get(code)
        if before.state == "BLOCKED":
            assert text == KOREAN_TEXTS.blocked
            return
        if ticket is None or ticket.used_by or (ticket.account and self.disabled[ticket.account]):
            mine = ticket and ticket.used_by == user and ticket.account == before.account and before.account
            again = PENDING if before.state == "PENDING" else PAIRED
            assert text == (again if mine and not self.disabled[before.account] else KOREAN_TEXTS.wrong_code)  # pyright: ignore[reportArgumentType]
            return
        ticket.used_by = user
        if ticket.account is None:
            ticket.account = self.stage.run(self.account_of(user))
            self.disabled[ticket.account] = False
        same = before.account == ticket.account
        if same and before.state == "PAIRED":
            assert text == PAIRED
            return
        if not same:
            self.leaves(user, before)
        self.people[user] = Person("PENDING" if approval else "PAIRED", ticket.account)
        replaced = not same and before.state == "PAIRED"
        assert text == (PENDING if approval else REPLACED if replaced else PAIRED)

    async def account_of(self, user: str) -> UUID:
        return await self.stage.owner.fetchval(
            "select account_id from public.conversation_mappings where conversation_key = $1", key_of(user)
        )

    @rule(user=users)
    def says(self, user: str) -> None:
        self.say(user)

    def say(self, user: str) -> None:
        arrival = InboundPayload(CHANNEL, user, "hello", None, new_id().hex, "{}")
        self.stage.run(self.stage.hub.relay.webhook_batcher.put(InboundDraft(arrival, is_command=False)))
        person = self.people[user]
        if person.state == "PAIRED" and person.account and not self.disabled[person.account]:
            self.waiting.append((user, person.account))

    @rule(user=users)
    def leave(self, user: str) -> None:
        self.stage.run(write(self.stage.hub, user, "/unpair"))
        if self.people[user].state != "BLOCKED":
            self.leaves(user, Person())

    @rule(user=users, choice=st.none() | st.integers(0, 9), verb=st.sampled_from(["unpair", "approve", "deny"]))
    def decide(self, user: str, choice: int | None, verb: str) -> None:
        """An operator or an owner, perhaps of another account, changes a user's conversation."""
        account = None if choice is None else self.some_account(choice) or new_id()
        person = self.people[user]
        mine = account in {None, person.account}
        match verb:
            case "unpair":
                done = self.do(unpair_conversation, key_of(user), TESTER, account=account)
                assert done == (mine and person.state != "BLOCKED")
                after = Person()
            case "approve":
                done = self.do(approve_pairing, key_of(user), TESTER, self.stage.hub.relay.metrics, account=account)
                assert done == (mine and person.state in {"PENDING", "PAIRED"})
                after = replace(person, state="PAIRED")
            case _:
                done = self.do(deny_pairing, key_of(user), TESTER, account=account)
                assert done == (mine and person.state == "PENDING")
                after = Person()
        if done and after.account is None:
            self.leaves(user, after)
        elif done:
            self.people[user] = after

    @rule(user=users, choice=st.none() | st.integers(0, 9))
    def block(self, user: str, choice: int | None) -> None:
        account = None if choice is None else self.some_account(choice) or new_id()
        person = self.people[user]

        done = self.do(block_conversation, key_of(user), TESTER, account=account)

        assert done == (account in {None, person.account})
        if done:
            by = "operator" if account is None or person.blocked_by == "operator" else "owner"
            was = person.was_paired or person.state == "PAIRED"
            self.leaves(user, Person("BLOCKED", person.account, by, was_paired=was))

    @rule(user=users, choice=st.none() | st.integers(0, 9))
    def unblock(self, user: str, choice: int | None) -> None:
        account = None if choice is None else self.some_account(choice) or new_id()
        person = self.people[user]
        mine = account in {None, person.account}

        done = self.do(unblock_conversation, key_of(user), TESTER, account=account)

        assert done == (mine and not (account and person.blocked_by == "operator"))
        if done and person.state == "BLOCKED":
            back = person.account and person.was_paired
            self.people[user] = Person("PAIRED", person.account) if back else Person()

    @rule(choice=st.integers(0, 9), off=st.booleans())
    def switch(self, choice: int, off: bool) -> None:
        account = self.some_account(choice)
        if account is None:
            return
        assert self.do(disable_account if off else enable_account, account, TESTER)
        if off and not self.disabled[account]:
            self.waiting = [message for message in self.waiting if message[1] != account]
            self.tickets = {
                code: ticket for code, ticket in self.tickets.items() if ticket.used_by or ticket.account != account
            }
        self.disabled[account] = off

    @rule(choice=st.integers(0, 9))
    def delete(self, choice: int) -> None:
        account = self.some_account(choice)
        if account is None:
            return
        assert self.do(delete_account, account, TESTER)
        del self.disabled[account]
        self.tickets = {code: ticket for code, ticket in self.tickets.items() if ticket.account != account}
        for user, person in self.people.items():
            if person.account == account:
                stays = person.blocked_by == "operator"
                self.leaves(user, replace(person, account=None) if stays else Person())

    # Invariants

    @invariant()
    def everybody_is_where_they_should_be(self) -> None:
        if not hasattr(self, "people"):
            return
        rows = self.stage.run(
            self.stage.owner.fetch(
                "select plusfriend_user_key, state, account_id, blocked_by from public.conversation_mappings"
            )
        )
        rows_by_user = {row[0]: tuple(row)[1:] for row in rows}
        assert rows_by_user == {
            name: (person.state, person.account, person.blocked_by) for name, person in self.people.items()
        }

    @invariant()
    def what_waits_waits_for_who_it_was_written_to(self) -> None:
        if not hasattr(self, "people"):
            return
        rows = self.stage.run(
            self.stage.owner.fetch(
                "select conversation_key, account_id from public.inbound_messages where ended_at is null order by seq"
            )
        )
        assert [tuple(row) for row in rows] == [(key_of(user), account) for user, account in self.waiting]

    @invariant()
    def every_code_is_used_by_one_user_at_most(self) -> None:
        if not hasattr(self, "people"):
            return
        rows = self.stage.run(
            self.stage.owner.fetch(
                "select code, account_id, used_by from public.pairing_codes "
                "union all select code, account_id, used_by from public.relay_sessions"
            )
        )
        expected = {
            code: (ticket.account, key_of(ticket.used_by) if ticket.used_by else None)
            for code, ticket in self.tickets.items()
        }
        assert {row[0]: tuple(row)[1:] for row in rows} == expected


@pytest.fixture
def stage(postgres: embedded.ServerAddress, template_database: str) -> Generator[Stage]:
    name = "machine_people"

    async def order(statement: str) -> None:
        async with connected(postgres.owner_url) as owner:
            await owner.execute(statement)

    asyncio.run(order(f"create database {name} template {template_database}"))
    work, direct = (url.rpartition("/")[0] + f"/{name}" for url in (postgres.hub_url, postgres.owner_url))
    with tempfile.TemporaryDirectory() as home, Stage(DatabaseUrls(work, direct), Path(home)) as opened:
        yield opened
    asyncio.run(order(f"drop database {name} with (force)"))


@pytest.mark.slow
def test_the_relay_agrees_with_the_model(stage: Stage) -> None:
    machine = type("Machine", (PeopleMachine,), {"stage": stage})
    run_state_machine_as_test(machine, settings=BOUNDED)
