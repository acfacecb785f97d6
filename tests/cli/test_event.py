"""`pabal event`."""

import json
import re
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.queue.outcome import Dead, Retry
from support.lane_under_test import Travel
from support.terminal import Terminal, read_line

pytestmark = pytest.mark.anyio


async def test_an_event_is_published_with_its_options(terminal: Terminal) -> None:
    options = {"source": "minu_find", "target": "minu_build", "priority": "high", "key": "k1", "ordering-key": "o1"}
    options |= {"deliver-in": "5m", "max-retries": "0", "payload": '{"n": 1}'}

    first = await terminal.read(
        "event", "publish", "order.paid", *(f"--{name}={value}" for name, value in options.items())
    )

    row = await terminal.event_queue.load_event(UUID(first["id"]))
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
    args = ("event", "publish", "order.paid", "--key", "k1")

    first = await terminal.read(*args)
    second = await terminal.run(*args)
    other = await terminal.run(*args, "--payload", '{"n": 2}', code=1)

    assert second.stdout == f"event {first['id']} was already published with this key; it is completed\n"
    assert other.stderr == f"pabal: idempotency_key: already used for a different event, {first['id']}\n"


async def test_a_payload_comes_from_a_file_or_from_standard_input(terminal: Terminal) -> None:
    (terminal.folder / "body.json").write_text('{"from": "file"}')

    file = await terminal.run("event", "publish", "a.b", "--target", "minu_build", "--payload", "@body.json")
    fed = await terminal.run(
        "event", "publish", "a.b", "--target", "minu_build", "--payload", "-", feed='{"from": "-"}\n'
    )

    assert file.stdout.startswith("event ")
    assert fed.stdout.rstrip().endswith(" published")
    held = await terminal.event_queue.claim()
    assert [(item.source_service, item.payload) for item in held] == [("hub", {"from": "file"}), ("hub", {"from": "-"})]


async def test_events_are_listed_and_shown(terminal: Terminal) -> None:
    dead, letter = await terminal.event_queue.publish_failed()
    waiting = await terminal.event_queue.publish("bill.paid", payload=b'{"n": 1}')

    table = (await terminal.run("event", "list")).stdout
    page = await terminal.read("event", "list", "--limit", "1")
    rest = await terminal.read("event", "list", "--limit", "1", "--cursor", page["cursor"])
    failed = await terminal.read("event", "list", "--status", "failed", "--type", "order.*")
    shown = (await terminal.run("event", "show", str(dead))).stdout
    whole = await terminal.read("event", "show", str(waiting))

    assert [line.split()[0] for line in table.splitlines()[1:]] == [str(waiting), str(dead)]
    assert [page["items"][0]["id"], rest["items"][0]["id"]] == [str(waiting), str(dead)]
    assert [item["id"] for item in failed["items"]] == [str(dead)]
    facts = [line.split() for line in shown.splitlines()]
    assert ["dead", "letter", str(letter)] in facts
    assert ["status", "failed"] in facts
    assert (whole["payload"], whole["dead_letters"], whole["deliveries"]) == ({"n": 1}, [], [])


async def test_an_event_is_cancelled_once(terminal: Terminal) -> None:
    event = await terminal.event_queue.publish()

    result = await terminal.run("event", "cancel", str(event))
    again = await terminal.run("event", "cancel", str(event), code=1)

    assert result.stdout == f"{event} cancelled\n"
    assert again.stderr == "pabal: The event has already finished: it is cancelled\n"
    assert await terminal.event_queue.claim() == []
    [(actor, action, _)] = await terminal.event_queue.audit_entries(event)
    assert (actor.partition(":")[0], action) == ("cli", "event.cancelled")


async def test_tail_prints_new_and_ended_events(terminal: Terminal) -> None:
    deaths = terminal.event_queue
    waiting = await deaths.publish()
    async with terminal.follow("event") as command:
        [held] = await deaths.claim()
        await deaths.settle(held)
        ended = await read_line(command)
        event = await deaths.publish("bill.paid")
        came = await read_line(command)
        await deaths.fail(event, Dead("boom"))
        died = await read_line(command)

    assert f"completed  {waiting}  order.paid  minu_find → minu_build" in ended
    assert f"published  {event}  bill.paid  minu_find → minu_build" in came
    assert f"failed     {event}  bill.paid  minu_find → minu_build  boom" in died
    assert all(item[23:29] == "+09:00" for item in (ended, came, died))


async def test_tail_filters(terminal: Terminal) -> None:
    async with terminal.follow("event", "--type", "bill.*", "--service", "minu_keep", "--json") as command:
        await terminal.event_queue.publish("order.paid", target="minu_keep")
        await terminal.event_queue.publish("bill.paid")
        wanted = await terminal.event_queue.publish("bill.paid", target="minu_keep")
        result: dict[str, Any] = json.loads(await read_line(command))

    assert (result["what"], result["id"], result["status"]) == ("came", str(wanted), "pending")


@pytest.mark.parametrize(
    ("args", "code", "result"),
    [
        (["publish", "Order Paid"], 2, "TYPE must be lower-case words joined by dots"),
        (["publish", "a.b", "--source", "nobody"], 1, "No such service: nobody. See `pabal service list`"),
        (["publish", "a.b", "--target", "nobody"], 1, "target_service: no such service: nobody"),
        (["publish", "a.b", "--payload", "[]"], 2, "--payload is not a JSON object"),
        (["publish", "a.b", "--payload", "{"], 2, "--payload is not a JSON object"),
        (["publish", "a.b", "--payload", "@nothing.json"], 1, "payload: nothing.json cannot be read"),
        (["publish", "a.b", "--priority", "11"], 2, "--priority must be 1 to 10, or critical"),
        (["publish", "a.b", "--deliver-in", "soon"], 2, "--deliver-in: must be a duration such as"),
        (["publish", "a.b", "--max-retries", "-1"], 2, "Must be >= 0"),
        (["show", "01a1e213-77cd-735e-833f-ffb381ea569f"], 1, "No such event: 01a1e213"),
        (["cancel", "01a1e213-77cd-735e-833f-ffb381ea569f"], 1, "No such event: 01a1e213"),
        (["list", "--status", "dead"], 2, "--status"),
        (["list", "--cursor", "x"], 1, "cursor: is not a cursor of this list"),
    ],
)
async def test_a_refusal_is_one_line(terminal: Terminal, args: list[str], code: int, result: str) -> None:
    refused = await terminal.run("event", *args, code=code)

    [line] = refused.stderr.splitlines()
    assert result in line
    assert refused.stdout == ""


async def test_a_broadcast_is_shown_with_the_state_of_its_deliveries(terminal: Terminal) -> None:
    broadcast = await terminal.event_queue.publish(target=None)

    assert "no subscribers" in (await terminal.run("event", "list")).stdout
    shown = (await terminal.run("event", "show", str(broadcast))).stdout
    [listed] = await terminal.items("event", "list")

    assert ["state", "no", "subscribers"] in [line.split() for line in shown.splitlines()]
    assert (listed["status"], listed["delivery_state"]["summary"]) == ("completed", "no subscribers")


async def test_an_event_is_shown_with_its_next_try_and_what_it_waits_for(terminal: Terminal, travel: Travel) -> None:
    failing = await terminal.event_queue.publish(max_retries=7)
    [held] = await terminal.event_queue.claim()
    await terminal.event_queue.settle(held, Retry("closed", delay=timedelta(hours=9)))
    waiting = await terminal.event_queue.publish()

    shown = (await terminal.run("event", "show", str(failing))).stdout
    assert re.search(r"^next try +\d{4}-\d\d-\d\d [\d:]+\+09:00, attempt 2 of 8$", shown, re.MULTILINE)
    assert re.search(r"^state +pending, next try in (8 h 59|9 h 0) min, attempt 2 of 8$", shown, re.MULTILINE)

    await travel(timedelta(minutes=20))
    standing = (await terminal.read("event", "show", str(waiting)))["standing"]
    assert standing.startswith("pending, due; minu_build has no subscription for order.paid and must pull it; ")
    assert re.search(r"; no consumer has claimed for 20 min \d+ s$", standing)
