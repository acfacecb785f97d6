"""Concurrent pairing: one code has one winner, unpairing leaves nothing behind, and no deadlocks."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import AsyncExitStack
from itertools import cycle
from uuid import UUID

import pytest

from pabal.core.errors import NotFound, PabalError
from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.accounts import delete_account, disable_account
from pabal.relay.conversations import block_conversation, unpair_conversation
from pabal.relay.pairing.sessions import find_relay_session_status
from pabal.relay.webhook.payload import InboundPayload
from pabal.relay.webhook.receive import InboundDraft
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from pabal.settings import Settings
from relay.people import (
    CHANNEL,
    TESTER,
    add_account,
    conversation_state_of,
    create_code,
    key_of_user,
    new_session,
    pair_user,
    send_command,
)
from support.clusters import Connection

pytestmark = pytest.mark.anyio

PAIRED = KOREAN_TEXTS.paired.format(prefix="/")
COUNT_OPEN = "select count(*) from public.inbound_messages where ended_at is null"
NO_LIMITS = {"webhook_per_conversation": 0, "webhook_per_channel": 0}


@pytest.fixture
async def hubs(database_urls: DatabaseUrls, settings: Settings) -> AsyncGenerator[list[Hub]]:
    """Three hubs on one database."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(open_hub(settings.model_copy(update=NO_LIMITS), database_urls))
            for _ in range(3)
        ]


async def send(hub: Hub, user: str, text: str) -> None:
    await hub.relay.webhook_batcher.put(
        InboundDraft(InboundPayload(CHANNEL, user, text, None, new_id().hex, "{}"), is_command=False)
    )


async def run_all(*operations: Awaitable[object]) -> list[object]:
    """Run all at once; only refusals are allowed to fail."""
    results = await asyncio.gather(*operations, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException) and not isinstance(result, NotFound)]
    assert errors == []
    return results


@pytest.mark.parametrize("kind", ["generated", "session"])
async def test_of_a_hundred_users_with_the_same_code_one_is_paired(
    hubs: list[Hub], owner: Connection, kind: str
) -> None:
    bot = await add_account(hubs[0])
    code = await create_code(hubs[0], bot.account) if kind == "generated" else (await new_session(hubs[0])).code
    accounts_before = await owner.fetchval("select count(*) from public.accounts")
    users = [f"user{number}" for number in range(100)]

    texts = await run_all(
        *(send_command(hub, user, f"/pair {code}") for hub, user in zip(cycle(hubs), users, strict=False))
    )

    assert sorted(texts, key=str).count(PAIRED) == 1
    assert texts.count(KOREAN_TEXTS.wrong_code) == 99
    [winner] = await owner.fetch("select conversation_key from public.conversation_mappings where state = 'PAIRED'")
    assert winner["conversation_key"] == key_of_user(users[texts.index(PAIRED)])
    new_accounts = 0 if kind == "generated" else 1
    assert await owner.fetchval("select count(*) from public.accounts") == accounts_before + new_accounts
    assert await owner.fetchval("select count(*) from public.relay_control_events") == 1


async def test_a_concurrently_repeated_command_runs_once(hubs: list[Hub], owner: Connection) -> None:
    texts = await run_all(
        *(send_command(hub, "min", "/code", event="1") for hub, _ in zip(cycle(hubs), range(20), strict=False))
    )

    assert len({*map(str, texts)}) == 1
    assert await owner.fetchval("select count(*) from public.conversation_codes") == 1


async def test_two_users_who_swap_accounts_do_not_deadlock(hubs: list[Hub], owner: Connection) -> None:
    users, bots = ["min", "jun"], list[UUID]()
    for user in users:
        await send_command(hubs[0], user, f"/pair {(await new_session(hubs[0])).code}")
        _, account = await conversation_state_of(owner, user)
        assert account
        bots.append(account)

    for _ in range(30):
        bots.reverse()
        commands = [f"/pair {await create_code(hubs[0], account)}" for account in bots]
        await run_all(*(send_command(hub, user, text) for hub, user, text in zip(hubs, users, commands, strict=False)))

        assert [await conversation_state_of(owner, user) for user in users] == [("PAIRED", account) for account in bots]


async def test_two_last_users_who_leave_at_once_disconnect_the_session(hubs: list[Hub], owner: Connection) -> None:
    session = await new_session(hubs[0])
    await send_command(hubs[0], "min", f"/pair {session.code}")
    _, account = await conversation_state_of(owner, "min")
    assert account
    for _ in range(10):
        await pair_user(hubs[0], "min", account)
        await pair_user(hubs[0], "jun", account)
        await run_all(*(send_command(hub, user, "/unpair") for hub, user in zip(hubs, ("min", "jun"), strict=False)))

        async with hubs[0].autocommit() as tx:
            assert (await find_relay_session_status(tx, session.token)).state == "disconnected"


@pytest.mark.parametrize("action", ["unpair", "block", "replace", "disable", "delete"])
async def test_unpairing_during_a_webhook_leaves_nothing_queued(
    hubs: list[Hub], owner: Connection, action: str
) -> None:
    bot, other = await add_account(hubs[0]), await add_account(hubs[0], "other")
    await pair_user(hubs[0], "min", bot.account)
    code = await create_code(hubs[0], other.account)

    async def run_action() -> None:
        async with hubs[0].transaction() as tx:
            match action:
                case "unpair":
                    await unpair_conversation(tx, key_of_user("min"), TESTER)
                case "block":
                    await block_conversation(tx, key_of_user("min"), TESTER)
                case "disable":
                    await disable_account(tx, bot.account, TESTER)
                case _:
                    await delete_account(tx, bot.account, TESTER)

    unpairing = send_command(hubs[0], "min", f"/pair {code}") if action == "replace" else run_action()
    webhooks = [send(hub, "min", str(number)) for hub, number in zip(cycle(hubs), range(60), strict=False)]
    await run_all(*webhooks[:30], unpairing, *webhooks[30:])

    open_messages = "select count(*) from public.inbound_messages where ended_at is null and account_id = $1"
    assert await owner.fetchval(open_messages, bot.account) == 0
    if action != "replace":
        assert await owner.fetchval(COUNT_OPEN) == 0


async def test_an_account_deleted_during_pairing_is_gone(hubs: list[Hub], owner: Connection) -> None:
    for number in range(10):
        bot = await add_account(hubs[0], f"owner{number}")
        codes = [await create_code(hubs[0], bot.account) for _ in range(5)]
        await send_command(hubs[0], "user0", f"/pair {codes[0]}")

        async def delete(account: UUID = bot.account) -> None:
            async with hubs[1].transaction() as tx:
                await delete_account(tx, account, TESTER)

        pairings = [
            send_command(hub, f"user{index}", f"/pair {codes[index]}")
            for hub, index in zip(cycle(hubs), range(1, 5), strict=False)
        ]
        results = await asyncio.gather(*pairings, delete(), return_exceptions=True)

        assert [
            result for result in results if isinstance(result, BaseException) and not isinstance(result, PabalError)
        ] == []
        if isinstance(results[-1], PabalError):  # a rare deadlock, which the caller retries
            await delete()
        assert await owner.fetchval("select count(*) from public.conversation_mappings where state <> 'UNPAIRED'") == 0
        await owner.execute("delete from public.pairing_failures")
