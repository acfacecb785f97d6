"""Concurrent replies: one statement claims their callbacks, another settles them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from pabal.core.errors import (
    AccountDisabled,
    CallbackExpired,
    CallbackFailed,
    Invalid,
    MessageNotFound,
    RateLimited,
    RequestError,
    SessionNotPaired,
    Unauthenticated,
)
from pabal.core.ids import new_id
from pabal.db import pool
from pabal.db.pool import ConnectOptions, Database, register_json_codecs
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.outside.kakao import KakaoAccepted, KakaoRefused
from pabal.relay.reply import callback
from pabal.relay.reply.callback import (
    CallbackResult,
    CallbackSender,
    CallbackSettlement,
    ClaimedCallback,
    rescue_lost_callbacks,
    settle_callbacks,
)
from pabal.relay.reply.recorded import ReplyToAnswered
from pabal.relay.reply.reply import BotReply, claim_callbacks, encode_skill_response
from pabal.relay.reply.send import KeptReply
from pabal.relay.reply.stall import ExpiringCallback, claim_expiring_callbacks
from pabal.settings import Settings
from support.clusters import open_connection
from support.fake_kakao import FakeKakao, kakao_response
from support.receiver import respond_after
from support.relay_rows import Bot, Chat, digest, skill_response
from support.wait import wait_until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
EXPIRED = timedelta(seconds=-1)
SENT = KakaoAccepted(200, {"status": "SUCCESS"})


def build_reply(bot: Bot, message: UUID | None, text: str = "hello", **overrides: Any) -> BotReply:
    response = skill_response(text)
    return replace(
        BotReply(digest(bot.owner.token), message, None, response, encode_skill_response(response)), **overrides
    )


async def claim(bot: Bot, *bot_replies: BotReply) -> list[ClaimedCallback | ReplyToAnswered | Exception]:
    async with bot.hub.autocommit() as tx:
        return [*await claim_callbacks(tx, bot_replies)]


async def replies(bot: Bot) -> set[UUID]:
    rows = await bot.chat.db.fetch("select message_id from relay_replies where message_id is not null")
    return {row["message_id"] for row in rows}


async def test_each_reply_of_a_batch_gets_its_own_result(bot: Bot, chat: Chat, fake_kakao: FakeKakao) -> None:
    other = await Bot.of(bot.hub, chat, fake_kakao, "another")
    disabled_bot = await Bot.of(bot.hub, chat, fake_kakao, "off")
    limited_bot = await Bot.of(bot.hub, chat, fake_kakao, "poor")
    other_message, disabled_message = await other.insert_message("theirs"), await disabled_bot.insert_message("idle")
    await chat.db.execute("update accounts set disabled_at = pabal.now() where id = $1", disabled_bot.owner.id)
    await chat.db.execute("update accounts set rate_limit_per_minute = 1 where id = $1", limited_bot.owner.id)
    valid, late, cancelled = (
        await bot.insert_message("good"),
        await bot.insert_message("late", EXPIRED),
        await bot.insert_message("cancelled"),
    )
    await chat.db.execute("update inbound_messages set status = 'CANCELLED' where id = $1", cancelled)
    unpaired_session = digest(await chat.session(None))
    within_limit, over_limit = await limited_bot.insert_message("one"), await limited_bot.insert_message("two")
    cases: list[tuple[BotReply, type[ClaimedCallback | ReplyToAnswered | Exception]]] = [
        (build_reply(bot, valid), ClaimedCallback),
        (build_reply(bot, valid, "twice"), ReplyToAnswered),
        (build_reply(bot, late), CallbackExpired),
        (build_reply(bot, other_message), MessageNotFound),
        (build_reply(bot, cancelled), MessageNotFound),
        (build_reply(bot, uuid4()), MessageNotFound),
        (build_reply(bot, None), MessageNotFound),
        (build_reply(bot, valid, conversation_key="channel:another"), MessageNotFound),
        (build_reply(bot, valid, token_hash="0" * 64), Unauthenticated),
        (build_reply(bot, valid, token_hash=unpaired_session), SessionNotPaired),
        (build_reply(disabled_bot, disabled_message), AccountDisabled),
        (build_reply(limited_bot, within_limit), ClaimedCallback),
        (build_reply(limited_bot, over_limit), ReplyToAnswered),
        (build_reply(limited_bot, None), RateLimited),
        (build_reply(other, other_message, conversation_key="channel:another"), ClaimedCallback),
    ]

    results = await claim(bot, *(reply for reply, _ in cases))

    assert [*map(type, results)] == [kind for _, kind in cases]
    assert await replies(bot) == {valid, late, within_limit, over_limit, other_message}
    assert [result.url for result in results if isinstance(result, ClaimedCallback)] == [
        *map(fake_kakao.url, ("good", "one", "theirs"))
    ]


async def test_a_reply_that_postgres_cannot_store_fails_alone(bot: Bot) -> None:
    valid, invalid = await bot.insert_message("good"), await bot.insert_message("bad")
    invalid_reply = build_reply(bot, invalid, response_json=b'{"version": "2.0", "n": 1e999999}')

    results = await asyncio.gather(
        bot.send_reply(valid, "hello"),
        bot.hub.relay.replies.send(invalid_reply),
        return_exceptions=True,
    )

    assert isinstance(results[1], Invalid)
    assert bot.kakao.texts("good") == [["hello"]]
    assert await replies(bot) == {valid}


async def test_without_the_fence_nothing_is_settled(bot: Bot, chat: Chat, fake_kakao: FakeKakao) -> None:
    message = await bot.insert_message("first")
    [claimed] = await claim(bot, build_reply(bot, message))
    assert isinstance(claimed, ClaimedCallback)
    other = await Bot.of(bot.hub, chat, fake_kakao, "another")

    async with bot.hub.autocommit() as tx:
        for other_claim in (
            replace(claimed, fence=uuid4()),
            replace(claimed, account_id=other.owner.id),
            replace(claimed, id=uuid4()),
        ):
            assert await settle_callbacks(tx, [CallbackSettlement(other_claim, SENT)]) == [None]
        assert await chat.state(message) == "sending"
        [settled_at] = await settle_callbacks(tx, [CallbackSettlement(claimed, SENT)])
        repeated = await settle_callbacks(tx, [CallbackSettlement(claimed, KakaoRefused("too late"))])

    assert settled_at
    assert repeated == [None]
    assert await chat.state(message) == "sent"


async def test_a_rescued_callback_stays_unknown(bot: Bot, travel: Travel) -> None:
    message = await bot.insert_message("first")
    [claimed] = await claim(bot, build_reply(bot, message))
    assert isinstance(claimed, ClaimedCallback)
    await travel(timedelta(seconds=31))

    async with bot.hub.autocommit() as tx:
        assert await rescue_lost_callbacks(tx, 10) == 1
        assert await settle_callbacks(tx, [CallbackSettlement(claimed, SENT)]) == [None]

    assert await bot.chat.state(message) == "unknown"


@pytest.fixture
async def wait_for_lock(database_urls: DatabaseUrls) -> AsyncGenerator[Callable[[], Awaitable[None]]]:
    """Wait until a backend waits for a lock."""
    assert database_urls.direct
    async with open_connection(database_urls.direct) as conn:

        async def is_waiting() -> bool:
            return bool(await conn.fetchval("select count(*) from pg_locks where not granted"))

        yield lambda: wait_until(is_waiting)


async def test_a_concurrent_unpairing_leaves_nothing_to_reply_to(
    bot: Bot, wait_for_lock: Callable[[], Awaitable[None]]
) -> None:
    message = await bot.insert_message("first")
    async with bot.chat.db.transaction():
        await bot.chat.db.execute("update inbound_messages set status = 'CANCELLED'")
        replying = asyncio.create_task(bot.send_reply(message, "hello"))
        await wait_for_lock()

    with pytest.raises(MessageNotFound):
        await replying
    assert (bot.kakao.posts, await bot.chat.reply(message)) == (0, None)


async def test_a_recalled_callback_is_not_posted_to(bot: Bot, wait_for_lock: Callable[[], Awaitable[None]]) -> None:
    message = await bot.insert_message("first")
    async with bot.chat.db.transaction():
        await bot.chat.db.execute("update inbound_messages set callback_url = null, callback_expires_at = null")
        replying = asyncio.create_task(bot.send_reply(message, "hello"))
        await wait_for_lock()

    with pytest.raises(CallbackExpired):
        await replying
    assert (bot.kakao.posts, await bot.chat.state(message)) == (0, "late")


INSERT_REPLY = """
insert into relay_replies
  (message_id, account_id, conversation_key, spent_by, outcome, fence, spent_at, response, answered_at)
values ($1, $2, $3, $4::text, 'sending', gen_random_uuid(), pabal.now(),
        case when $4 = 'agent' then '{"version": "2.0"}'::jsonb end, case when $4 = 'agent' then pabal.now() end)
"""


async def test_of_two_concurrent_replies_the_second_is_kept(
    bot: Bot, wait_for_lock: Callable[[], Awaitable[None]]
) -> None:
    """The first reply's row is not in the snapshot of the second."""
    message = await bot.insert_message("first")
    async with bot.chat.db.transaction():
        await bot.chat.db.execute(INSERT_REPLY, message, bot.owner.id, bot.key, "agent")
        replying = asyncio.create_task(bot.send_block(message, "second"))
        await wait_for_lock()

    assert isinstance(await replying, KeptReply)
    assert (bot.kakao.posts, await bot.chat.state(message)) == (0, "sending")


async def test_a_reply_concurrent_with_the_stall_is_late(
    bot: Bot, wait_for_lock: Callable[[], Awaitable[None]]
) -> None:
    """The stall's row is not in the snapshot of the reply."""
    message = await bot.insert_message("first", timedelta(seconds=4))
    async with bot.chat.db.transaction():
        await bot.chat.db.execute(INSERT_REPLY, message, bot.owner.id, bot.key, "hub")
        replying = asyncio.create_task(bot.send_block(message, "second"))
        await wait_for_lock()

    with pytest.raises(CallbackExpired):
        await replying
    assert (bot.kakao.posts, await bot.chat.state(message)) == (0, "late")


async def test_the_stall_does_not_claim_a_callback_that_is_being_claimed(
    bot: Bot, wait_for_lock: Callable[[], Awaitable[None]]
) -> None:
    message = await bot.insert_message("first", timedelta(seconds=4))

    async def claim_expiring() -> list[ExpiringCallback]:
        async with bot.hub.autocommit() as tx:
            return await claim_expiring_callbacks(tx, timedelta(seconds=50))

    async with bot.chat.db.transaction():
        await bot.chat.db.execute(INSERT_REPLY, message, bot.owner.id, bot.key, "agent")
        claiming = asyncio.create_task(claim_expiring())
        await wait_for_lock()

    assert await claiming == []


@pytest.fixture
async def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement of the hub's pool, as the driver reports it."""
    queries: list[str] = []
    original = register_json_codecs

    def record(entry: Any) -> None:
        queries.append(entry.query)

    async def register_with_logger(connection: Any) -> None:
        await original(connection)
        connection.add_query_logger(record)

    monkeypatch.setattr(pool, "register_json_codecs", register_with_logger)
    return queries


async def test_one_reply_costs_two_statements_and_many_share_them(
    statements: list[str], settings: Settings, database_urls: DatabaseUrls, chat: Chat, fake_kakao: FakeKakao
) -> None:
    async with open_hub(settings, database_urls) as hub:
        bot = await Bot.of(hub, chat, fake_kakao)
        warm_up, first, *others = [await bot.insert_message(str(number)) for number in range(42)]
        await bot.send_reply(warm_up, "hello")  # a new connection looks up the array types once
        statements.clear()

        await bot.send_reply(first, "hello")
        for_one = [*statements]
        await asyncio.gather(*(bot.send_reply(message, "hello") for message in others))
        for_many = statements[len(for_one) :]

    assert ["spent" in for_one[0], "settled" in for_one[1]] == [True, True]
    assert len(for_one) == 2
    assert len([statement for statement in for_many if "pabal.take_limit" in statement]) == 1
    assert fake_kakao.posts == 42


async def test_without_a_database_kakaos_result_is_still_returned(
    hub: Hub, database_urls: DatabaseUrls, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def post(_url: str, _body: bytes) -> CallbackResult:
        return SENT

    monkeypatch.setattr(callback, "SENDING_TIMEOUT", timedelta())
    sender = CallbackSender(Database(ConnectOptions(database_urls.main)), post, hub.relay.metrics)  # never opened

    result, settled_at_ms = await sender.send(
        ClaimedCallback(new_id(), new_id(), new_id(), new_id(), "https://kakao"), b"{}"
    )

    assert result is SENT
    assert settled_at_ms > 0


async def test_a_reply_whose_caller_disconnects_is_settled(
    settings: Settings, database_urls: DatabaseUrls, chat: Chat, fake_kakao: FakeKakao
) -> None:
    respond = asyncio.Event()
    fake_kakao.responder = respond_after(respond, kakao_response("SUCCESS"))
    async with open_hub(settings, database_urls) as hub:
        bot = await Bot.of(hub, chat, fake_kakao)
        message = await bot.insert_message("first")
        replying = asyncio.create_task(bot.send_reply(message, "hello"))
        await fake_kakao.receiver.wait_for_requests(1)
        replying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await replying
        respond.set()  # closing the hub waits for replies in flight

    assert await chat.state(message) == "sent"


FORBIDDEN_URLS = [
    "https://127.0.0.1/cb",
    "https://169.254.169.254/latest/meta-data/",
    "https://[::ffff:127.0.0.1]/cb",
    "https://2130706433/cb",
    "https://0177.0.0.1/cb",
    "https://[fe80::1]/cb",
    "https://localhost/cb",
    "https://evil.example.org/cb",
    "http://bot-api.kakao.com/cb",
]


async def test_a_callback_url_outside_kakao_is_refused_with_a_reason(bot: Bot) -> None:
    urls = [*FORBIDDEN_URLS, bot.kakao.url("x").replace("127.0.0.1", "127.0.0.2")]
    for url in urls:
        message = await bot.chat.message(bot.owner, bot.key, url)
        with pytest.raises(CallbackFailed, match="the callback "):
            await bot.send_reply(message, "hello")

    rows = await bot.chat.db.fetch("select state, status_code, error from relay_replies")
    assert {(row["state"], row["status_code"]) for row in rows} == {("refused", None)}
    assert all(row["error"].startswith("the callback ") for row in rows)
    assert len(rows) == len(urls)
    assert bot.kakao.receiver.connections == 0


async def test_a_refusal_does_not_reveal_the_callback_url(bot: Bot) -> None:
    message = await bot.chat.message(bot.owner, bot.key, "https://evil.example.org/s3cret")

    with pytest.raises(RequestError) as error:
        await bot.send_reply(message, "hello")

    row = await bot.chat.reply(message)
    assert "s3cret" not in str(error.value) + str(row) + repr(build_reply(bot, message))


def test_the_repr_of_a_claimed_callback_hides_its_url() -> None:
    assert "s3cret" not in repr(
        ClaimedCallback(uuid4(), uuid4(), uuid4(), uuid4(), "https://s3cret", [{"a": "s3cret"}])
    )
