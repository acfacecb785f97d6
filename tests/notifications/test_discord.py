"""What Discord answers becomes an outcome, and what it says about the next call is known to every worker."""

import asyncio
import json
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from pabal.hub import DatabaseUrls, open_hub
from pabal.notifications.decision.decide import NotificationChannel
from pabal.outside import discord
from pabal.outside.discord import DiscordApi, DiscordResult
from pabal.outside.http import HttpClient
from pabal.outside.ssrf import AllowedOrigins
from pabal.queue.outcome import DONE, Dead, Retry, Snooze
from support.dispatch import AUDIT, Office, now, tried
from support.fake_discord import FAILS, HANGS, LOST, TOKEN, Discord, Fate, error, reply
from support.receiver import answers
from support.wait import until

pytestmark = pytest.mark.anyio

SECOND = timedelta(seconds=1)


@pytest.fixture
async def bot(there: Discord) -> AsyncGenerator[DiscordApi]:
    async with HttpClient(AllowedOrigins.of([there.url])) as outside:
        yield DiscordApi(outside, TOKEN, there.url, time_limit=timedelta(milliseconds=500))


async def say(bot: DiscordApi, channel: str = AUDIT, nonce: str = "n" * 25) -> DiscordResult:
    return await bot.send_message(channel, title="Hello", body="there", nonce=nonce)


class TestTheSender:
    async def test_says_it_with_everything_that_keeps_it_safe(self, bot: DiscordApi, there: Discord) -> None:
        answer = await bot.send_message(AUDIT, title="Hello", body="there", nonce="n1", urgent=True)

        [message] = there.messages
        assert answer == DiscordResult(DONE, id=message.id)
        assert message.body == {
            "embeds": [{"title": "Hello", "description": "there", "color": discord.URGENT_COLOR}],
            "nonce": "n1",
            "enforce_nonce": True,
            "allowed_mentions": {"parse": []},
        }
        assert there.requests[0].headers["user-agent"].startswith("DiscordBot (")

    async def test_the_same_nonce_says_it_once(self, bot: DiscordApi, there: Discord) -> None:
        first, second, other = await say(bot), await say(bot), await say(bot, nonce="m")

        assert first.id == second.id != other.id
        assert len(there.messages) == 2

    async def test_opens_the_same_dm_channel_every_time(self, bot: DiscordApi, there: Discord) -> None:
        assert (await bot.open_dm_channel("100")).id == (await bot.open_dm_channel("100")).id == there.dm_of("100")

    @pytest.mark.parametrize("written", ["", "../users/1", "1/messages?", "one", "1" * 21, "\N{FULLWIDTH DIGIT ONE}"])
    async def test_what_is_no_id_goes_nowhere(self, bot: DiscordApi, there: Discord, written: str) -> None:
        for answer in (await say(bot, written), await bot.open_dm_channel(written)):
            assert isinstance(answer.outcome, Dead)
            assert answer.address_refused
        assert there.requests == []

    async def test_a_limit_is_an_answer_and_never_a_sleep(self, bot: DiscordApi, there: Discord) -> None:
        there.per_channel = 1
        first, second = await say(bot), await say(bot, nonce="m")

        assert (first.outcome, first.pause, first.is_global) == (DONE, timedelta(seconds=3.5), False)
        assert isinstance(second.outcome, Snooze)
        assert second.outcome.delay == second.pause == timedelta(seconds=3.5)
        assert not second.is_global

    async def test_a_limit_over_everything_says_so(self, bot: DiscordApi, there: Discord) -> None:
        there.everywhere = 0
        answer = await say(bot)

        assert isinstance(answer.outcome, Snooze)
        assert answer.is_global

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
    async def test_how_long_a_limit_lasts(
        self, bot: DiscordApi, there: Discord, body: bytes, headers: dict[str, str], wait: float
    ) -> None:
        there.script.append(Fate(answers(429, body, headers)))
        answer = await say(bot)

        assert answer.pause == timedelta(seconds=wait)
        assert answer.is_global is body.startswith(b"<")

    @pytest.mark.parametrize(
        ("status", "code", "gone"),
        [(403, 50007, True), (403, 50001, True), (403, 50278, True), (404, 10013, True), (400, 50035, False)],
    )
    async def test_a_refusal_is_for_good(
        self, bot: DiscordApi, there: Discord, status: int, code: int, gone: bool
    ) -> None:
        there.script.append(Fate(error(status, code, "no")))
        answer = await say(bot)

        assert isinstance(answer.outcome, Dead)
        assert answer.outcome.code == "refused"
        assert str(code) in answer.outcome.error
        assert answer.address_refused is gone

    async def test_a_channel_that_is_not_there_is_told_from_other_refusals(self, bot: DiscordApi) -> None:
        answer = await say(bot, "404")

        assert (answer.address_refused, answer.channel_missing) == (True, True)

    @pytest.mark.parametrize(
        "fate",
        [FAILS, HANGS, LOST, Fate(answers(403, b"<html>")), Fate(answers(302)), Fate(answers(500, b"[1]"))],
        ids=["503", "slow", "lost", "a wall", "redirect", "500"],
    )
    async def test_whatever_else_goes_wrong_is_tried_again(self, bot: DiscordApi, there: Discord, fate: Fate) -> None:
        there.script.append(fate)
        answer = await say(bot)

        assert isinstance(answer.outcome, Retry)
        assert not answer.address_refused

    async def test_a_token_nobody_knows_is_our_fault_and_nobody_elses(self, there: Discord) -> None:
        async with HttpClient(AllowedOrigins.of([there.url])) as outside:
            answer = await say(DiscordApi(outside, "wrong", there.url))

        assert isinstance(answer.outcome, Snooze)
        assert answer.is_global
        assert "wrong" not in repr(answer)

    async def test_opening_too_many_dms_is_a_wait(self, bot: DiscordApi, there: Discord) -> None:
        there.script.append(Fate(error(403, 40003, "You are opening direct messages too fast")))
        answer = await bot.open_dm_channel("100")

        assert isinstance(answer.outcome, Snooze)
        assert not answer.address_refused

    async def test_an_opened_channel_without_a_name_is_none(self, bot: DiscordApi, there: Discord) -> None:
        there.script.append(Fate(reply(200, {"id": "../1"})))

        assert isinstance((await bot.open_dm_channel("100")).outcome, Retry)


class TestTheLine:
    async def test_a_429_spends_nothing_and_waits_as_it_was_told(self, desk: Office, there: Discord) -> None:
        there.everywhere, there.retry_after = 0, 40
        request = await desk.ask()
        async with desk.working():
            await until(lambda: tried(desk, 1))
        row = await desk.row(request)

        assert await desk.state(request) == ("pending", None, 0)
        assert await desk.attempts(request) == [("snooze", 0)]
        assert timedelta(seconds=35) < row["scheduled_at"] - await now(desk) <= timedelta(seconds=40)

        there.everywhere = 1000
        await desk.travel(timedelta(seconds=41))
        await desk.dispatch()
        assert await desk.state(request) == ("sent", None, 1)

    async def test_what_one_worker_is_told_all_of_them_keep(
        self, desk: Office, database_urls: DatabaseUrls, there: Discord
    ) -> None:
        there.everywhere, there.retry_after = 0, 40
        await desk.ask()
        async with desk.working():
            await until(lambda: tried(desk, 1))
        called = len(there.requests)
        there.everywhere = 1000
        nuke = await desk.ask("antinuke.triggered", "101")
        async with open_hub(desk.hub.settings, database_urls) as other, desk.working(other):
            await until(lambda: tried(desk, 2))

        assert len(there.requests) == called
        assert await desk.state(nuke) == ("pending", None, 0)

    async def test_the_last_call_of_a_route_is_not_followed_by_one_too_many(self, desk: Office, there: Discord) -> None:
        there.per_channel, there.retry_after = 3, 20
        for _ in range(8):
            await desk.ask(
                "antinuke.detected", AUDIT, channel=NotificationChannel.GUILD_AUDIT_CHANNEL, payload=DETECTED
            )
        await desk.ask()  # another route has nothing to do with it
        await desk.dispatch()
        assert (len(there.said_in(AUDIT)), len(there.said_to("100")), there.refused) == (3, 1, 0)

        for said in (6, 8):
            there.refill()
            await desk.travel(timedelta(seconds=21))
            await desk.dispatch()
            assert (len(there.said_in(AUDIT)), there.refused) == (said, 0)

    async def test_a_wrong_token_stops_everything_and_loses_nothing(self, desk: Office, there: Discord) -> None:
        there.script.append(Fate(error(401, 0, "401: Unauthorized")))
        request = await desk.ask()
        async with desk.working():
            await until(lambda: tried(desk, 1))
        assert await desk.state(request) == ("pending", None, 0)
        assert (
            await desk.owner.fetchval("select count(*) from notification.addresses where unhealthy_since is not null")
            == 0
        )

        await desk.travel(timedelta(seconds=61))
        await desk.dispatch()
        assert await desk.state(request) == ("sent", None, 1)

    async def test_an_emergency_does_not_wait_for_those_before_it(self, desk: Office, there: Discord) -> None:
        await desk.owner.execute(
            "insert into pabal.limits (key, tat) values ('discord calls:all', pabal.now() + interval '10 s')"
        )
        news, nuke = await desk.ask(), await desk.ask("antinuke.triggered", "101")
        await desk.dispatch()
        assert (await desk.state(news), await desk.state(nuke)) == (("pending", None, 0), ("sent", None, 1))

        await desk.travel(timedelta(seconds=11))
        await desk.dispatch()
        assert await desk.state(news) == ("sent", None, 1)
        assert len(there.messages) == 2

    async def test_calls_on_one_route_are_made_one_after_the_other(self, desk: Office, there: Discord) -> None:
        for _ in range(6):
            await desk.ask(
                "antinuke.detected", AUDIT, channel=NotificationChannel.GUILD_AUDIT_CHANNEL, payload=DETECTED
            )
        async with desk.working():
            await until(desk.is_idle)

        assert there.most_at_once == 1

    async def test_a_note_shows_neither_its_text_nor_the_token(self, desk: Office, there: Discord) -> None:
        await asyncio.gather(*(desk.ask(recipient=str(each)) for each in range(200, 203)))
        await desk.dispatch()

        assert TOKEN not in repr(desk.hub.settings)
        assert all(TOKEN not in json.dumps(each.body) for each in there.messages)


DETECTED = {"guild": "Seoul", "actor": "mallory", "action": "ban"}
