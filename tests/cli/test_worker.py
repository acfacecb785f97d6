"""`pabal worker list`: who is at work, as somebody else's terminal sees it."""

import signal
import subprocess

import pytest

from pabal import __version__
from support.pabal_process import PATIENCE
from support.terminal import Terminal
from support.wait import until

pytestmark = pytest.mark.anyio

PROGRAM = """
from pabal.client import Hub

hub = Hub("minu_build")


@hub.on("order.*", "cart.*")
async def take(event):
    pass
"""


def ended(command: "subprocess.Popen[str]", by: signal.Signals) -> int:
    command.send_signal(by)
    command.communicate(timeout=PATIENCE)
    return command.returncode


async def test_a_program_at_work_is_listed_until_it_stops(terminal: Terminal) -> None:
    (terminal.folder / "shop.py").write_text(PROGRAM)
    count = "select count(*) from pabal.workers"

    async def listed() -> bool:
        return await terminal.deaths.owner.fetchval(count) == 2

    with terminal.start("work", "--app", "shop:hub") as one, terminal.start("work") as other:
        try:
            await until(listed, PATIENCE)
            told = {each["pid"]: each for each in await terminal.read("worker", "list")}
            table = (await terminal.run("worker", "list")).stdout
        finally:
            codes = ended(one, signal.SIGTERM), ended(other, signal.SIGKILL)

    assert told.keys() == {one.pid, other.pid}
    mine = told[one.pid]
    assert (mine["lanes"], mine["details"]["program"]) == (["events", "notifications"], "shop:hub")
    assert (mine["details"]["version"], mine["details"]["handlers"]) == (
        __version__,
        {"minu_build": ["order.*", "cart.*"]},
    )
    assert 0 <= mine["silent"] < PATIENCE
    heading, *lines = table.splitlines()
    assert heading.split() == ["worker", "version", "lanes", "handles", "holds", "started", "last", "seen"]
    assert [("minu_build: order.* cart.*" in line) for line in lines if mine["id"] in line] == [True]
    assert codes == (0, -signal.SIGKILL)
    [left] = await terminal.read("worker", "list")
    assert left["pid"] == other.pid  # killed, it could not say so; it is swept when it has been silent for long


async def test_an_empty_list_is_a_sentence(terminal: Terminal) -> None:
    lists = {
        ("worker", "list"): "No workers.",
        ("event", "list"): "No events.",
        ("dead", "list"): "No dead letters.",
        ("dead", "groups"): "No dead letters.",
        ("subscription", "list"): "No subscriptions.",
        ("token", "list"): "No tokens.",
        ("audit", "list"): "Nothing was done.",
    }

    said = {words: (await terminal.run(*words)).stdout for words in lists}
    data = {words: await terminal.read(*words) for words in lists}

    assert said == {words: f"{sentence}\n" for words, sentence in lists.items()}
    assert [each["items"] if isinstance(each, dict) else each for each in data.values()] == [[]] * len(lists)


async def test_no_table_breaks_an_id_in_a_narrow_window(terminal: Terminal) -> None:
    """What a column has no room for is left to the terminal: an id that is copied is copied whole."""
    added = await terminal.read("subscription", "add", "order.*", "cart.*", "--service", "minu_build")

    for words in (("subscription", "list"), ("subscription", "show", added["id"]), ("audit", "list")):
        assert any(added["id"] in line for line in (await terminal.run(*words)).stdout.splitlines())
