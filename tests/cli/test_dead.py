"""`pabal dead`: the operator at 3 a.m. looks, replays one, then ten, then all."""

from datetime import datetime, timedelta

import pytest

from pabal.core.ids import new_id
from pabal.queue.outcome import Dead
from support.terminal import Terminal

pytestmark = pytest.mark.anyio


async def test_letters_are_listed_whole_in_local_time_and_page_by_page(terminal: Terminal) -> None:
    _, old = await terminal.deaths.dead(why="\x1b[2Jboom\nmore")
    _, new = await terminal.deaths.dead("bill.paid", why="x" * 200)

    table = (await terminal.run("dead", "list")).stdout
    page = await terminal.read("dead", "list", "--limit", "1")
    rest = await terminal.read("dead", "list", "--limit", "1", "--cursor", page["cursor"])

    [_, first, second] = table.splitlines()
    assert first.startswith(f"{new}  ")
    assert second.startswith(f"{old}  ")
    assert "+09:00  order.paid  minu_find  minu_build  unresolved  \N{REPLACEMENT CHARACTER}[2Jboom more" in second
    assert "\x1b" not in table
    assert "x" * 59 + "…" in first
    assert ([item["id"] for item in page["items"]], [item["id"] for item in rest["items"]]) == ([str(new)], [str(old)])
    assert page["cursor"] in (await terminal.run("dead", "list", "--limit", "1")).stdout
    assert rest["items"][0]["error_message"] == "\x1b[2Jboom\nmore"


async def test_letters_are_found_by_what_is_known_of_them(terminal: Terminal) -> None:
    await terminal.deaths.born_dead(2)
    await terminal.deaths.born_dead(
        1, "timed out", event_type="bill.paid", source="minu_keep", target="minu_find", code="net"
    )

    async def found(*words: str) -> int:
        return len((await terminal.read("dead", "list", *words))["items"])

    past = (datetime.now().astimezone() - timedelta(hours=1)).isoformat()
    assert await found("--type", "order.*") == 2
    assert await found("--source", "minu_keep", "--target", "minu_find", "--error-code", "net") == 1
    assert await found("--signature", "boom <n>", "--since", "1h") == 2
    assert await found("--since", past) == await found("--state", "all") == 3
    assert await found("--until", "1h") == await found("--until", past) == await found("--state", "resolved") == 0


async def test_groups_say_what_is_broken(terminal: Terminal) -> None:
    await terminal.deaths.born_dead(3, "order %s not found")
    await terminal.deaths.born_dead(1, "timed out", event_type="bill.paid")

    groups = await terminal.read("dead", "groups")
    table = (await terminal.run("dead", "groups")).stdout

    assert [(each["count"], each["signature"]) for each in groups] == [(3, "order <n> not found"), (1, "timed out")]
    assert table.splitlines()[1].startswith("3  ")
    assert groups[0]["example"] in table
    assert table.splitlines()[1].rstrip().endswith("order.paid   order <n> not found")


async def test_a_letter_is_shown_with_everything(terminal: Terminal) -> None:
    event = await terminal.deaths.publish(payload='{"name": "파발"}'.encode())
    letter = await terminal.deaths.die(event, Dead("boom", "net", "line 1\nline 2"))
    whole = await terminal.read("dead", "show", str(letter))
    shown = (await terminal.run("dead", "show", str(letter))).stdout
    await terminal.deaths.owner.execute("delete from public.event_queue")

    assert whole["original_payload"] == {"name": "파발"}
    assert whole["error_history"][0]["worker"] == "w1"
    for words in (
        f"event        {event}\n",
        "code         net\n",
        '  "name": "파발"',
        "  line 2",
        "+09:00  w1  boom",
    ):
        assert words in shown
    assert "(its row is gone)" in (await terminal.run("dead", "show", str(letter))).stdout


async def test_letters_are_replayed_one_by_one_and_each_says_what_became_of_it(terminal: Terminal) -> None:
    (event, one), (_, other) = [await terminal.deaths.dead() for _ in range(2)]
    nobody = new_id()

    told = await terminal.run("dead", "replay", str(one))
    answers = await terminal.read("dead", "replay", str(one), str(other), str(nobody), code=1)
    refused = await terminal.run("dead", "replay", str(one), code=1)

    assert told.stdout == f"{one} replayed: event {event} lives again\n"
    assert [(each["id"], each["why"] is None) for each in answers] == [
        (str(one), False), (str(other), True), (str(nobody), False)
    ]  # fmt: skip
    assert refused.stderr.startswith(f"pabal: {one}: The dead letter was already replayed by cli:")
    assert len(await terminal.deaths.claim()) == 2
    [(actor, action, _)] = await terminal.deaths.audited(other)
    assert (actor.partition(":")[0], action) == ("cli", "dead_letter.replayed")


async def test_all_that_match_are_counted_asked_about_and_replayed(terminal: Terminal) -> None:
    await terminal.deaths.born_dead(3)
    await terminal.deaths.born_dead(1, event_type="bill.paid")
    words = ("dead", "replay", "--all", "--type", "order.*")

    refused = [await terminal.run(*words, code=1, feed=feed) for feed in ("", "n\n", "\n")]
    assert await terminal.deaths.claim() == []
    agreed = await terminal.run(*words, feed="y\n")
    nothing = await terminal.run(*words, code=1, feed="y\n")
    rest = await terminal.read("dead", "replay", "--all", "--yes")

    for each in refused:
        assert each.stderr == "Replay 3 dead letters? [y/N] pabal: nothing was replayed\n"
    assert agreed.stdout == "3 dead letters replayed\n"
    assert nothing.stderr == "pabal: no unresolved dead letter matches\n"
    assert rest == {"matched": 1, "replayed": 1}
    assert len(await terminal.deaths.claim()) == 4


async def test_letters_are_resolved_with_a_note(terminal: Terminal) -> None:
    ids = [await terminal.deaths.letter(event) for event in await terminal.deaths.born_dead(3)]

    told = await terminal.run("dead", "resolve", str(ids[0]), "--note", "the shop was closed")
    both = await terminal.read("dead", "resolve", *map(str, ids[1:]), "--note", "known")
    again = await terminal.run("dead", "resolve", *map(str, ids), "--note", "again", code=1)
    shown = (await terminal.run("dead", "show", str(ids[0]))).stdout

    assert told.stdout == "1 dead letter resolved\n"
    assert sorted(both["resolved"]) == sorted(map(str, ids[1:]))
    assert again.stderr.count("dealt with already") == 3
    assert "note         the shop was closed" in shown
    assert "by           cli:" in shown


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["show", "01a1e213-77cd-735e-833f-ffb381ea569f"], 1, "No such dead letter: 01a1e213"),
        (["show", "x"], 2, "Invalid value"),
        (["list", "--since", "yesterday"], 2, "--since: is how long ago (90s, 15m, 2h, 7d) or a moment"),
        (["list", "--limit", "0"], 2, "Must be >= 1"),
        (["list", "--cursor", "x"], 1, "cursor: is not one this list gave"),
        (["replay"], 1, "ID: say which dead letters, or --all"),
        (["replay", "01a1e213-77cd-735e-833f-ffb381ea569f", "--all"], 1, "ID: say which dead letters, or --all"),
        (["replay", "01a1e213-77cd-735e-833f-ffb381ea569f", "--type", "x"], 1, "filters are for --all"),
        (["resolve", "--note", "x"], 1, "ID: say which dead letters"),
        (["resolve", "01a1e213-77cd-735e-833f-ffb381ea569f"], 2, "--note"),
        (["resolve", "01a1e213-77cd-735e-833f-ffb381ea569f", "--note", " "], 1, "note: is empty"),
    ],
)
async def test_a_refusal_is_one_line(terminal: Terminal, words: list[str], code: int, told: str) -> None:
    refused = await terminal.run("dead", *words, code=code)

    [line] = refused.stderr.splitlines()
    assert told in line
    assert refused.stdout == ""
