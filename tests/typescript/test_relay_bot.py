"""A bot in TypeScript behind the relay, with the simulated Kakao of the demo."""

import re
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pabal.demo.run import listener_url, serve_fake_kakao
from pabal.hub import Hub
from pabal.settings import Settings
from relay.skills import send_message
from support.clusters import Connection
from support.demo import USER, RunningDemo
from support.node import CLIENT, NodeProcess, run_node, write_program
from support.relay_rows import Chat
from support.server import serve_hub
from support.wait import wait_until
from support.webhook import WEBHOOK_HEADERS

pytestmark = pytest.mark.anyio

BOT = """
const session = env.TOKEN ? { token: env.TOKEN, pairingCode: "" } : await pabal.createSession(env.URL);
const onError = (error: unknown) => console.log("error", String(error));
async function fetchLogged(...request: Parameters<typeof fetch>): Promise<Response> {
  const last = new Headers(request[1]?.headers).get("last-event-id");
  if (last && last !== "0") console.log(`resumed after ${last}`);
  return fetch(...request);
}
const bot = new pabal.RelayBot({ url: env.URL, token: session.token, onError, fetch: fetchLogged });
let turns = 0;
bot.onMessage(async (message) => {
  turns += 1;
  console.log(`turn ${message.text} ${message.deliveryCount}`);
  if (message.text === "wait") await new Promise<void>((resolve) => process.stdin.once("data", () => resolve()));
  if (message.text === "fail") throw new Error("no idea");
  return message.text === "silence" ? undefined : `${message.text} was turn ${turns}`;
});
console.log(`${session.pairingCode} ${session.token}`);
const stop = new AbortController();
process.on("SIGTERM", () => stop.abort());
await bot.run(stop.signal);
process.exit(0);
"""

TWICE = """
async function fetchTwice(...request: Parameters<typeof fetch>): Promise<Response> {
  const response = await fetch(...request);
  if (!response.headers.get("content-type")?.startsWith("text/event-stream")) return response;
  const repeat = new TransformStream<string, string>({
    transform: (chunk, output) => {
      output.enqueue(chunk);
      if (chunk.includes("event: message")) output.enqueue(chunk);
    },
  });
  const body = response.body!.pipeThrough(new TextDecoderStream()).pipeThrough(repeat);
  return new Response(body.pipeThrough(new TextEncoderStream()), response);
}
let turns"""
"""A network that delivers every message of a stream twice."""


LOSSY = """
let isLost = false;
async function fetchLossy(...request: Parameters<typeof fetch>): Promise<Response> {
  const response = await fetch(...request);
  if (isLost || !String(request[0]).endsWith("/ack")) return response;
  isLost = true;
  console.log("lost");
  throw new TypeError("fetch failed");
}
let turns"""
"""A network that loses the first answer to an acknowledgement."""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"], "chat_language": "en"})


@pytest.fixture
async def demo(hub: Hub) -> AsyncGenerator[RunningDemo]:
    async with AsyncExitStack() as stack:
        hub_url = await stack.enter_async_context(serve_hub(hub))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        kakao = await stack.enter_async_context(serve_fake_kakao(listener, hub_url, WEBHOOK_HEADERS, has_bot=True))
        yield RunningDemo(hub_url, kakao, listener_url(listener))


async def pair(demo: RunningDemo, line: str) -> None:
    [code] = re.findall(r"[A-Z2-9]{4}-[A-Z2-9]{4}", line)
    await demo.kakao.send_message(USER, f"/pair {code}")
    await wait_until(lambda: any("Connected" in text for text in demo.texts()))


@pytest.fixture
async def bot(demo: RunningDemo, tmp_path: Path) -> AsyncGenerator[NodeProcess]:
    """A bot that is paired with the user."""
    async with run_node(write_program(tmp_path, BOT), URL=demo.hub + "/") as process:
        await pair(demo, await process.line())
        yield process


async def test_the_example_answers_in_the_chat(demo: RunningDemo) -> None:
    async with run_node(CLIENT / "examples" / "bot.ts", PABAL_URL=demo.hub) as process:
        await pair(demo, await process.line())
        await demo.kakao.send_message(USER, "안녕하세요")
        await demo.wait_for_text("Echo: 안녕하세요")

        assert await process.stop() == 0


async def test_a_stream_that_breaks_is_continued_and_no_message_starts_two_turns(
    hub: Hub, demo: RunningDemo, bot: NodeProcess
) -> None:
    await demo.kakao.send_message(USER, "wait")
    assert await bot.line() == "turn wait 1"
    for _ in range(3):
        hub.relay.stream_registry.close_all()
        assert await bot.line() == "resumed after 1"
        await wait_until(lambda: len(hub.relay.stream_registry) == 1)
    await demo.kakao.send_message(USER, "next")
    bot.send_line()

    await demo.wait_for_text("wait was turn 1")
    assert await bot.line() == "turn next 1", "the message that waits was not started again"
    await demo.wait_for_text("next was turn 2")
    assert await bot.stop() == 0


async def test_a_turn_that_a_crash_interrupted_does_not_start_again(demo: RunningDemo, tmp_path: Path) -> None:
    program = write_program(tmp_path, BOT)
    async with run_node(program, URL=demo.hub) as crashing:
        line = await crashing.line()
        await pair(demo, line)
        await demo.kakao.send_message(USER, "wait")
        assert await crashing.line() == "turn wait 1"
        crashing.process.kill()
        await crashing.end()

    async with run_node(program, URL=demo.hub, TOKEN=line.split()[-1]) as bot:
        await bot.line()
        await demo.kakao.send_message(USER, "next")

        assert await bot.line() == "turn next 1"
        await demo.wait_for_text("next was turn 1")


async def test_a_message_without_a_turn_is_left_to_the_next_process(
    demo: RunningDemo, tmp_path: Path, owner: Connection
) -> None:
    program = write_program(tmp_path, BOT)
    async with run_node(program, URL=demo.hub) as stopping:
        line = await stopping.line()
        await pair(demo, line)
        await demo.kakao.send_message(USER, "wait")
        assert await stopping.line() == "turn wait 1"
        await demo.kakao.send_message(USER, "next")
        await wait_until(lambda: is_delivered(owner))
        stopping.process.terminate()
        await wait_until(lambda: has_no_stream(owner))
        stopping.send_line()
        assert await stopping.end() == (0, [])
        await demo.wait_for_text("wait was turn 1")

    async with run_node(program, URL=demo.hub, TOKEN=line.split()[-1]) as bot:
        await bot.line()

        assert await bot.line() == "turn next 2"
        await demo.wait_for_text("next was turn 1")


async def is_delivered(owner: Connection) -> bool:
    return await owner.fetchval("select count(*) from public.inbound_messages where status = 'DELIVERED'") == 1


async def has_no_stream(owner: Connection) -> bool:
    return await owner.fetchval("select count(*) from public.relay_streams") == 0


async def test_an_acknowledgement_whose_answer_was_lost_starts_the_turn(demo: RunningDemo, tmp_path: Path) -> None:
    program = write_program(
        tmp_path, BOT.replace("fetch: fetchLogged", "fetch: fetchLossy").replace("let turns", LOSSY)
    )
    async with run_node(program, URL=demo.hub) as bot:
        await pair(demo, await bot.line())
        await demo.kakao.send_message(USER, "one")

        assert await bot.line() == "lost"
        assert await bot.line() == "turn one 1"
        await demo.wait_for_text("one was turn 1")


REFUSED = """
let isRefused = false;
async function fetchRefused(...request: Parameters<typeof fetch>): Promise<Response> {
  if (isRefused || !String(request[0]).endsWith("/ack")) return fetch(...request);
  isRefused = true;
  await fetch(...request);
  console.log("acknowledged by another process");
  return fetch(env.CLOSED);
}
let turns"""
"""A hub that cannot be reached while another process of the account acknowledges the message."""


async def test_an_acknowledgement_that_was_never_sent_starts_no_turn(
    demo: RunningDemo, unused_port: int, tmp_path: Path
) -> None:
    program = write_program(
        tmp_path, BOT.replace("fetch: fetchLogged", "fetch: fetchRefused").replace("let turns", REFUSED)
    )
    closed = f"http://localhost:{unused_port}"
    async with run_node(program, URL=demo.hub, CLOSED=closed) as bot:
        await pair(demo, await bot.line())
        await demo.kakao.send_message(USER, "one")
        assert await bot.line() == "acknowledged by another process"
        await demo.kakao.send_message(USER, "two")

        assert await bot.line() == "turn two 1"
        await demo.wait_for_text("two was turn 1")


BUSY = """
let refusals = 7;
async function fetchBusy(...request: Parameters<typeof fetch>): Promise<Response> {
  if (!String(request[0]).endsWith("/reply") || refusals-- <= 0) return fetch(...request);
  return new Response("", { status: 503, headers: { "retry-after": "0" } });
}
let turns"""
"""A hub that restarts: seven replies get no answer."""


async def test_a_reply_is_repeated_as_often_as_by_the_python_bot(demo: RunningDemo, tmp_path: Path) -> None:
    program = write_program(tmp_path, BOT.replace("fetch: fetchLogged", "fetch: fetchBusy").replace("let turns", BUSY))
    async with run_node(program, URL=demo.hub) as bot:
        await pair(demo, await bot.line())
        await demo.kakao.send_message(USER, "one")

        assert await bot.line() == "turn one 1"
        await demo.wait_for_text("one was turn 1")


async def test_a_session_without_a_user_ends_the_bot_with_an_error(demo: RunningDemo, travel: Any) -> None:
    async with run_node(CLIENT / "examples" / "bot.ts", PABAL_URL=demo.hub) as bot:
        assert "/pair" in await bot.line()
        await travel(timedelta(minutes=6))

        assert await bot.end() == (1, [])


CONVERSATIONS = """
const bot = new pabal.RelayBot({ url: env.URL, token: env.TOKEN, concurrency: 2 });
const stop = new AbortController();
let running = 0, most = 0, turns = 0, meet = () => {};
const met = new Promise<void>((resolve) => (meet = resolve));
bot.onMessage(async () => {
  running += 1;
  most = Math.max(most, running);
  if (running === 2) meet();
  await met;
  await fetch(env.URL);
  running -= 1;
  if (++turns === 6) stop.abort();
});
await bot.run(stop.signal);
console.log(most);
process.exit(0);
"""
"""Two turns have to run at once for any to end."""


async def test_turns_of_several_conversations_run_at_once_up_to_the_limit(
    demo: RunningDemo, web: httpx2.AsyncClient, owner: Connection, tmp_path: Path
) -> None:
    chat = Chat(owner)
    account = await chat.owner()
    for user in ("mina", "jun", "sora", "hana", "yuna", "bora"):
        await chat.conversation(account, user)
        await send_message(web, "hello", user)

    async with run_node(write_program(tmp_path, CONVERSATIONS), URL=demo.hub, TOKEN=account.token) as bot:
        assert await bot.end() == (0, ["2"])


async def test_a_message_that_is_delivered_twice_starts_one_turn(demo: RunningDemo, tmp_path: Path) -> None:
    program = write_program(
        tmp_path, BOT.replace("fetch: fetchLogged", "fetch: fetchTwice").replace("let turns", TWICE)
    )
    async with run_node(program, URL=demo.hub) as bot:
        await pair(demo, await bot.line())
        for number, text in enumerate(("one", "two"), 1):
            await demo.kakao.send_message(USER, text)
            assert await bot.line() == f"turn {text} 1"
            await demo.wait_for_text(f"{text} was turn {number}")
        assert await bot.stop() == 0


async def test_a_failed_turn_is_reported_and_the_bot_goes_on(demo: RunningDemo, bot: NodeProcess) -> None:
    for text in ("fail", "silence"):
        await demo.kakao.send_message(USER, text)
        assert await bot.line() == f"turn {text} 1"
        if text == "fail":
            assert await bot.line() == "error Error: no idea"
    await demo.kakao.send_message(USER, "hello")

    await demo.wait_for_text("hello was turn 3")


async def test_a_message_without_a_reply_is_acknowledged(
    demo: RunningDemo, bot: NodeProcess, owner: Connection
) -> None:
    """Else the hub holds it: after 256 of them a stream gets no more."""
    for text in ("silence", "fail"):
        await demo.kakao.send_message(USER, text)
        assert await bot.line() == f"turn {text} 1"

    async def are_acknowledged() -> bool:
        return await owner.fetchval("select count(*) from public.inbound_messages where status = 'ACKED'") == 2

    await wait_until(are_acknowledged)


async def test_a_token_that_the_hub_does_not_know_ends_the_bot(demo: RunningDemo, tmp_path: Path) -> None:
    source = """
    const bot = new pabal.RelayBot({ url: env.URL, token: "0".repeat(64) });
    try { await bot.run(new AbortController().signal); }
    catch (error) { console.log((error as pabal.ApiError).status, (error as pabal.ApiError).code); }
    """
    async with run_node(write_program(tmp_path, source), URL=demo.hub) as process:
        assert await process.end() == (0, ["401 UNAUTHORIZED"])


async def test_a_token_that_is_no_header_is_refused_and_not_shown(unused_port: int, tmp_path: Path) -> None:
    source = """
    const onError = (error: unknown) => { console.log(String(error)); process.exit(0); };
    try { await new pabal.RelayBot({ url: env.URL, token: "two\\nwords", onError }).run(new AbortController().signal); }
    catch (error) { console.log(String(error)); }
    """
    async with run_node(write_program(tmp_path, source), URL=f"http://127.0.0.1:{unused_port}") as process:
        assert await process.end() == (0, ["TypeError: token: must be printable ASCII without spaces"])
