"""Pairing: one code connects one user; a new pairing replaces the old one; blocked users cannot pair."""

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from pabal.audit.pseudonym import conversation_pseudonym
from pabal.core.errors import Conflict
from pabal.hub import Hub
from pabal.relay.accounts import disable_account, find_account
from pabal.relay.auth import authenticate_relay_token
from pabal.relay.conversations import approve_pairing, block_conversation, deny_pairing, expire_pending_pairings
from pabal.relay.event_outbox import publish_queued_events
from pabal.relay.pairing.pair import CHANNEL_WRONG_CODE_LIMIT
from pabal.relay.pairing.sessions import find_relay_session_status
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from pabal.settings import Settings
from relay.people import (
    TESTER,
    add_account,
    audit_actions_of,
    control_events,
    conversation_state_of,
    create_code,
    insert_message,
    key_of_user,
    load_conversation,
    new_session,
    pair_user,
    send_command,
)
from support.clusters import Connection

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
MINUTE = timedelta(minutes=1)
PAIRED = KOREAN_TEXTS.paired.format(prefix="/")


def with_approval(hub: Hub) -> Settings:
    return hub.settings.model_copy(update={"pairing_approval": True})


async def message_state(owner: Connection, message: object) -> tuple[Any, ...]:
    row = await owner.fetchrow("select status, reason, lease from public.inbound_messages where id = $1", message)
    assert row
    return tuple(row)


async def test_a_code_connects_its_user_once(hub: Hub, owner: Connection) -> None:
    bot = await add_account(hub)
    code = await create_code(hub, bot.account)

    assert await send_command(hub, "min", f"/pair {code.replace('-', '').lower()}") == PAIRED
    assert await conversation_state_of(owner, "min") == ("PAIRED", bot.account)
    assert await send_command(hub, "jun", f"/pair {code}") == KOREAN_TEXTS.wrong_code
    assert await conversation_state_of(owner, "jun") == ("UNPAIRED", None)
    assert await control_events(owner) == [("paired", bot.account, None)]
    assert await audit_actions_of(owner, conversation_pseudonym(key_of_user("min"))) == ["pairing.verified"]
    async with hub.autocommit() as tx:
        assert await publish_queued_events(tx, 10) == 1
    [event] = await owner.fetch(
        "select payload::text from public.event_queue where event_type = 'relay.pairing.verified'"
    )
    assert str(bot.account) in event["payload"]
    assert code not in event["payload"]


async def test_a_sessions_code_creates_its_account(hub: Hub, owner: Connection) -> None:
    session = await new_session(hub)

    assert await send_command(hub, "min", f"/pair {session.code}") == PAIRED
    async with hub.autocommit() as tx:
        principal = await authenticate_relay_token(tx, session.token)
        status = await find_relay_session_status(tx, session.token)
        assert principal.account_id
        account = await find_account(tx, principal.account_id)

    assert (principal.session_id, principal.token_id, principal.paired) == (session.id, session.id, True)
    assert (account.openclaw_user_id, account.has_token) == (f"session:{session.id}", False)
    assert (status.state, status.user_key, status.account_id) == ("paired", "min", account.id)
    [event] = await owner.fetch("select * from public.relay_control_events")
    assert (event["kind"], event["account_id"], event["session_id"]) == ("paired", account.id, session.id)
    data = await owner.fetchval("select data from public.relay_control_events")
    assert {"kakaoUserId", "conversationKey", "pairedAt", "accountId"} == json.loads(data).keys()


async def test_a_sessions_account_has_the_rate_limit_of_the_settings(hub: Hub, owner: Connection) -> None:
    read_limit = "select rate_limit_per_minute from public.accounts where openclaw_user_id = $1"
    first, second = await new_session(hub), await new_session(hub)

    await send_command(hub, "min", f"/pair {first.code}")
    settings = hub.settings.model_copy(update={"account_rate_limit": 77})
    await send_command(hub, "jun", f"/pair {second.code}", settings=settings)

    assert await owner.fetchval(read_limit, f"session:{first.id}") == 600
    assert await owner.fetchval(read_limit, f"session:{second.id}") == 77


async def test_later_codes_join_the_sessions_account(hub: Hub, owner: Connection) -> None:
    session = await new_session(hub)
    await send_command(hub, "min", f"/pair {session.code}")
    _, account = await conversation_state_of(owner, "min")
    assert account

    await pair_user(hub, "jun", account)

    assert await conversation_state_of(owner, "jun") == ("PAIRED", account)
    assert await owner.fetchval("select count(*) from public.accounts") == 1
    assert await control_events(owner) == [("paired", account, session.id), ("paired", account, None)]


@pytest.mark.parametrize("kind", ["generated", "session"])
async def test_an_expired_code_is_wrong(hub: Hub, owner: Connection, travel: Travel, kind: str) -> None:
    bot = await add_account(hub)
    code = await create_code(hub, bot.account) if kind == "generated" else (await new_session(hub)).code

    await travel(timedelta(minutes=10 if kind == "generated" else 5))

    assert await send_command(hub, "min", f"/pair {code}") == KOREAN_TEXTS.wrong_code
    assert await conversation_state_of(owner, "min") == ("UNPAIRED", None)


@pytest.mark.parametrize("kind", ["generated", "session"])
async def test_a_user_who_repeats_the_code_gets_the_same_response(hub: Hub, owner: Connection, kind: str) -> None:
    bot = await add_account(hub)
    code = await create_code(hub, bot.account) if kind == "generated" else (await new_session(hub)).code
    first = await send_command(hub, "min", f"/pair {code}")
    before = await load_conversation(owner, "min")

    for _ in range(7):  # none counts as a wrong code
        assert await send_command(hub, "min", f"/pair {code}") == first
    assert await load_conversation(owner, "min") == before
    assert len(await control_events(owner)) == 1

    await send_command(hub, "min", "/unpair")
    assert await send_command(hub, "min", f"/pair {code}") == KOREAN_TEXTS.wrong_code


async def test_a_repeated_webhook_gets_the_first_response(hub: Hub, owner: Connection) -> None:
    bot, other = await add_account(hub), await add_account(hub, "other")
    code = await create_code(hub, bot.account)

    first = await send_command(hub, "min", f"/pair {code}", event="1")
    await pair_user(hub, "min", other.account)

    assert await send_command(hub, "min", f"/pair {code}", event="1") == first
    assert await conversation_state_of(owner, "min") == ("PAIRED", other.account)
    link = await send_command(hub, "min", "/code", event="2")
    assert await send_command(hub, "min", "/code", event="2") == link
    assert await send_command(hub, "min", "/code", event="3") != link


async def test_another_code_replaces_the_pairing(hub: Hub, owner: Connection) -> None:
    session, other = await new_session(hub), await add_account(hub, "other")
    await send_command(hub, "min", f"/pair {session.code}")
    _, before = await conversation_state_of(owner, "min")
    assert before
    message = await insert_message(owner, before, "min")

    text = await send_command(hub, "min", f"/pair {await create_code(hub, other.account)}")

    assert text == KOREAN_TEXTS.replaced
    assert await conversation_state_of(owner, "min") == ("PAIRED", other.account)
    assert await message_state(owner, message) == ("CANCELLED", "replaced", None)
    assert (await control_events(owner))[1:] == [("unpaired", before, None), ("paired", other.account, None)]
    reason = "select data::text from public.relay_control_events where kind = 'unpaired'"
    assert "replaced" in await owner.fetchval(reason)
    async with hub.autocommit() as tx:
        assert (await find_relay_session_status(tx, session.token)).state == "disconnected"
        assert (await authenticate_relay_token(tx, session.token)).account_id == before  # the token stays valid


async def test_another_code_of_the_same_account_changes_nothing(hub: Hub, owner: Connection) -> None:
    bot = await add_account(hub)
    await pair_user(hub, "min", bot.account)
    before = await load_conversation(owner, "min")
    message = await insert_message(owner, bot.account, "min")

    assert await send_command(hub, "min", f"/pair {await create_code(hub, bot.account)}") == PAIRED

    assert await load_conversation(owner, "min") == before
    assert await message_state(owner, message) == ("QUEUED", None, None)


async def test_unpairing_cancels_open_messages_and_sends_a_control_event(hub: Hub, owner: Connection) -> None:
    bot = await add_account(hub)
    await pair_user(hub, "min", bot.account)
    await pair_user(hub, "jun", bot.account)
    waiting, delivered, ended, other_users = [
        await insert_message(owner, bot.account, user) for user in ("min", "min", "min", "jun")
    ]
    await owner.execute("update public.inbound_messages set status = 'DELIVERED' where id = $1", delivered)
    await owner.execute("update public.inbound_messages set status = 'ACKED' where id = $1", ended)

    assert await send_command(hub, "min", "/unpair") == KOREAN_TEXTS.unpaired

    assert await conversation_state_of(owner, "min") == ("UNPAIRED", None)
    assert (
        await message_state(owner, waiting) == await message_state(owner, delivered) == ("CANCELLED", "unpaired", None)
    )
    assert (await message_state(owner, ended))[0] == "ACKED"
    assert (await message_state(owner, other_users))[0] == "QUEUED"
    assert (await control_events(owner))[-1] == ("unpaired", bot.account, None)
    assert await send_command(hub, "min", "/unpair") == KOREAN_TEXTS.not_paired


async def test_a_session_disconnects_with_its_last_user_and_pairs_with_the_next(hub: Hub, owner: Connection) -> None:
    session = await new_session(hub)
    await send_command(hub, "min", f"/pair {session.code}")
    _, account = await conversation_state_of(owner, "min")
    assert account
    await pair_user(hub, "jun", account)
    states: list[str] = []

    async def record_state() -> None:
        async with hub.autocommit() as tx:
            states.append((await find_relay_session_status(tx, session.token)).state)

    for user in ("min", "jun"):
        await send_command(hub, user, "/unpair")
        await record_state()
    await pair_user(hub, "min", account)
    await record_state()

    assert states == ["paired", "disconnected", "paired"]


async def test_a_blocked_user_cannot_pair(hub: Hub, owner: Connection) -> None:
    bot, other = await add_account(hub), await add_account(hub, "other")
    await pair_user(hub, "min", bot.account)
    message = await insert_message(owner, bot.account, "min")
    async with hub.transaction() as tx:
        await block_conversation(tx, key_of_user("min"), TESTER, bot.account)
    code = await create_code(hub, other.account)

    for text in (f"/pair {code}", "/unpair", "/status", "/help", "/code"):
        assert await send_command(hub, "min", text) == KOREAN_TEXTS.blocked

    assert await conversation_state_of(owner, "min") == ("BLOCKED", bot.account)
    assert await message_state(owner, message) == ("CANCELLED", "blocked", None)
    assert await owner.fetchval("select used_at is null from public.pairing_codes where code = $1", code)
    assert await send_command(hub, "jun", f"/pair {code}") == PAIRED


async def test_five_wrong_codes_lock_a_conversation_for_half_an_hour(
    hub: Hub, owner: Connection, travel: Travel
) -> None:
    bot = await add_account(hub)
    code = await create_code(hub, bot.account, lifetime=30 * MINUTE)
    wrong_codes = ["ABCD-2345", "hello", "ABCD-234O", code[:-1], "2222-2222"]

    assert [await send_command(hub, "min", f"/pair {wrong_code}") for wrong_code in wrong_codes] == [
        KOREAN_TEXTS.wrong_code
    ] * 5
    assert await send_command(hub, "min", f"/pair {code}") == KOREAN_TEXTS.locked.format(minutes=30)
    assert await send_command(hub, "min", "/status") == KOREAN_TEXTS.hint.format(
        prefix="/"
    )  # the lockout affects codes only

    await travel(29 * MINUTE)
    assert await send_command(hub, "min", f"/pair {code}") == KOREAN_TEXTS.locked.format(minutes=1)
    await travel(MINUTE)
    code = await create_code(hub, bot.account)
    assert await send_command(hub, "min", f"/pair {code}") == PAIRED
    assert await conversation_state_of(owner, "min") == ("PAIRED", bot.account)


async def test_a_right_code_does_not_reset_the_count_of_wrong_ones(hub: Hub) -> None:
    bot = await add_account(hub)
    for _ in range(4):
        await send_command(hub, "min", "/pair wrong")
    await pair_user(hub, "min", bot.account)
    await send_command(hub, "min", "/pair wrong")

    assert await send_command(hub, "min", "/pair wrong") == KOREAN_TEXTS.locked.format(minutes=30)


async def test_old_wrong_codes_do_not_count(hub: Hub, owner: Connection, travel: Travel) -> None:
    for _ in range(3):
        for _ in range(4):
            assert await send_command(hub, "min", "/pair wrong") == KOREAN_TEXTS.wrong_code
        await travel(10 * MINUTE)


@pytest.mark.usefixtures("stopped_clock")
async def test_guessing_across_a_channel_raises_an_alert(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(CHANNEL_WRONG_CODE_LIMIT.count):
        await send_command(hub, f"user{number}", "/pair wrong")
    assert "pairing codes guessed" not in capsys.readouterr().out

    for number in range(3):
        await send_command(hub, f"another{number}", "/pair wrong")

    assert capsys.readouterr().out.count("pairing codes guessed") == 1
    assert "relay_pairing_alarm_total 3.0" in hub.metrics.render().decode()


async def test_with_approval_a_pairing_waits_for_its_owner(hub: Hub, owner: Connection, travel: Travel) -> None:
    session = await new_session(hub)

    assert (
        await send_command(hub, "min", f"/pair {session.code}", settings=with_approval(hub))
        == KOREAN_TEXTS.approval_requested
    )
    state, account = await conversation_state_of(owner, "min")
    assert (state, await control_events(owner)) == ("PENDING", [])
    assert await send_command(hub, "min", "/status") == KOREAN_TEXTS.pending
    async with hub.autocommit() as tx:
        assert (await find_relay_session_status(tx, session.token)).state == "pending_pairing"
        assert not (await authenticate_relay_token(tx, session.token)).paired
    async with hub.transaction() as tx:
        await approve_pairing(tx, key_of_user("min"), TESTER, hub.relay.metrics, account)

    assert await conversation_state_of(owner, "min") == ("PAIRED", account)
    assert await control_events(owner) == [("paired", account, session.id)]
    assert await audit_actions_of(owner, conversation_pseudonym(key_of_user("min"))) == ["pairing.approved"]
    async with hub.autocommit() as tx:
        assert (await find_relay_session_status(tx, session.token)).state == "paired"


async def test_an_unapproved_pairing_expires(hub: Hub, owner: Connection, travel: Travel) -> None:
    bot = await add_account(hub)
    await send_command(hub, "min", f"/pair {await create_code(hub, bot.account)}", settings=with_approval(hub))

    async def expire() -> int:
        async with hub.transaction() as tx:
            return await expire_pending_pairings(tx, 5000)

    await travel(29 * MINUTE)
    assert await expire() == 0
    await travel(MINUTE)
    async with hub.transaction() as tx:
        with pytest.raises(Conflict):  # before the chore has expired it
            await approve_pairing(tx, key_of_user("min"), TESTER, hub.relay.metrics)
    assert await expire() == 1
    assert await conversation_state_of(owner, "min") == ("UNPAIRED", None)


async def test_a_denied_pairing_ends(hub: Hub, owner: Connection) -> None:
    bot = await add_account(hub)
    code = await create_code(hub, bot.account)
    await send_command(hub, "min", f"/pair {code}", settings=with_approval(hub))
    async with hub.transaction() as tx:
        await deny_pairing(tx, key_of_user("min"), TESTER, bot.account)

    assert await conversation_state_of(owner, "min") == ("UNPAIRED", None)
    assert await send_command(hub, "min", f"/pair {code}") == KOREAN_TEXTS.wrong_code


async def test_status_shows_the_connection(hub: Hub, owner: Connection) -> None:
    bot = await add_account(hub)
    await pair_user(hub, "min", bot.account)
    paired_at = (await load_conversation(owner, "min"))["paired_at"]
    paired_at_text = f"{paired_at + timedelta(hours=9):%Y-%m-%d %H:%M}"

    values = {"bot": "owner", "since": paired_at_text}
    assert await send_command(hub, "min", "/status") == KOREAN_TEXTS.status_offline.format(
        **values, messages=0, replies=0, waiting=0
    )
    await insert_message(owner, bot.account, "min")
    assert await send_command(hub, "min", "/status") == KOREAN_TEXTS.status_offline.format(
        **values, messages=1, replies=0, waiting=1
    )
    async with hub.transaction() as tx:
        await disable_account(tx, bot.account, TESTER)
    assert await send_command(hub, "min", "/status") == KOREAN_TEXTS.disabled


async def test_a_page_code_is_stored_as_a_hash_and_replaces_the_previous_one(
    hub: Hub, owner: Connection, travel: Travel
) -> None:
    await send_command(hub, "min", "/code")
    text = await send_command(hub, "min", "/code")
    code = text.partition("code=")[2]

    assert text.startswith(KOREAN_TEXTS.page_link.partition("\n")[0])
    assert f"{hub.settings.issuer}/chat?code={code}" in text
    [row] = await owner.fetch(
        "select *, encode(sha256($1), 'hex') as hash from public.conversation_codes", code.encode()
    )
    assert (row["conversation_key"], row["code_hash"]) == (key_of_user("min"), row["hash"])
    assert row["expires_at"] - row["created_at"] == 30 * MINUTE
