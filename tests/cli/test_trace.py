"""`pabal trace`: one id's story on the screen."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from deaths import MINA
from pabal.events.replay import replay_one
from pabal.queue.outcome import Dead
from pabal.wiring import Roads
from terminal import Terminal, terminal_at

pytestmark = pytest.mark.anyio


@pytest.fixture
async def terminal(folder: Path, roads: Roads) -> AsyncGenerator[Terminal]:
    async with terminal_at(folder, roads) as made:
        yield made


async def test_a_life_is_a_line_for_each_moment(terminal: Terminal) -> None:
    deaths = terminal.deaths
    event, letter = await deaths.dead(why="boom\nmore")
    async with deaths.hub.transaction() as tx:
        await replay_one(tx, letter, MINA)
    [held] = await deaths.claim()
    await deaths.settle(held)

    told = (await terminal.run("trace", str(letter))).stdout

    heading, stands, empty, *lines = told.splitlines()
    assert heading == f"event {event}  order.paid  minu_find → minu_build"
    assert (stands, empty) == ("  completed", "")
    assert all(line[23:29] == "+09:00" for line in lines)
    assert re.fullmatch(r" \(\d+ ms\)", lines[1][78:])
    assert [line[45:78] if place == 1 else line[45:] for place, line in enumerate(lines)][:4] == [
        "order.paid published by minu_find for minu_build",
        "attempt 1 by w1 failed: boom more",
        f"died: boom more; dead letter {letter}",
        "replayed by operator:mina",
    ]
    assert lines[4][45:].startswith("attempt 1 by w1 succeeded (")
    assert lines[0][31:45].strip() == ""
    assert all(line[31] == "+" for line in lines[1:])


async def test_a_story_is_one_document_for_programs(terminal: Terminal) -> None:
    event, letter = await terminal.deaths.dead(correlation_id="order-77")

    told = await terminal.read("trace", "order-77")

    assert told.keys() == {"about", "kind", "events", "dead_letters", "moments"}
    assert (told["about"], told["kind"]) == ("order-77", "correlation")
    assert [(each["id"], each["standing"]) for each in told["events"]] == [(str(event), "failed")]
    assert [each["id"] for each in told["dead_letters"]] == [str(letter)]
    assert [each["kind"] for each in told["moments"]] == ["published", "failed", "died"]
    assert [each["after"] is None for each in told["moments"]] == [True, False, False]
    assert told["moments"][1]["took"] >= 0


async def test_each_line_of_a_broadcast_says_whose_it_is(terminal: Terminal) -> None:
    deaths = terminal.deaths
    nobody = await deaths.publish(target=None)
    await deaths.owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types)"
        " values ('minu_build', 'pull', '{*}'), ('minu_keep', 'pull', '{*}')"
    )
    event = await deaths.publish(target=None)
    [held] = await deaths.claim(service="minu_keep")
    await deaths.settle(held, Dead("boom"))

    told = (await terminal.run("trace", str(event))).stdout

    assert "  deliveries: 1 failed, 1 pending\n" in told
    assert f"delivery {held.id}  order.paid  minu_find → minu_keep\n  failed\n" in told
    assert "→ minu_keep  died: boom" in told
    assert "→ minu_build  owed to minu_build" in told
    assert "→ everybody  order.paid published" in told
    assert "  nobody had subscribed to it\n" in (await terminal.run("trace", str(nobody))).stdout


async def test_what_is_left_of_an_event_is_told(terminal: Terminal) -> None:
    event, letter = await terminal.deaths.dead()
    await terminal.deaths.owner.execute("delete from public.event_queue")
    async with terminal.deaths.hub.transaction() as tx:
        anew = await replay_one(tx, letter, MINA)

    told = (await terminal.run("trace", str(event)[:13])).stdout

    assert f"event {event}: its row is gone" in told
    assert f"event {anew}  order.paid" in told
    assert f"replayed by operator:mina, as the new event {anew}\n" in told


async def test_nothing_of_that_name_is_one_line(terminal: Terminal) -> None:
    refused = await terminal.run("trace", "order-1", code=1)

    what = "event, delivery, dead letter, message, reply, correlation id or conversation"
    assert refused.stderr == f"pabal: there is no {what} order-1\n"
