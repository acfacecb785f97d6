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
from relay.people import CHANNEL, TESTER, add_account, create_code, key_of_user, new_session, send_command
from support.clusters import open_connection

Result = TypeVar("Result")
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
DELETE_ALL = """
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
class UserModel:
    """The expected state of a user."""

    state: str = "UNPAIRED"
    account: UUID | None = None
    blocked_by: str | None = None
    was_paired: bool = False


@dataclass(slots=True)
class CodeModel:
    """The expected state of a code. A session's code has no account before it is redeemed."""

    account: UUID | None
    used_by: str | None = None


class HubRunner:
    """One hub on one database with its own event loop, shared by all examples."""

    def __init__(self, database_urls: DatabaseUrls, data_dir: Path) -> None:
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
        no_limits: dict[str, Any] = {"webhook_per_conversation": 0, "webhook_per_channel": 0}
        hub_settings = Settings(_env_file=None, data_dir=self.data_dir, **no_limits)  # pyright: ignore[reportCallIssue]
        self._opened = open_hub(hub_settings, self.database_urls)
        self.hub = await self._opened.__aenter__()
        self.owner = await asyncpg.connect(self.database_urls.direct)

    async def _close(self) -> None:
        self.owner.terminate()
        await self._opened.__aexit__(None, None, None)

    def run(self, work: "Coroutine[Any, Any, Result]") -> Result:
        return self.runner.run(work)


class PairingMachine(RuleBasedStateMachine):
    """Applies the same steps to the relay and the model and compares them."""

    hub_runner: HubRunner
    codes: Bundle[str] = Bundle("codes")

    @initialize()
    def begin(self) -> None:
        self.users = dict.fromkeys(USERS, UserModel())
        self.codes_by_text: dict[str, CodeModel] = {}
        self.disabled: dict[UUID, bool] = {}
        self.open_messages: list[tuple[str, UUID]] = []
        self.hub_runner.run(self.hub_runner.owner.execute(DELETE_ALL))
        for user in USERS:
            self.hub_runner.run(send_command(self.hub_runner.hub, user, "/help"))
        self.create_account()
        self.create_account()

    def pick_account(self, choice: int) -> UUID | None:
        return [*self.disabled][choice % len(self.disabled)] if self.disabled else None

    def model_unpair(self, user: str, new_state: UserModel) -> None:
        """Unpair a user in the model; their open messages are cancelled."""
        self.open_messages = [message for message in self.open_messages if message[0] != user]
        self.users[user] = new_state

    def run_operation(self, operation: Any, *arguments: Any, **options: Any) -> bool:
        """Run in a transaction; returns whether it was accepted."""

        async def run() -> None:
            async with self.hub_runner.hub.transaction() as tx:
                await operation(tx, *arguments, **options)

        try:
            self.hub_runner.run(run())
        except PabalError:
            return False
        return True

    # Steps

    @rule()
    def add_account(self) -> None:
        self.create_account()

    def create_account(self) -> None:
        owner = self.hub_runner.run(add_account(self.hub_runner.hub, str(new_id())))
        self.disabled[owner.account] = False

    @rule(target=codes)
    def create_session(self) -> str:
        code = self.hub_runner.run(new_session(self.hub_runner.hub)).code
        self.codes_by_text[code] = CodeModel(None)
        return code

    @rule(target=codes, choice=st.integers(0, 9))
    def generate_code(self, choice: int) -> str:
        return self.generate(choice)

    def generate(self, choice: int) -> str:
        account = self.pick_account(choice)
        live = sum(
            code_model.account == account and not code_model.used_by for code_model in self.codes_by_text.values()
        )
        if account is None or self.disabled[account] or live >= 5:
            return "ABCD-2345"  # a code that does not exist
        code = self.hub_runner.run(create_code(self.hub_runner.hub, account))
        self.codes_by_text[code] = CodeModel(account)
        return code

    @rule(user=users, choice=st.integers(0, 9))
    def pair_and_send(self, user: str, choice: int) -> None:
        """The most common step."""
        self.redeem(user, self.generate(choice), approval=False)
        self.send(user)

    @rule(user=users, code=codes, approval=st.booleans())
    def redeem_code(self, user: str, code: str, approval: bool) -> None:
        self.redeem(user, code, approval=approval)

    def redeem(self, user: str, code: str, *, approval: bool) -> None:
        hub_settings = self.hub_runner.hub.settings.model_copy(update={"pairing_approval": approval})
        text = self.hub_runner.run(send_command(self.hub_runner.hub, user, f"/pair {code}", settings=hub_settings))
        # Lockouts are tested elsewhere.
        self.hub_runner.run(self.hub_runner.owner.execute("delete from public.pairing_failures"))
        before, code_model = self.users[user], self.codes_by_text.get(code)
        if before.state == "BLOCKED":
            assert text == KOREAN_TEXTS.blocked
            return
        if code_model is None or code_model.used_by or (code_model.account and self.disabled[code_model.account]):
            is_own = (
                code_model and code_model.used_by == user and code_model.account == before.account and before.account
            )
            repeated_text = PENDING if before.state == "PENDING" else PAIRED
            assert text == (repeated_text if is_own and not self.disabled[before.account] else KOREAN_TEXTS.wrong_code)  # pyright: ignore[reportArgumentType]
            return
        code_model.used_by = user
        if code_model.account is None:
            code_model.account = self.hub_runner.run(self.account_of(user))
            self.disabled[code_model.account] = False
        same = before.account == code_model.account
        if same and before.state == "PAIRED":
            assert text == PAIRED
            return
        if not same:
            self.model_unpair(user, before)
        self.users[user] = UserModel("PENDING" if approval else "PAIRED", code_model.account)
        replaced = not same and before.state == "PAIRED"
        assert text == (PENDING if approval else REPLACED if replaced else PAIRED)

    async def account_of(self, user: str) -> UUID:
        return await self.hub_runner.owner.fetchval(
            "select account_id from public.conversation_mappings where conversation_key = $1", key_of_user(user)
        )

    @rule(user=users)
    def send_message(self, user: str) -> None:
        self.send(user)

    def send(self, user: str) -> None:
        arrival = InboundPayload(CHANNEL, user, "hello", None, new_id().hex, "{}")
        self.hub_runner.run(self.hub_runner.hub.relay.webhook_batcher.put(InboundDraft(arrival, is_command=False)))
        person = self.users[user]
        if person.state == "PAIRED" and person.account and not self.disabled[person.account]:
            self.open_messages.append((user, person.account))

    @rule(user=users)
    def unpair(self, user: str) -> None:
        self.hub_runner.run(send_command(self.hub_runner.hub, user, "/unpair"))
        if self.users[user].state != "BLOCKED":
            self.model_unpair(user, UserModel())

    @rule(user=users, choice=st.none() | st.integers(0, 9), action=st.sampled_from(["unpair", "approve", "deny"]))
    def decide(self, user: str, choice: int | None, action: str) -> None:
        """An operator or an owner, perhaps of another account, changes a user's conversation."""
        account = None if choice is None else self.pick_account(choice) or new_id()
        person = self.users[user]
        is_allowed = account in {None, person.account}
        match action:
            case "unpair":
                accepted = self.run_operation(unpair_conversation, key_of_user(user), TESTER, account=account)
                assert accepted == (is_allowed and person.state != "BLOCKED")
                after = UserModel()
            case "approve":
                accepted = self.run_operation(
                    approve_pairing, key_of_user(user), TESTER, self.hub_runner.hub.relay.metrics, account=account
                )
                assert accepted == (is_allowed and person.state in {"PENDING", "PAIRED"})
                after = replace(person, state="PAIRED")
            case _:
                accepted = self.run_operation(deny_pairing, key_of_user(user), TESTER, account=account)
                assert accepted == (is_allowed and person.state == "PENDING")
                after = UserModel()
        if accepted and after.account is None:
            self.model_unpair(user, after)
        elif accepted:
            self.users[user] = after

    @rule(user=users, choice=st.none() | st.integers(0, 9))
    def block(self, user: str, choice: int | None) -> None:
        account = None if choice is None else self.pick_account(choice) or new_id()
        person = self.users[user]

        accepted = self.run_operation(block_conversation, key_of_user(user), TESTER, account=account)

        assert accepted == (account in {None, person.account})
        if accepted:
            blocked_by = "operator" if account is None or person.blocked_by == "operator" else "owner"
            was_paired = person.was_paired or person.state == "PAIRED"
            self.model_unpair(user, UserModel("BLOCKED", person.account, blocked_by, was_paired=was_paired))

    @rule(user=users, choice=st.none() | st.integers(0, 9))
    def unblock(self, user: str, choice: int | None) -> None:
        account = None if choice is None else self.pick_account(choice) or new_id()
        person = self.users[user]
        is_allowed = account in {None, person.account}

        accepted = self.run_operation(unblock_conversation, key_of_user(user), TESTER, account=account)

        assert accepted == (is_allowed and not (account and person.blocked_by == "operator"))
        if accepted and person.state == "BLOCKED":
            is_restored = person.account and person.was_paired
            self.users[user] = UserModel("PAIRED", person.account) if is_restored else UserModel()

    @rule(choice=st.integers(0, 9), disable=st.booleans())
    def switch(self, choice: int, disable: bool) -> None:
        account = self.pick_account(choice)
        if account is None:
            return
        assert self.run_operation(disable_account if disable else enable_account, account, TESTER)
        if disable and not self.disabled[account]:
            self.open_messages = [message for message in self.open_messages if message[1] != account]
            self.codes_by_text = {
                code: code_model
                for code, code_model in self.codes_by_text.items()
                if code_model.used_by or code_model.account != account
            }
        self.disabled[account] = disable

    @rule(choice=st.integers(0, 9))
    def delete(self, choice: int) -> None:
        account = self.pick_account(choice)
        if account is None:
            return
        assert self.run_operation(delete_account, account, TESTER)
        del self.disabled[account]
        self.codes_by_text = {
            code: code_model for code, code_model in self.codes_by_text.items() if code_model.account != account
        }
        for user, person in self.users.items():
            if person.account == account:
                stays_blocked = person.blocked_by == "operator"
                self.model_unpair(user, replace(person, account=None) if stays_blocked else UserModel())

    # Invariants

    @invariant()
    def conversations_match_the_model(self) -> None:
        if not hasattr(self, "users"):
            return
        rows = self.hub_runner.run(
            self.hub_runner.owner.fetch(
                "select plusfriend_user_key, state, account_id, blocked_by from public.conversation_mappings"
            )
        )
        rows_by_user = {row[0]: tuple(row)[1:] for row in rows}
        assert rows_by_user == {
            name: (person.state, person.account, person.blocked_by) for name, person in self.users.items()
        }

    @invariant()
    def open_messages_match_the_model(self) -> None:
        if not hasattr(self, "users"):
            return
        rows = self.hub_runner.run(
            self.hub_runner.owner.fetch(
                "select conversation_key, account_id from public.inbound_messages where ended_at is null order by seq"
            )
        )
        assert [tuple(row) for row in rows] == [(key_of_user(user), account) for user, account in self.open_messages]

    @invariant()
    def codes_match_the_model(self) -> None:
        if not hasattr(self, "users"):
            return
        rows = self.hub_runner.run(
            self.hub_runner.owner.fetch(
                "select code, account_id, used_by from public.pairing_codes "
                "union all select code, account_id, used_by from public.relay_sessions"
            )
        )
        expected = {
            code: (code_model.account, key_of_user(code_model.used_by) if code_model.used_by else None)
            for code, code_model in self.codes_by_text.items()
        }
        assert {row[0]: tuple(row)[1:] for row in rows} == expected


@pytest.fixture
def hub_runner(postgres: embedded.ServerAddress, template_database: str) -> Generator[HubRunner]:
    name = "pairing_machine"

    async def execute(statement: str) -> None:
        async with open_connection(postgres.owner_url) as owner:
            await owner.execute(statement)

    asyncio.run(execute(f"create database {name} template {template_database}"))
    main_url, direct_url = (url.rpartition("/")[0] + f"/{name}" for url in (postgres.hub_url, postgres.owner_url))
    with (
        tempfile.TemporaryDirectory() as data_dir,
        HubRunner(DatabaseUrls(main_url, direct_url), Path(data_dir)) as runner,
    ):
        yield runner
    asyncio.run(execute(f"drop database {name} with (force)"))


@pytest.mark.slow
def test_the_relay_agrees_with_the_model(hub_runner: HubRunner) -> None:
    machine = type("Machine", (PairingMachine,), {"hub_runner": hub_runner})
    run_state_machine_as_test(machine, settings=BOUNDED)
