"""`pabal event`: publish from a terminal, look, call off, follow."""

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.queue.outcome import Dead
from support.pabal_process import PATIENCE
from support.terminal import Terminal

pytestmark = pytest.mark.anyio


async def test_an_event_is_published_as_it_was_said(terminal: Terminal) -> None:
    said = {"source": "minu_find", "target": "minu_build", "priority": "high", "key": "k1", "ordering-key": "o1"}
    said |= {"deliver-in": "5m", "max-retries": "0", "payload": '{"n": 1}'}

    first = await terminal.read(
        "event", "publish", "order.paid", *(f"--{name}={value}" for name, value in said.items())
    )

    row = await terminal.deaths.event(UUID(first["id"]))
    assert (row["source_service"], row["target_service"], row["event_type"]) == (
        "minu_find",
        "minu_build",
        "order.paid",
    )
    assert (row["priority"], row["max_retries"], row["ordering_key"]) == (3, 0, "o1")
    assert json.loads(row["payload"]) == {"n": 1}
    assert row["next_retry_at"] - row["created_at"] == timedelta(minutes=5)
    assert (first["status"], first["repeated"]) == ("pending", False)


async def test_a_key_is_published_once(terminal: Terminal) -> None:
    words = ("event", "publish", "order.paid", "--key", "k1")

    first = await terminal.read(*words)
    second = await terminal.run(*words)
    other = await terminal.run(*words, "--payload", '{"n": 2}', code=1)

    assert second.stdout == f"event {first['id']} was published under this key before; it is completed\n"
    assert other.stderr == f"pabal: idempotency_key: already used for a different event, {first['id']}\n"


async def test_a_payload_comes_from_a_file_or_from_standard_input(terminal: Terminal) -> None:
    (terminal.folder / "body.json").write_text('{"from": "file"}')

    file = await terminal.run("event", "publish", "a.b", "--target", "minu_build", "--payload", "@body.json")
    fed = await terminal.run(
        "event", "publish", "a.b", "--target", "minu_build", "--payload", "-", feed='{"from": "-"}\n'
    )

    assert file.stdout.startswith("event ")
    assert fed.stdout.rstrip().endswith("is published")
    held = await terminal.deaths.claim()
    assert [(each.source_service, each.payload) for each in held] == [("hub", {"from": "file"}), ("hub", {"from": "-"})]


async def test_events_are_listed_and_shown(terminal: Terminal) -> None:
    dead, letter = await terminal.deaths.dead()
    waiting = await terminal.deaths.publish("bill.paid", payload=b'{"n": 1}')

    table = (await terminal.run("event", "list")).stdout
    page = await terminal.read("event", "list", "--limit", "1")
    rest = await terminal.read("event", "list", "--limit", "1", "--cursor", page["cursor"])
    failed = await terminal.read("event", "list", "--status", "failed", "--type", "order.*")
    shown = (await terminal.run("event", "show", str(dead))).stdout
    whole = await terminal.read("event", "show", str(waiting))

    assert [line.split()[0] for line in table.splitlines()[1:]] == [str(waiting), str(dead)]
    assert [page["items"][0]["id"], rest["items"][0]["id"]] == [str(waiting), str(dead)]
    assert [each["id"] for each in failed["items"]] == [str(dead)]
    facts = [line.split() for line in shown.splitlines()]
    assert ["dead", "letter", str(letter)] in facts
    assert ["status", "failed"] in facts
    assert (whole["payload"], whole["dead_letters"], whole["deliveries"]) == ({"n": 1}, [], [])


async def test_an_event_is_called_off_once(terminal: Terminal) -> None:
    event = await terminal.deaths.publish()

    told = await terminal.run("event", "cancel", str(event))
    again = await terminal.run("event", "cancel", str(event), code=1)

    assert told.stdout == f"{event} is cancelled\n"
    assert again.stderr == "pabal: The event has already finished: it is cancelled\n"
    assert await terminal.deaths.claim() == []
    [(actor, action, _)] = await terminal.deaths.audited(event)
    assert (actor.partition(":")[0], action) == ("cli", "event.cancelled")


@asynccontextmanager
async def following(terminal: Terminal, *words: str) -> AsyncGenerator["subprocess.Popen[str]"]:
    """A tail that has begun, and ends by Ctrl-C without a word."""
    with terminal.start("event", "tail", *words) as command:
        try:
            assert command.stderr
            assert await asyncio.to_thread(command.stderr.readline) == "following events; Ctrl-C ends it\n"
            yield command
        finally:
            command.send_signal(signal.SIGINT)
            _, complaints = await asyncio.to_thread(command.communicate, timeout=PATIENCE)
    assert (command.returncode, complaints) == (130, "")


async def line(command: "subprocess.Popen[str]") -> str:
    assert command.stdout
    async with asyncio.timeout(PATIENCE):
        return await asyncio.to_thread(command.stdout.readline)


async def test_events_are_followed_as_they_come_and_as_they_end(terminal: Terminal) -> None:
    deaths = terminal.deaths
    waiting = await deaths.publish()
    async with following(terminal) as command:
        [held] = await deaths.claim()
        await deaths.settle(held)
        ended = await line(command)
        event = await deaths.publish("bill.paid")
        came = await line(command)
        await deaths.die(event, Dead("boom"))
        died = await line(command)

    assert f"completed  {waiting}  order.paid  minu_find → minu_build" in ended
    assert f"came       {event}  bill.paid  minu_find → minu_build" in came
    assert f"failed     {event}  bill.paid  minu_find → minu_build  boom" in died
    assert all(each[23:29] == "+09:00" for each in (ended, came, died))


async def test_only_what_was_asked_for_is_followed(terminal: Terminal) -> None:
    async with following(terminal, "--type", "bill.*", "--service", "minu_keep", "--json") as command:
        await terminal.deaths.publish("order.paid", target="minu_keep")
        await terminal.deaths.publish("bill.paid")
        wanted = await terminal.deaths.publish("bill.paid", target="minu_keep")
        told: dict[str, Any] = json.loads(await line(command))

    assert (told["what"], told["id"], told["status"]) == ("came", str(wanted), "pending")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["publish", "Order Paid"], 1, "TYPE: is words of small letters, digits and _ joined by dots"),
        (["publish", "a.b", "--source", "nobody"], 1, "service nobody does not exist: `pabal service list`"),
        (["publish", "a.b", "--target", "nobody"], 1, "target_service: no such service: nobody"),
        (["publish", "a.b", "--payload", "[]"], 1, "payload: is not a JSON object"),
        (["publish", "a.b", "--payload", "{"], 1, "payload: is not a JSON object"),
        (["publish", "a.b", "--payload", "@nothing.json"], 1, "payload: nothing.json cannot be read"),
        (["publish", "a.b", "--priority", "11"], 1, "priority: is 1 to 10, or critical"),
        (["publish", "a.b", "--deliver-in", "soon"], 2, "--deliver-in: must be a duration such as"),
        (["publish", "a.b", "--max-retries", "-1"], 2, "Must be >= 0"),
        (["show", "01a1e213-77cd-735e-833f-ffb381ea569f"], 1, "No such event: 01a1e213"),
        (["cancel", "01a1e213-77cd-735e-833f-ffb381ea569f"], 1, "No such event: 01a1e213"),
        (["list", "--status", "dead"], 2, "--status"),
        (["list", "--cursor", "x"], 1, "cursor: is not one this list gave"),
    ],
)
async def test_a_refusal_is_one_line(terminal: Terminal, words: list[str], code: int, told: str) -> None:
    refused = await terminal.run("event", *words, code=code)

    [line] = refused.stderr.splitlines()
    assert told in line
    assert refused.stdout == ""
