"""`pabal dead-letter`."""

from datetime import datetime, timedelta

import pytest

from pabal.core.ids import new_id
from pabal.queue.outcome import Dead
from support.terminal import Terminal

pytestmark = pytest.mark.anyio


async def test_dead_letters_are_listed_in_local_time_and_in_pages(terminal: Terminal) -> None:
    _, old = await terminal.event_queue.publish_failed(why="\x1b[2Jboom\nmore")
    _, new = await terminal.event_queue.publish_failed("bill.paid", why="x" * 200)

    table = (await terminal.run("dead-letter", "list")).stdout
    page = await terminal.read("dead-letter", "list", "--limit", "1")
    rest = await terminal.read("dead-letter", "list", "--limit", "1", "--cursor", page["cursor"])

    [_, first, second] = table.splitlines()
    assert first.startswith(f"{new}  ")
    assert second.startswith(f"{old}  ")
    assert "+09:00  order.paid  minu_find  minu_build  unresolved  \N{REPLACEMENT CHARACTER}[2Jboom more" in second
    assert "\x1b" not in table
    assert "x" * 59 + "…" in first
    assert ([item["id"] for item in page["items"]], [item["id"] for item in rest["items"]]) == ([str(new)], [str(old)])
    assert page["cursor"] in (await terminal.run("dead-letter", "list", "--limit", "1")).stdout
    assert rest["items"][0]["error_message"] == "\x1b[2Jboom\nmore"


async def test_dead_letters_are_filtered(terminal: Terminal) -> None:
    await terminal.event_queue.insert_failed(2)
    await terminal.event_queue.insert_failed(
        1, "timed out", event_type="bill.paid", source="minu_keep", target="minu_find", code="net"
    )

    async def matches(*args: str) -> int:
        return len((await terminal.read("dead-letter", "list", *args))["items"])

    past = (datetime.now().astimezone() - timedelta(hours=1)).isoformat()
    assert await matches("--type", "order.*") == 2
    assert await matches("--source", "minu_keep", "--target", "minu_find", "--error-code", "net") == 1
    assert await matches("--signature", "boom <n>", "--since", "1h") == 2
    assert await matches("--since", past) == await matches("--state", "all") == 3
    assert await matches("--until", "1h") == await matches("--until", past) == await matches("--state", "resolved") == 0


async def test_groups_count_dead_letters_by_error(terminal: Terminal) -> None:
    await terminal.event_queue.insert_failed(3, "order %s not found")
    await terminal.event_queue.insert_failed(1, "timed out", event_type="bill.paid")

    groups = await terminal.items("dead-letter", "groups")
    table = (await terminal.run("dead-letter", "groups")).stdout

    assert [(row["count"], row["signature"]) for row in groups] == [(3, "order <n> not found"), (1, "timed out")]
    assert table.splitlines()[1].startswith("3  ")
    assert groups[0]["example"] in table
    assert table.splitlines()[1].rstrip().endswith("order.paid   order <n> not found")


async def test_a_dead_letter_is_shown_with_its_attempts_and_payload(terminal: Terminal) -> None:
    event = await terminal.event_queue.publish(payload='{"name": "파발"}'.encode())
    letter = await terminal.event_queue.fail(event, Dead("boom", "net", "line 1\nline 2"))
    whole = await terminal.read("dead-letter", "show", str(letter))
    shown = (await terminal.run("dead-letter", "show", str(letter))).stdout
    await terminal.event_queue.owner.execute("delete from public.event_queue")

    assert whole["original_payload"] == {"name": "파발"}
    assert whole["error_history"][0]["worker"] == "w1"
    for args in (
        f"event        {event}\n",
        "code         net\n",
        '  "name": "파발"',
        "  line 2",
        "+09:00  w1  boom",
    ):
        assert args in shown
    assert "(deleted)" in (await terminal.run("dead-letter", "show", str(letter))).stdout


async def test_named_dead_letters_are_replayed_one_by_one(terminal: Terminal) -> None:
    (event, one), (_, other) = [await terminal.event_queue.publish_failed() for _ in range(2)]
    unknown = new_id()

    result = await terminal.run("dead-letter", "replay", str(one))
    answers = await terminal.items("dead-letter", "replay", str(one), str(other), str(unknown), code=1)
    refused = await terminal.run("dead-letter", "replay", str(one), code=1)

    assert result.stdout == f"{one} replayed; event {event} is pending again\n"
    assert [(row["id"], row["why"] is None) for row in answers] == [
        (str(one), False), (str(other), True), (str(unknown), False)
    ]  # fmt: skip
    assert refused.stderr.startswith(f"pabal: {one}: The dead letter was already replayed by cli:")
    assert len(await terminal.event_queue.claim()) == 2
    [(actor, action, _)] = await terminal.event_queue.audit_entries(other)
    assert (actor.partition(":")[0], action) == ("cli", "dead_letter.replayed")


async def test_replay_all_counts_asks_and_replays(terminal: Terminal) -> None:
    await terminal.event_queue.insert_failed(3)
    await terminal.event_queue.insert_failed(1, event_type="bill.paid")
    args = ("dead-letter", "replay", "--all", "--type", "order.*")

    refused = [await terminal.run(*args, code=1, feed=feed) for feed in ("", "n\n", "\n")]
    assert await terminal.event_queue.claim() == []
    agreed = await terminal.run(*args, feed="y\n")
    nothing = await terminal.run(*args, code=1, feed="y\n")
    rest = await terminal.read("dead-letter", "replay", "--all", "--yes")

    for row in refused:
        assert row.stderr == "Replay 3 dead letters? [y/N] pabal: Nothing replayed\n"
    assert agreed.stdout == "3 dead letters replayed\n"
    assert nothing.stderr == "pabal: No unresolved dead letter matches\n"
    assert rest == {"matched": 1, "replayed": 1}
    assert len(await terminal.event_queue.claim()) == 4


async def test_dead_letters_are_resolved_with_a_note(terminal: Terminal) -> None:
    ids = [await terminal.event_queue.find_dead_letter(event) for event in await terminal.event_queue.insert_failed(3)]

    result = await terminal.run("dead-letter", "resolve", str(ids[0]), "--note", "the shop was closed")
    both = await terminal.read("dead-letter", "resolve", *map(str, ids[1:]), "--note", "known")
    again = await terminal.run("dead-letter", "resolve", *map(str, ids), "--note", "again", code=1)
    shown = (await terminal.run("dead-letter", "show", str(ids[0]))).stdout

    assert result.stdout == "1 dead letter resolved\n"
    assert sorted(both["resolved"]) == sorted(map(str, ids[1:]))
    assert again.stderr.count("not found or already resolved") == 3
    assert "note         the shop was closed" in shown
    assert "by           cli:" in shown


@pytest.mark.parametrize(
    ("args", "code", "result"),
    [
        (["show", "01a1e213-77cd-735e-833f-ffb381ea569f"], 1, "No such dead letter: 01a1e213"),
        (["show", "x"], 2, "ID: must be an id"),
        (["list", "--since", "yesterday"], 2, "--since: must be a duration (90s, 15m, 2h, 7d) or a timestamp"),
        (["list", "--limit", "0"], 2, "Must be >= 1"),
        (["list", "--cursor", "x"], 1, "cursor: is not a cursor of this list"),
        (["replay"], 2, "Name the dead letters to replay, or use --all"),
        (
            ["replay", "01a1e213-77cd-735e-833f-ffb381ea569f", "--all"],
            2,
            "Ids cannot be combined with --all or with filters",
        ),
        (["replay", "01a1e213-77cd-735e-833f-ffb381ea569f", "--type", "x"], 2, "Ids cannot be combined"),
        (["resolve", "--note", "x"], 2, "Name the dead letters to resolve"),
        (["resolve", "01a1e213-77cd-735e-833f-ffb381ea569f"], 2, "--note"),
        (["resolve", "01a1e213-77cd-735e-833f-ffb381ea569f", "--note", " "], 2, "--note must not be empty"),
    ],
)
async def test_a_refusal_is_one_line(terminal: Terminal, args: list[str], code: int, result: str) -> None:
    refused = await terminal.run("dead-letter", *args, code=code)

    [line] = refused.stderr.splitlines()
    assert result in line
    assert refused.stdout == ""
