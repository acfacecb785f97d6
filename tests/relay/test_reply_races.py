"""Concurrent replies in several processes make one POST per message, and none after a crash."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from pabal.core.errors import CallbackUnconfirmed
from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls
from pabal.relay.reply import callback
from pabal.relay.reply.callback import (
    CallbackSettlement,
    ClaimedCallback,
    UnsentCallback,
    rescue_lost_callbacks,
    settle_callbacks,
)
from pabal.relay.reply.reply import BotReply, claim_callbacks, encode_skill_response
from relay.racing_process import STALL_AFTER
from support.receiver import respond_after
from support.relay_rows import CALLBACK_LIFETIME, Bot, digest, skill_response

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
PROGRAM = Path(__file__).with_name("racing_process.py")
PROCESSES = 4


@contextmanager
def racing_processes(
    count: int, database_urls: DatabaseUrls, folder: Path, bot: Bot, replies_per_message: int, *messages: UUID
) -> "Generator[list[subprocess.Popen[str]]]":
    """Processes that wait for a line on stdin before they start."""
    arguments = [
        database_urls.main,
        str(database_urls.direct),
        str(folder),
        digest(bot.owner.token),
        str(replies_per_message),
        *map(str, messages),
    ]
    processes = [
        subprocess.Popen(
            [sys.executable, PROGRAM, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(PROGRAM.parents[1])},
        )
        for _ in range(count)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe
                pipe.close()


async def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout
    async with asyncio.timeout(60):
        return (await asyncio.to_thread(process.stdout.readline)).strip()


def start_racing(process: "subprocess.Popen[str]") -> None:
    assert process.stdin
    process.stdin.write("go\n")
    process.stdin.flush()


@pytest.mark.slow
@pytest.mark.parametrize(
    "lifetimes",
    [[CALLBACK_LIFETIME], [2 * CALLBACK_LIFETIME], [CALLBACK_LIFETIME, 2 * CALLBACK_LIFETIME] * 25],
    ids=["with stall", "without stall", "mixed"],
)
async def test_a_thousand_replies_and_the_stall_make_one_post_per_message(
    bot: Bot, database_urls: DatabaseUrls, tmp_path: Path, travel: Travel, lifetimes: list[timedelta]
) -> None:
    """A callback with more time left is not due for the stall yet; only the replies race for it."""
    message_count = len(lifetimes)
    replies_per_message = 1000 // PROCESSES // message_count
    ids = [await bot.insert_message(f"m{number}", lifetime) for number, lifetime in enumerate(lifetimes)]
    with racing_processes(PROCESSES, database_urls, tmp_path, bot, replies_per_message, *ids) as processes:
        assert [await read_line(process) for process in processes] == ["ready"] * PROCESSES
        age = await bot.chat.db.fetchval("select pabal.now() - max(created_at) from inbound_messages")
        await travel(max(STALL_AFTER - age, timedelta()))  # the stall is about to be due
        for process in processes:
            start_racing(process)
        results = Counter[str]()
        for process in processes:
            results.update(json.loads(await read_line(process)))

    posts = [len(bot.kakao.responses(f"m{number}")) for number in range(message_count)]
    senders = Counter([row["spent_by"] for row in await bot.chat.db.fetch("select spent_by from relay_replies")])
    assert posts == [1] * message_count
    assert senders["agent"] >= lifetimes.count(2 * CALLBACK_LIFETIME)
    assert bot.kakao.posts == message_count == senders["agent"] + senders["hub"]
    shares = {name: PROCESSES * replies_per_message * senders[name] for name in ("agent", "hub")}
    assert (results["sent"], results["callback_expired"]) == (shares["agent"], shares["hub"])  # repeats, told the same
    outcomes = {row["outcome"] for row in await bot.chat.db.fetch("select outcome from relay_replies")}
    assert outcomes == {"sent"}


async def test_a_process_killed_before_settling_leaves_unknown_and_no_second_post(
    bot: Bot, database_urls: DatabaseUrls, tmp_path: Path, travel: Travel
) -> None:
    message = await bot.insert_message("first")
    bot.kakao.responder = respond_after(asyncio.Event())
    with racing_processes(1, database_urls, tmp_path, bot, 1, message) as [process]:
        assert await read_line(process) == "ready"
        start_racing(process)
        await bot.kakao.receiver.wait_for_requests(1)
        process.kill()
        process.wait()

    assert await bot.chat.state(message) == "sending"
    async with bot.hub.transaction() as tx:
        assert await rescue_lost_callbacks(tx, 100) == 0  # its process may still settle it
    await travel(timedelta(seconds=31))
    async with bot.hub.transaction() as tx:
        assert await rescue_lost_callbacks(tx, 100) == 1
        assert await rescue_lost_callbacks(tx, 100) == 0
    with pytest.raises(CallbackUnconfirmed):
        await bot.send_reply(message, "from this process")

    row = await bot.chat.reply(message)
    assert row
    assert (row["state"], row["error"]) == ("unknown", callback.SENDING_TIMEOUT_ERROR)
    assert row["settled_at"] is not None
    assert (bot.kakao.posts, await bot.chat.failures()) == (1, ["unknown"])


async def test_a_settlement_needs_the_fence_of_the_claim(bot: Bot) -> None:
    message, response = await bot.insert_message("fenced"), skill_response("an answer")
    reply = BotReply(digest(bot.owner.token), message, None, response, encode_skill_response(response))
    async with bot.hub.autocommit() as tx:
        [claimed] = await claim_callbacks(tx, [reply])
        assert isinstance(claimed, ClaimedCallback)
        stale = replace(claimed, fence=new_id())

        assert await settle_callbacks(tx, [CallbackSettlement(stale, UnsentCallback("lost"))]) == [None]
        assert await bot.chat.state(message) == "sending"
        assert await settle_callbacks(tx, [CallbackSettlement(claimed, UnsentCallback("lost"))]) != [None]
