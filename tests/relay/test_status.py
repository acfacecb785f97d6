"""`/status` in the chat: the bot's name, whether it is online, and the counts of today."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

import pytest

from pabal.core.actor import HUB_ACTOR
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.core.ids import new_id
from pabal.hub import Hub
from pabal.relay.accounts import rename_account
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from relay.people import add_account, insert_message, new_session, pair_user, send_command
from support.clusters import Connection

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
UNTIL_TOMORROW_NOON = "select date_trunc('day', pabal.now(), 'Asia/Seoul') + interval '36 hours' - pabal.now()"


async def test_status_counts_the_messages_and_replies_of_today(hub: Hub, owner: Connection, travel: Travel) -> None:
    bot = await add_account(hub)
    await pair_user(hub, "min", bot.account)
    await pair_user(hub, "jun", bot.account)
    await answer_message(owner, await insert_message(owner, bot.account, "min"))
    await travel(await owner.fetchval(UNTIL_TOMORROW_NOON))
    for user in ("min", "min", "jun"):
        await answer_message(owner, await insert_message(owner, bot.account, user))
    await insert_message(owner, bot.account, "min")

    text = await send_command(hub, "min", "/status")

    assert "오늘 보낸 메시지 3개, 받은 답변 2개, 답변을 기다리는 메시지 1개" in text


async def answer_message(owner: Connection, message: UUID) -> None:
    """Record a reply that Kakao accepted."""
    await owner.execute(
        """
        with answered as (
          update public.inbound_messages set status = 'ACKED', reason = 'answered' where id = $1
          returning id, account_id, conversation_key
        )
        insert into public.relay_replies
          (message_id, account_id, conversation_key, spent_by, outcome, fence, spent_at, settled_at, response,
           answered_at)
        select id, account_id, conversation_key, 'agent', 'sent', gen_random_uuid(), pabal.now(), pabal.now(), '{}',
               pabal.now()
        from answered
        """,
        message,
    )


async def test_status_tells_whether_the_bot_is_online(hub: Hub, owner: Connection, travel: Travel) -> None:
    bot = await add_account(hub, "파발봇")
    await pair_user(hub, "min", bot.account)
    stream = "insert into public.relay_streams (id, account_id, token_id, alive_until) values ($1, $2, $2, $3)"

    async def read_status() -> str:
        return (await send_command(hub, "min", "/status")).partition("\n")[0]

    offline = await read_status()
    await owner.execute("select pabal.take_limit('relay requests:' || $1::uuid, '100 ms', '1 minute', 1)", bot.account)
    polling = await read_status()
    await travel(timedelta(minutes=2))
    silent = await read_status()
    now = await owner.fetchval("select pabal.now()")
    await owner.execute(stream, new_id(), bot.account, now + timedelta(minutes=1))
    streaming = await read_status()
    await owner.execute("update public.relay_streams set parked_at = pabal.now()")

    assert polling == streaming == "파발봇: 지금 온라인이에요."
    assert offline == silent == await read_status()
    assert offline.startswith("파발봇: 지금은 오프라인이에요.")


async def test_a_bot_of_a_session_has_no_name_until_an_operator_names_it(hub: Hub, owner: Connection) -> None:
    session = await new_session(hub)
    await send_command(hub, "min", f"/pair {session.code}")
    account: UUID = await owner.fetchval("select account_id from public.relay_sessions where id = $1", session.id)

    assert (await send_command(hub, "min", "/status")).startswith(KOREAN_TEXTS.unnamed_bot)
    async with hub.transaction() as tx:
        await rename_account(tx, account, "파발봇", HUB_ACTOR)
    assert (await send_command(hub, "min", "/status")).startswith("파발봇:")


async def test_the_names_of_accounts_are_unique(hub: Hub) -> None:
    bot = await add_account(hub, "파발봇")
    other = await add_account(hub, "다른 봇")

    for name, error in (("파발봇", Conflict), (f"session:{bot.account}", Invalid), ("두\n줄", Invalid)):
        with pytest.raises(error):
            async with hub.transaction() as tx:
                await rename_account(tx, other.account, name, HUB_ACTOR)
    async with hub.transaction() as tx:
        assert (await rename_account(tx, bot.account, "파발봇", HUB_ACTOR)).openclaw_user_id == "파발봇"
        with pytest.raises(NotFound):
            await rename_account(tx, new_id(), "새 봇", HUB_ACTOR)
