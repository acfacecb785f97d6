"""Discord's responses become outcomes, and its rate limits apply to every worker."""

import asyncio
import json
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from pabal.hub import DatabaseUrls, open_hub
from pabal.notifications.decision.decide import NotificationChannel
from pabal.outside.discord import URGENT_COLOR, DiscordApi, DiscordResult
from pabal.outside.http import HttpClient
from pabal.outside.ssrf import AllowedOrigins
from pabal.queue.outcome import DONE, Dead, Retry, Snooze
from support.dispatch import AUDIT, NotificationHub, database_time, has_attempts
from support.fake_discord import (
    FAILURE,
    LOST_RESPONSE,
    NO_RESPONSE,
    TOKEN,
    FakeDiscord,
    ScriptedReply,
    error_reply,
    json_reply,
)
from support.receiver import respond_with
from support.wait import wait_until

pytestmark = pytest.mark.anyio

SECOND = timedelta(seconds=1)


@pytest.fixture
async def bot(discord: FakeDiscord) -> AsyncGenerator[DiscordApi]:
    async with HttpClient(AllowedOrigins.of([discord.url])) as http_client:
        yield DiscordApi(http_client, TOKEN, discord.url, time_limit=timedelta(milliseconds=500))


async def send(bot: DiscordApi, channel: str = AUDIT, nonce: str = "n" * 25) -> DiscordResult:
    return await bot.send_message(channel, title="Hello", body="there", nonce=nonce)


class TestDiscordApi:
    async def test_a_message_disables_mentions_and_enforces_its_nonce(
        self, bot: DiscordApi, discord: FakeDiscord
    ) -> None:
        result = await bot.send_message(AUDIT, title="Hello", body="there", nonce="n1", urgent=True)

        [message] = discord.messages
        assert result == DiscordResult(DONE, id=message.id)
        assert message.body == {
            "embeds": [{"title": "Hello", "description": "there", "color": URGENT_COLOR}],
            "nonce": "n1",
            "enforce_nonce": True,
            "allowed_mentions": {"parse": []},
        }
        assert discord.requests[0].headers["user-agent"].startswith("DiscordBot (")

    async def test_the_same_nonce_posts_one_message(self, bot: DiscordApi, discord: FakeDiscord) -> None:
        first, second, other = await send(bot), await send(bot), await send(bot, nonce="m")

        assert first.id == second.id != other.id
        assert len(discord.messages) == 2

    async def test_opening_a_dm_channel_twice_returns_the_same_one(self, bot: DiscordApi, discord: FakeDiscord) -> None:
        assert (
            (await bot.open_dm_channel("100")).id
            == (await bot.open_dm_channel("100")).id
            == discord.dm_channel_of("100")
        )

    @pytest.mark.parametrize(
        "channel_id", ["", "../users/1", "1/messages?", "one", "1" * 21, "\N{FULLWIDTH DIGIT ONE}"]
    )
    async def test_an_invalid_id_is_not_sent(self, bot: DiscordApi, discord: FakeDiscord, channel_id: str) -> None:
        for result in (await send(bot, channel_id), await bot.open_dm_channel(channel_id)):
            assert isinstance(result.outcome, Dead)
            assert result.address_refused
        assert discord.requests == []

    async def test_a_rate_limit_is_returned_without_sleeping(self, bot: DiscordApi, discord: FakeDiscord) -> None:
        discord.channel_limit = 1
        first, second = await send(bot), await send(bot, nonce="m")

        assert (first.outcome, first.pause, first.is_global) == (DONE, timedelta(seconds=3.5), False)
        assert isinstance(second.outcome, Snooze)
        assert second.outcome.delay == second.pause == timedelta(seconds=3.5)
        assert not second.is_global

    async def test_a_global_rate_limit_is_recognised(self, bot: DiscordApi, discord: FakeDiscord) -> None:
        discord.global_limit = 0
        result = await send(bot)

        assert isinstance(result.outcome, Snooze)
        assert result.is_global

    @pytest.mark.parametrize(
        ("body", "headers", "wait"),
        [
            (b'{"message": "x", "retry_after": 0.25, "global": false}', {}, 0.25),
            (b'{"message": "x"}', {"retry-after": "7"}, 7),
            (b'{"message": "x"}', {}, 5),
            (b'{"message": "x", "retry_after": 1e30}', {}, 3600),
            (b'{"message": "x", "retry_after": -1}', {"retry-after": "soon"}, 5),
            (b"<html>error 1015</html>", {}, 60),
            (b"<html>error 1015</html>", {"retry-after": "90"}, 90),
        ],
    )
    async def test_the_duration_of_a_rate_limit(
        self, bot: DiscordApi, discord: FakeDiscord, body: bytes, headers: dict[str, str], wait: float
    ) -> None:
        discord.script.append(ScriptedReply(respond_with(429, body, headers)))
        result = await send(bot)

        assert result.pause == timedelta(seconds=wait)
        assert result.is_global is body.startswith(b"<")

    @pytest.mark.parametrize(
        ("status", "code", "address_refused"),
        [(403, 50007, True), (403, 50001, True), (403, 50278, True), (404, 10013, True), (400, 50035, False)],
    )
    async def test_a_refusal_is_permanent(
        self, bot: DiscordApi, discord: FakeDiscord, status: int, code: int, address_refused: bool
    ) -> None:
        discord.script.append(ScriptedReply(error_reply(status, code, "no")))
        result = await send(bot)

        assert isinstance(result.outcome, Dead)
        assert result.outcome.code == "refused"
        assert str(code) in result.outcome.error
        assert result.address_refused is address_refused

    async def test_a_missing_channel_is_distinguished_from_other_refusals(self, bot: DiscordApi) -> None:
        result = await send(bot, "404")

        assert (result.address_refused, result.channel_missing) == (True, True)

    @pytest.mark.parametrize(
        "reply",
        [
            FAILURE,
            NO_RESPONSE,
            LOST_RESPONSE,
            ScriptedReply(respond_with(403, b"<html>")),
            ScriptedReply(respond_with(302)),
            ScriptedReply(respond_with(500, b"[1]")),
        ],
        ids=["503", "slow", "lost", "html page", "redirect", "500"],
    )
    async def test_other_errors_are_retried(self, bot: DiscordApi, discord: FakeDiscord, reply: ScriptedReply) -> None:
        discord.script.append(reply)
        result = await send(bot)

        assert isinstance(result.outcome, Retry)
        assert not result.address_refused

    async def test_an_invalid_token_does_not_blame_the_address(self, discord: FakeDiscord) -> None:
        async with HttpClient(AllowedOrigins.of([discord.url])) as http_client:
            result = await send(DiscordApi(http_client, "wrong", discord.url))

        assert isinstance(result.outcome, Snooze)
        assert result.is_global
        assert "wrong" not in repr(result)

    async def test_opening_too_many_dms_pauses_the_route(self, bot: DiscordApi, discord: FakeDiscord) -> None:
        discord.script.append(ScriptedReply(error_reply(403, 40003, "You are opening direct messages too fast")))
        result = await bot.open_dm_channel("100")

        assert isinstance(result.outcome, Snooze)
        assert not result.address_refused

    async def test_an_opened_channel_without_an_id_is_retried(self, bot: DiscordApi, discord: FakeDiscord) -> None:
        discord.script.append(ScriptedReply(json_reply(200, {"id": "../1"})))

        assert isinstance((await bot.open_dm_channel("100")).outcome, Retry)


class TestDiscordSender:
    async def test_a_429_waits_without_spending_an_attempt(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        discord.global_limit, discord.retry_after = 0, 40
        request = await notifier.request()
        async with notifier.run_worker():
            await wait_until(lambda: has_attempts(notifier, 1))
        row = await notifier.row(request)

        assert await notifier.state(request) == ("pending", None, 0)
        assert await notifier.attempts(request) == [("snooze", 0)]
        assert timedelta(seconds=35) < row["scheduled_at"] - await database_time(notifier) <= timedelta(seconds=40)

        discord.global_limit = 1000
        await notifier.travel(timedelta(seconds=41))
        await notifier.dispatch()
        assert await notifier.state(request) == ("sent", None, 1)

    async def test_a_rate_limit_applies_to_all_workers(
        self, notifier: NotificationHub, database_urls: DatabaseUrls, discord: FakeDiscord
    ) -> None:
        discord.global_limit, discord.retry_after = 0, 40
        await notifier.request()
        async with notifier.run_worker():
            await wait_until(lambda: has_attempts(notifier, 1))
        called = len(discord.requests)
        discord.global_limit = 1000
        emergency = await notifier.request("antinuke.triggered", "101")
        async with open_hub(notifier.hub.settings, database_urls) as other, notifier.run_worker(other):
            await wait_until(lambda: has_attempts(notifier, 2))

        assert len(discord.requests) == called
        assert await notifier.state(emergency) == ("pending", None, 0)

    async def test_an_exhausted_route_is_paused_before_the_next_call(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        discord.channel_limit, discord.retry_after = 3, 20
        for _ in range(8):
            await notifier.request(
                "antinuke.detected", AUDIT, channel=NotificationChannel.GUILD_AUDIT_CHANNEL, payload=DETECTED
            )
        await notifier.request()  # another route is not affected
        await notifier.dispatch()
        assert (len(discord.messages_in(AUDIT)), len(discord.messages_to("100")), discord.rejected_calls) == (3, 1, 0)

        for expected in (6, 8):
            discord.refill()
            await notifier.travel(timedelta(seconds=21))
            await notifier.dispatch()
            assert (len(discord.messages_in(AUDIT)), discord.rejected_calls) == (expected, 0)

    async def test_an_invalid_token_pauses_all_calls_and_loses_nothing(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        discord.script.append(ScriptedReply(error_reply(401, 0, "401: Unauthorized")))
        request = await notifier.request()
        async with notifier.run_worker():
            await wait_until(lambda: has_attempts(notifier, 1))
        assert await notifier.state(request) == ("pending", None, 0)
        assert (
            await notifier.owner.fetchval(
                "select count(*) from notification.addresses where unhealthy_since is not null"
            )
            == 0
        )

        await notifier.travel(timedelta(seconds=61))
        await notifier.dispatch()
        assert await notifier.state(request) == ("sent", None, 1)

    async def test_an_emergency_skips_the_queue_of_its_route(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        await notifier.owner.execute(
            "insert into pabal.limits (key, tat) values ('discord calls:all', pabal.now() + interval '10 s')"
        )
        news, emergency = await notifier.request(), await notifier.request("antinuke.triggered", "101")
        await notifier.dispatch()
        assert (await notifier.state(news), await notifier.state(emergency)) == (
            ("pending", None, 0),
            ("sent", None, 1),
        )

        await notifier.travel(timedelta(seconds=11))
        await notifier.dispatch()
        assert await notifier.state(news) == ("sent", None, 1)
        assert len(discord.messages) == 2

    async def test_calls_on_one_route_are_sequential(self, notifier: NotificationHub, discord: FakeDiscord) -> None:
        for _ in range(6):
            await notifier.request(
                "antinuke.detected", AUDIT, channel=NotificationChannel.GUILD_AUDIT_CHANNEL, payload=DETECTED
            )
        async with notifier.run_worker():
            await wait_until(notifier.is_idle)

        assert discord.max_concurrent == 1

    async def test_repr_shows_neither_the_text_nor_the_token(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        await asyncio.gather(*(notifier.request(recipient=str(number)) for number in range(200, 203)))
        await notifier.dispatch()

        assert TOKEN not in repr(notifier.hub.settings)
        assert all(TOKEN not in json.dumps(message.body) for message in discord.messages)


DETECTED = {"guild": "Seoul", "actor": "mallory", "action": "ban"}
