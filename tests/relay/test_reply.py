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
    AlreadyReplied,
    CallbackExpired,
    CallbackFailed,
    Invalid,
    MessageNotFound,
    RateLimited,
    RequestError,
    SessionNotPaired,
    Unauthenticated,
)
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
from pabal.relay.reply.reply import BotReply, claim_callbacks, encode_skill_response
from pabal.relay.reply.stall import ExpiringCallback, claim_expiring_callbacks
from pabal.settings import Settings
from support.clusters import connected
from support.fake_kakao import Kakao, kakao_says
from support.receiver import slow
from support.relay_rows import Bot, Chat, digest, skill_response
from support.wait import until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
EXPIRED = timedelta(seconds=-1)
SENT = KakaoAccepted(200, {"status": "SUCCESS"})


def answer(bot: Bot, message: UUID | None, text: str = "hello", **more: Any) -> BotReply:
    response = skill_response(text)
    return replace(BotReply(digest(bot.owner.token), message, None, response, encode_skill_response(response)), **more)


async def claim(bot: Bot, *answers: BotReply) -> list[ClaimedCallback | Exception]:
    async with bot.hub.autocommit() as tx:
        return [*await claim_callbacks(tx, answers)]


async def replies(bot: Bot) -> set[UUID]:
    return {row["message_id"] for row in await bot.chat.db.fetch("select message_id from relay_replies")}


async def test_each_reply_of_a_batch_gets_its_own_verdict(bot: Bot, chat: Chat, there: Kakao) -> None:
    other = await Bot.of(bot.hub, chat, there, "another")
    off = await Bot.of(bot.hub, chat, there, "off")
    poor = await Bot.of(bot.hub, chat, there, "poor")
    theirs, idle = await other.hears("theirs"), await off.hears("idle")
    await chat.db.execute("update accounts set disabled_at = pabal.now() where id = $1", off.owner.id)
    await chat.db.execute("update accounts set rate_limit_per_minute = 1 where id = $1", poor.owner.id)
    good, late, cancelled = await bot.hears("good"), await bot.hears("late", EXPIRED), await bot.hears("cancelled")
    await chat.db.execute("update inbound_messages set status = 'CANCELLED' where id = $1", cancelled)
    pending = digest(await chat.session(None))
    one, two = await poor.hears("one"), await poor.hears("two")
    statements: list[tuple[BotReply, type[ClaimedCallback | Exception]]] = [
        (answer(bot, good), ClaimedCallback),
        (answer(bot, good, "twice"), AlreadyReplied),
        (answer(bot, late), CallbackExpired),
        (answer(bot, theirs), MessageNotFound),
        (answer(bot, cancelled), MessageNotFound),
        (answer(bot, uuid4()), MessageNotFound),
        (answer(bot, None), MessageNotFound),
        (answer(bot, good, conversation_key="channel:another"), MessageNotFound),
        (answer(bot, good, token_hash="0" * 64), Unauthenticated),
        (answer(bot, good, token_hash=pending), SessionNotPaired),
        (answer(off, idle), AccountDisabled),
        (answer(poor, one), ClaimedCallback),
        (answer(poor, two), RateLimited),
        (answer(other, theirs, conversation_key="channel:another"), ClaimedCallback),
    ]

    results = await claim(bot, *(reply for reply, _ in statements))

    assert [*map(type, results)] == [kind for _, kind in statements]
    assert await replies(bot) == {good, late, one, theirs}
    assert [result.url for result in results if isinstance(result, ClaimedCallback)] == [
        *map(there.url, ("good", "one", "theirs"))
    ]


async def test_a_reply_that_postgres_cannot_store_fails_alone(bot: Bot) -> None:
    good, bad = await bot.hears("good"), await bot.hears("bad")
    overflowing = answer(bot, bad, response_json=b'{"version": "2.0", "n": 1e999999}')

    results = await asyncio.gather(
        bot.answers(good, "hello"),
        bot.hub.relay.replies.send(overflowing),
        return_exceptions=True,
    )

    assert isinstance(results[1], Invalid)
    assert bot.there.texts("good") == [["hello"]]
    assert await replies(bot) == {good}


async def test_without_the_fence_nothing_is_settled(bot: Bot, chat: Chat, there: Kakao) -> None:
    message = await bot.hears("first")
    [mine] = await claim(bot, answer(bot, message))
    assert isinstance(mine, ClaimedCallback)
    stranger = await Bot.of(bot.hub, chat, there, "another")

    async with bot.hub.autocommit() as tx:
        for wrong in (
            replace(mine, fence=uuid4()),
            replace(mine, account_id=stranger.owner.id),
            replace(mine, id=uuid4()),
        ):
            assert await settle_callbacks(tx, [CallbackSettlement(wrong, SENT)]) == [None]
        assert await chat.state(message) == "sending"
        [at] = await settle_callbacks(tx, [CallbackSettlement(mine, SENT)])
        again = await settle_callbacks(tx, [CallbackSettlement(mine, KakaoRefused("too late"))])

    assert at
    assert again == [None]
    assert await chat.state(message) == "sent"


async def test_a_rescued_callback_stays_unknown(bot: Bot, travel: Travel) -> None:
    message = await bot.hears("first")
    [mine] = await claim(bot, answer(bot, message))
    assert isinstance(mine, ClaimedCallback)
    await travel(timedelta(seconds=31))

    async with bot.hub.autocommit() as tx:
        assert await rescue_lost_callbacks(tx, 10) == 1
        assert await settle_callbacks(tx, [CallbackSettlement(mine, SENT)]) == [None]

    assert await bot.chat.state(message) == "unknown"


@pytest.fixture
async def wait_for_lock(database_urls: DatabaseUrls) -> AsyncGenerator[Callable[[], Awaitable[None]]]:
    """Wait until a backend waits for a lock."""
    assert database_urls.direct
    async with connected(database_urls.direct) as watcher:

        async def somebody_waits() -> bool:
            return bool(await watcher.fetchval("select count(*) from pg_locks where not granted"))

        yield lambda: until(somebody_waits)


async def test_a_concurrent_unpairing_leaves_nothing_to_reply_to(
    bot: Bot, wait_for_lock: Callable[[], Awaitable[None]]
) -> None:
    message = await bot.hears("first")
    async with bot.chat.db.transaction():
        await bot.chat.db.execute("update inbound_messages set status = 'CANCELLED'")
        answering = asyncio.create_task(bot.answers(message, "hello"))
        await wait_for_lock()

    with pytest.raises(MessageNotFound):
        await answering
    assert (bot.there.posts, await bot.chat.reply(message)) == (0, None)


async def test_a_recalled_callback_is_not_posted_to(bot: Bot, wait_for_lock: Callable[[], Awaitable[None]]) -> None:
    message = await bot.hears("first")
    async with bot.chat.db.transaction():
        await bot.chat.db.execute("update inbound_messages set callback_url = null, callback_expires_at = null")
        answering = asyncio.create_task(bot.answers(message, "hello"))
        await wait_for_lock()

    with pytest.raises(CallbackExpired):
        await answering
    assert (bot.there.posts, await bot.chat.state(message)) == (0, "late")


INSERT_REPLY = """
insert into relay_replies
  (message_id, account_id, conversation_key, spent_by, outcome, fence, spent_at, response, answered_at)
values ($1, $2, $3, $4::text, 'sending', gen_random_uuid(), pabal.now(),
        case when $4 = 'agent' then '{"version": "2.0"}'::jsonb end, case when $4 = 'agent' then pabal.now() end)
"""


@pytest.mark.parametrize(
    ("spender", "error_type", "state"), [("agent", AlreadyReplied, "sending"), ("hub", CallbackExpired, "late")]
)
async def test_of_two_concurrent_replies_the_second_is_refused(
    bot: Bot, wait_for_lock: Callable[[], Awaitable[None]], spender: str, error_type: type[RequestError], state: str
) -> None:
    """The first reply's row is not in the snapshot of the second."""
    message = await bot.hears("first", timedelta(seconds=4))
    async with bot.chat.db.transaction():
        await bot.chat.db.execute(INSERT_REPLY, message, bot.owner.id, bot.key, spender)
        answering = asyncio.create_task(bot.answers(message, "second"))
        await wait_for_lock()

    with pytest.raises(error_type):
        await answering
    assert (bot.there.posts, await bot.chat.state(message)) == (0, state)


async def test_the_stall_does_not_claim_a_callback_that_is_being_claimed(
    bot: Bot, wait_for_lock: Callable[[], Awaitable[None]]
) -> None:
    message = await bot.hears("first", timedelta(seconds=4))

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
    speak = register_json_codecs

    def hear(logged: Any) -> None:
        queries.append(logged.query)

    async def listen(connection: Any) -> None:
        await speak(connection)
        connection.add_query_logger(hear)

    monkeypatch.setattr(pool, "register_json_codecs", listen)
    return queries


async def test_one_reply_costs_two_statements_and_many_share_them(
    statements: list[str], settings: Settings, database_urls: DatabaseUrls, chat: Chat, there: Kakao
) -> None:
    async with open_hub(settings, database_urls) as hub:
        bot = await Bot.of(hub, chat, there)
        warm_up, first, *others = [await bot.hears(str(n)) for n in range(42)]
        await bot.answers(warm_up, "hello")  # a new connection looks up the array types once
        statements.clear()

        await bot.answers(first, "hello")
        alone = [*statements]
        await asyncio.gather(*(bot.answers(message, "hello") for message in others))
        together = statements[len(alone) :]

    assert ["spent" in alone[0], "settled" in alone[1]] == [True, True]
    assert len(alone) == 2
    assert len([statement for statement in together if "pabal.take_limit" in statement]) == 1
    assert there.posts == 42


async def test_without_a_database_kakaos_result_is_still_returned(
    hub: Hub, database_urls: DatabaseUrls, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def post(_url: str, _body: bytes) -> CallbackResult:
        return SENT

    monkeypatch.setattr(callback, "SETTLE_RETRY_DELAY", 0)
    away = CallbackSender(Database(ConnectOptions(database_urls.main)), post, hub.relay.metrics)  # never opened

    posted, at = await away.send(ClaimedCallback(uuid4(), uuid4(), uuid4(), uuid4(), "https://kakao"), b"{}")

    assert posted is SENT
    assert at > 0


async def test_a_reply_whose_caller_disconnects_is_settled(
    settings: Settings, database_urls: DatabaseUrls, chat: Chat, there: Kakao
) -> None:
    kakao_thinks = asyncio.Event()
    there.mood = slow(kakao_thinks, kakao_says("SUCCESS"))
    async with open_hub(settings, database_urls) as hub:
        bot = await Bot.of(hub, chat, there)
        message = await bot.hears("first")
        answering = asyncio.create_task(bot.answers(message, "hello"))
        await there.there.received(1)
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        kakao_thinks.set()  # closing the hub waits for replies in flight

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
    urls = [*FORBIDDEN_URLS, bot.there.url("x").replace("127.0.0.1", "127.0.0.2")]
    for url in urls:
        message = await bot.chat.message(bot.owner, bot.key, url)
        with pytest.raises(CallbackFailed, match="the callback "):
            await bot.answers(message, "hello")

    rows = await bot.chat.db.fetch("select state, status_code, error from relay_replies")
    assert {(row["state"], row["status_code"]) for row in rows} == {("refused", None)}
    assert all(row["error"].startswith("the callback ") for row in rows)
    assert len(rows) == len(urls)
    assert bot.there.there.connections == 0


async def test_a_refusal_does_not_reveal_the_callback_url(bot: Bot) -> None:
    message = await bot.chat.message(bot.owner, bot.key, "https://evil.example.org/s3cret")

    with pytest.raises(RequestError) as refused:
        await bot.answers(message, "hello")

    row = await bot.chat.reply(message)
    assert "s3cret" not in str(refused.value) + str(row) + repr(answer(bot, message))


def test_the_repr_of_a_claimed_callback_hides_its_url() -> None:
    assert "s3cret" not in repr(
        ClaimedCallback(uuid4(), uuid4(), uuid4(), uuid4(), "https://s3cret", [{"a": "s3cret"}])
    )
