"""`pabal worker list`."""

import signal
import subprocess

import pytest

from pabal import __version__
from support.pabal_process import PROCESS_TIMEOUT
from support.terminal import Terminal
from support.wait import wait_until

pytestmark = pytest.mark.anyio

PROGRAM = """
from pabal_client import App

hub = App("minu_build")


@hub.on("order.*", "cart.*")
async def take(event):
    pass
"""


def ended(command: "subprocess.Popen[str]", by: signal.Signals) -> int:
    command.send_signal(by)
    command.communicate(timeout=PROCESS_TIMEOUT)
    return command.returncode


async def test_a_worker_process_is_listed_until_it_stops(terminal: Terminal) -> None:
    (terminal.folder / "shop.py").write_text(PROGRAM)
    count = "select count(*) from pabal.workers"

    async def listed() -> bool:
        return await terminal.event_queue.owner.fetchval(count) == 2

    with terminal.start("work", "--app", "shop:hub") as one, terminal.start("work") as other:
        try:
            await wait_until(listed, PROCESS_TIMEOUT)
            result = {item["pid"]: item for item in await terminal.items("worker", "list")}
            table = (await terminal.run("worker", "list")).stdout
        finally:
            codes = ended(one, signal.SIGTERM), ended(other, signal.SIGKILL)

    assert result.keys() == {one.pid, other.pid}
    mine = result[one.pid]
    assert (mine["lanes"], mine["details"]["program"]) == (["events", "notifications"], "shop:hub")
    assert (mine["details"]["version"], mine["details"]["handlers"]) == (
        __version__,
        {"minu_build": ["order.*", "cart.*"]},
    )
    assert 0 <= mine["silent"] < PROCESS_TIMEOUT
    heading, *lines = table.splitlines()
    assert heading.split() == ["worker", "version", "lanes", "handles", "in", "flight", "started", "last", "seen"]
    assert [("minu_build: order.* cart.*" in line) for line in lines if mine["id"] in line] == [True]
    assert codes == (0, -signal.SIGKILL)
    [left] = await terminal.items("worker", "list")
    assert left["pid"] == other.pid  # a killed process stays until it has been silent for two minutes


async def test_an_empty_list_is_a_sentence(terminal: Terminal) -> None:
    lists = {
        ("worker", "list"): "No workers.",
        ("event", "list"): "No events.",
        ("dead-letter", "list"): "No dead letters.",
        ("dead-letter", "groups"): "No dead letters.",
        ("subscription", "list"): "No subscriptions.",
        ("token", "list"): "No tokens.",
        ("audit", "list"): "No entries.",
    }

    texts = {args: (await terminal.run(*args)).stdout for args in lists}
    data = {args: await terminal.read(*args) for args in lists}

    assert texts == {args: f"{sentence}\n" for args, sentence in lists.items()}
    assert [*data.values()] == [{"items": [], "cursor": None}] * len(lists)


async def test_ids_are_not_broken_in_a_narrow_window(terminal: Terminal) -> None:
    """The terminal wraps long lines, so a copied id is whole."""
    added = await terminal.read("subscription", "add", "order.*", "cart.*", "--service", "minu_build")

    for args in (("subscription", "list"), ("subscription", "show", added["id"]), ("audit", "list")):
        assert any(added["id"] in line for line in (await terminal.run(*args)).stdout.splitlines())
