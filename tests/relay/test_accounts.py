"""Accounts and tokens: authentication, disabling, rotation, deletion and codes."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

import pytest

from pabal.core.errors import (
    AccountDisabled,
    Conflict,
    Invalid,
    NotFound,
    RateLimited,
    SessionNotPaired,
    Unauthenticated,
)
from pabal.core.ids import new_id
from pabal.hub import Hub
from pabal.relay.accounts import (
    AccountCounts,
    create_account,
    delete_account,
    disable_account,
    enable_account,
    find_account,
    find_account_details,
    list_accounts,
    rotate_relay_token,
    set_account_rate_limit,
)
from pabal.relay.auth import RelayPrincipal, authenticate_relay_token, require_owner
from pabal.relay.conversations import block_conversation
from pabal.relay.pairing.sessions import find_relay_session_status
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from relay.people import (
    TESTER,
    add_account,
    audit_actions_of,
    control_events,
    conversation_state_of,
    create_code,
    insert_message,
    key_of_user,
    new_session,
    pair_user,
    send_command,
)
from support.clusters import Connection

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
MINUTE = timedelta(minutes=1)


async def authenticate(hub: Hub, token: str) -> RelayPrincipal:
    async with hub.autocommit() as tx:
        return await authenticate_relay_token(tx, token)


async def test_a_relay_token_is_shown_once_and_stored_as_a_hash(hub: Hub, owner: Connection) -> None:
    async with hub.transaction() as tx:
        account, token = await create_account(tx, "파발꾼", TESTER, rate_limit=120)

    assert await authenticate(hub, token) == RelayPrincipal(account.id, None, account.id, 120, paired=True)
    assert (token[:4], len(token)) == ("prt_", 47)
    is_stored_as_hash = await owner.fetchval(
        "select relay_token_hash = encode(sha256($1), 'hex') from public.accounts", token.encode()
    )
    assert is_stored_as_hash is True
    assert await audit_actions_of(owner, account.id) == ["account.created"]


async def test_changing_a_rate_limit_is_audited_and_holds_at_once(hub: Hub, owner: Connection) -> None:
    bot = await add_account(hub)

    async with hub.transaction() as tx:
        changed = await set_account_rate_limit(tx, bot.account, 1200, TESTER)

    assert changed.rate_limit_per_minute == 1200
    assert (await authenticate(hub, bot.token)).rate_limit == 1200
    assert await audit_actions_of(owner, bot.account) == ["account.created", "account.rate_limit_set"]
    for wrong in (0, -1, 2**31):
        async with hub.transaction() as tx:
            with pytest.raises(Invalid, match="rate_limit"):
                await set_account_rate_limit(tx, bot.account, wrong, TESTER)


@pytest.mark.parametrize("token", ["", "prt_", "x" * 64, "0" * 64, "none:", "\ud800"])
async def test_an_unknown_token_is_unauthenticated(hub: Hub, owner: Connection, token: str) -> None:
    await add_account(hub)
    await new_session(hub)

    with pytest.raises(Unauthenticated):
        await authenticate(hub, token)


async def test_the_placeholder_for_a_missing_token_does_not_authenticate(hub: Hub, owner: Connection) -> None:
    session = await new_session(hub)
    await send_command(hub, "min", f"/pair {session.code}")
    placeholder = await owner.fetchval("select relay_token_hash from public.accounts")
    assert placeholder.startswith("none:")

    for token in (placeholder, placeholder.removeprefix("none:")):
        with pytest.raises(Unauthenticated):
            await authenticate(hub, token)


async def test_an_unpaired_session_expires_with_its_code(hub: Hub, travel: Travel) -> None:
    session = await new_session(hub)

    principal = await authenticate(hub, session.token)
    assert principal == RelayPrincipal(session.id, session.id, None, 600, paired=False)
    with pytest.raises(SessionNotPaired):
        require_owner(principal)

    await travel(5 * MINUTE)
    with pytest.raises(Unauthenticated):
        await authenticate(hub, session.token)


async def test_a_paired_session_outlives_its_code(hub: Hub, travel: Travel) -> None:
    session = await new_session(hub)
    await send_command(hub, "min", f"/pair {session.code}")
    await travel(timedelta(days=400))

    principal = await authenticate(hub, session.token)

    assert require_owner(principal).account_id == principal.account_id


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", "name: must be one line"),
        ("a\nb", "name: must be one line"),
        ("x" * 201, "name: must be one"),
        ("session:x", "begins with"),
    ],
)
async def test_a_name_is_one_line_without_the_session_prefix(hub: Hub, name: str, error: str) -> None:
    with pytest.raises(Invalid, match=error):
        await add_account(hub, name)


async def test_a_name_is_unique(hub: Hub) -> None:
    await add_account(hub)

    with pytest.raises(Conflict, match="Account owner already exists"):
        await add_account(hub)


async def test_disabling_takes_effect_at_once(hub: Hub, owner: Connection) -> None:
    session = await new_session(hub)
    await send_command(hub, "min", f"/pair {session.code}")
    _, account = await conversation_state_of(owner, "min")
    assert account
    async with hub.transaction() as tx:
        token = await rotate_relay_token(tx, account, TESTER)
    code = await create_code(hub, account)
    message = await insert_message(owner, account, "min")

    async with hub.transaction() as tx:
        await disable_account(tx, account, TESTER)
        await disable_account(tx, account, TESTER)  # repeated: no second audit entry

    for token_text in (session.token, token):
        with pytest.raises(AccountDisabled):
            await authenticate(hub, token_text)
    with pytest.raises(AccountDisabled):
        await create_code(hub, account)
    assert await send_command(hub, "jun", f"/pair {code}") == KOREAN_TEXTS.wrong_code
    message_row = await owner.fetchrow("select status, reason from public.inbound_messages where id = $1", message)
    assert message_row
    assert tuple(message_row) == ("CANCELLED", "disabled")
    assert (await control_events(owner))[-1] == ("disabled", account, None)
    assert (await audit_actions_of(owner, account)).count("account.disabled") == 1

    async with hub.transaction() as tx:
        await enable_account(tx, account, TESTER)
    assert (await authenticate(hub, token)).account_id == account
    assert await conversation_state_of(owner, "min") == ("PAIRED", account)
    assert await send_command(hub, "jun", f"/pair {code}") == KOREAN_TEXTS.wrong_code  # disabling deleted the code


async def test_a_rotated_token_is_invalid_at_once(hub: Hub, owner: Connection) -> None:
    session = await new_session(hub)
    await send_command(hub, "min", f"/pair {session.code}")
    _, account = await conversation_state_of(owner, "min")
    assert account
    event_count = len(await control_events(owner))
    tokens: list[str] = []
    for with_sessions in (False, False, True):
        async with hub.transaction() as tx:
            tokens.append(await rotate_relay_token(tx, account, TESTER, revoke_sessions=with_sessions))
        if not with_sessions:
            assert (await authenticate(hub, session.token)).account_id == account

    assert (await authenticate(hub, tokens[-1])).account_id == account
    for invalid_token in (*tokens[:-1], session.token):
        with pytest.raises(Unauthenticated):
            await authenticate(hub, invalid_token)
    with pytest.raises(NotFound):
        async with hub.autocommit() as tx:
            await find_relay_session_status(tx, session.token)
    rows = await owner.fetch(
        "select kind, data ? 'all' as includes_all from public.relay_control_events order by id offset $1", event_count
    )
    assert [tuple(row) for row in rows] == [("revoked", False), ("revoked", False), ("revoked", True)]


async def test_deleting_an_account_leaves_consistent_rows(hub: Hub, owner: Connection) -> None:
    bot = await add_account(hub)
    for user in ("min", "jun", "kim"):
        await pair_user(hub, user, bot.account)
        await insert_message(owner, bot.account, user)
    code = await create_code(hub, bot.account)
    async with hub.transaction() as tx:
        await block_conversation(tx, key_of_user("jun"), TESTER, bot.account)
        await block_conversation(tx, key_of_user("kim"), TESTER)

    async with hub.transaction() as tx:
        await delete_account(tx, bot.account, TESTER)

    assert [await conversation_state_of(owner, user) for user in ("min", "jun", "kim")] == [
        ("UNPAIRED", None),
        ("UNPAIRED", None),
        ("BLOCKED", None),
    ]
    for table in ("accounts", "inbound_messages", "pairing_codes"):
        assert await owner.fetchval(f"select count(*) from public.{table}") == 0
    assert (await control_events(owner))[-1] == ("revoked", bot.account, None)
    assert (await audit_actions_of(owner, bot.account))[-1] == "account.deleted"
    with pytest.raises(Unauthenticated):
        await authenticate(hub, bot.token)
    assert await send_command(hub, "min", f"/pair {code}") == KOREAN_TEXTS.wrong_code


@pytest.mark.parametrize("operation", [disable_account, enable_account, delete_account, rotate_relay_token])
async def test_an_unknown_account_is_not_found(hub: Hub, operation: Callable[..., Awaitable[object]]) -> None:
    with pytest.raises(NotFound):
        async with hub.transaction() as tx:
            await operation(tx, new_id(), TESTER)


async def test_account_contents_are_counted(hub: Hub, owner: Connection) -> None:
    bot = await add_account(hub)
    other = await add_account(hub, "other")
    for user in ("min", "jun", "kim"):
        await pair_user(hub, user, bot.account)
    await pair_user(hub, "lee", other.account)
    await create_code(hub, bot.account)
    await insert_message(owner, bot.account, "min")
    await insert_message(owner, other.account, "lee")
    async with hub.transaction() as tx:
        await block_conversation(tx, key_of_user("kim"), TESTER, bot.account)
        details = await find_account_details(tx, bot.account)
        assert await find_account(tx, "owner") == await find_account(tx, bot.account) == details.account

    assert details.counts == AccountCounts(paired=2, pending=0, blocked=1, live_codes=1, sessions=0, open_messages=1)


async def test_accounts_are_listed_in_pages(hub: Hub) -> None:
    accounts = [(await add_account(hub, f"owner{number}")).account for number in range(5)]
    listed: list[UUID] = []
    after = None
    async with hub.autocommit() as tx:
        while page := await list_accounts(tx, after=after, limit=2):
            listed += [account.id for account in page]
            after = (page[-1].created_at, page[-1].id)

    assert listed == accounts


async def test_an_account_has_at_most_five_live_codes(hub: Hub, owner: Connection, travel: Travel) -> None:
    bot, other = await add_account(hub), await add_account(hub, "other")
    first = await create_code(hub, bot.account, lifetime=2 * MINUTE)
    for _ in range(4):
        await create_code(hub, bot.account)

    with pytest.raises(RateLimited) as error:
        await create_code(hub, bot.account)
    assert MINUTE < error.value.retry_after <= 2 * MINUTE
    await create_code(hub, other.account)

    await send_command(hub, "min", f"/pair {first}")
    await create_code(hub, bot.account, lifetime=MINUTE)
    with pytest.raises(RateLimited):
        await create_code(hub, bot.account)
    await travel(MINUTE)
    await create_code(hub, bot.account)


@pytest.mark.parametrize("lifetime", [timedelta(), timedelta(minutes=30, seconds=1), timedelta(seconds=-1)])
async def test_a_code_is_valid_for_at_most_half_an_hour(hub: Hub, lifetime: timedelta) -> None:
    bot = await add_account(hub)

    with pytest.raises(Invalid, match="expiresInSeconds"):
        await create_code(hub, bot.account, lifetime=lifetime)


async def test_code_metadata_is_stored_and_limited(hub: Hub, owner: Connection) -> None:
    bot = await add_account(hub)
    await create_code(hub, bot.account, metadata={"for": "민"})

    assert await owner.fetchval("select metadata ->> 'for' from public.pairing_codes") == "민"
    with pytest.raises(Invalid, match="metadata"):
        await create_code(hub, bot.account, metadata={"for": "x" * 5000})


async def test_unused_codes_are_purged_and_used_ones_kept(hub: Hub, owner: Connection, travel: Travel) -> None:
    bot = await add_account(hub)
    used, session = await create_code(hub, bot.account), await new_session(hub)
    await create_code(hub, bot.account)
    await new_session(hub)
    await send_command(hub, "min", f"/pair {used}", event="1")
    await send_command(hub, "jun", f"/pair {session.code}")
    await send_command(hub, "kim", "/pair wrong")
    await send_command(hub, "kim", "/code")
    tables = (
        "pairing_codes",
        "relay_sessions",
        "command_answers",
        "relay_control_events",
        "pairing_failures",
        "conversation_codes",
    )

    async def remaining() -> list[int]:
        await hub.chores.run_due()
        return [await owner.fetchval(f"select count(*) from public.{table}") for table in tables]

    assert await remaining() == [2, 2, 4, 2, 1, 1]
    await travel(11 * MINUTE)
    assert await remaining() == [1, 2, 0, 0, 0, 1]
    await travel(timedelta(hours=2))
    assert await remaining() == [1, 1, 0, 0, 0, 0]
    await travel(timedelta(days=8))
    assert await remaining() == [0, 1, 0, 0, 0, 0]


async def test_of_twenty_concurrent_requests_for_codes_five_succeed(hub: Hub, owner: Connection) -> None:
    bot = await add_account(hub)

    results = await asyncio.gather(*(create_code(hub, bot.account) for _ in range(20)), return_exceptions=True)

    assert sum(isinstance(result, RateLimited) for result in results) == 15
    assert await owner.fetchval("select count(*) from public.pairing_codes") == 5
