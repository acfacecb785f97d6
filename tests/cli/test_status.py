"""`pabal status`: one screen, and exit code 1 if something needs attention."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from pabal import status as status_module
from pabal.queue.outcome import Retry
from pabal.queue.processes import ProcessDetails, registered_process
from pabal.tokens.services import set_service_active
from support.clusters import Connection
from support.failed_events import MINA
from support.lane_under_test import Travel
from support.subscriptions import pause, subscribe
from support.terminal import Terminal
from support.wait import wait_until

pytestmark = pytest.mark.anyio

LONG = timedelta(minutes=7)
RECEIVER = "https://shop.example.org/events"
SET_SUBSCRIPTION = "update pabal.subscriptions set {} where mode = 'push'"


@pytest.fixture
def owner(terminal: Terminal) -> Connection:
    return terminal.event_queue.owner


@pytest.fixture(autouse=True)
async def running_hub(terminal: Terminal) -> AsyncGenerator[None]:
    """A process with a heartbeat."""

    async def describe(_tx: object) -> ProcessDetails:
        return ProcessDetails(version="9.9.9")

    async def is_registered() -> bool:
        return await terminal.event_queue.owner.fetchval("select count(*) from pabal.workers") == 1

    async with registered_process(terminal.event_queue.hub.db, ("events", "notifications"), describe):
        await wait_until(is_registered)
        yield


async def findings(terminal: Terminal, code: int) -> dict[str, tuple[str, str]]:
    document = await terminal.read("status", code=code)
    assert document["needs_person"] is (code == 1)
    return {finding["what"]: (finding["level"], finding["seen"]) for finding in document["findings"]}


async def warnings(terminal: Terminal) -> dict[str, str]:
    found = await findings(terminal, 1)
    return {what: seen for what, (level, seen) in found.items() if level != "good"}


async def test_a_healthy_hub_needs_no_person(terminal: Terminal) -> None:
    await terminal.event_queue.publish()
    [claimed] = await terminal.event_queue.claim()
    await terminal.event_queue.settle(claimed)

    screen = (await terminal.run("status")).stdout
    document = await terminal.read("status")

    assert "hubs running: " in screen
    assert "9.9.9" in screen
    assert all(line.startswith(("pabal", "lane", "relay", "events", "notif", "ok ")) for line in screen.splitlines())
    assert [lane["name"] for lane in document["lanes"]] == ["relay", "events", "notifications"]
    assert document["hubs"][0]["version"] == "9.9.9"


async def test_dead_letters_need_a_person(terminal: Terminal) -> None:
    await terminal.event_queue.publish_failed()

    assert await warnings(terminal) == {"dead letters": "1 unresolved"}


async def test_a_silent_consumer_is_named_while_its_events_wait(terminal: Terminal, travel: Travel) -> None:
    await terminal.event_queue.publish()
    assert (await findings(terminal, 0))["consumers"][0] == "good", "it may be about to claim"

    await travel(LONG)
    await keep_heartbeat(terminal)

    seen = await warnings(terminal)
    assert seen.keys() == {"consumers", "lanes"}
    assert seen["consumers"].startswith("minu_build has claimed nothing for 7 min")


async def test_a_consumer_that_works_through_a_backlog_is_not_silent(terminal: Terminal, travel: Travel) -> None:
    for _ in range(3):
        await terminal.event_queue.publish()
    await travel(LONG)
    await keep_heartbeat(terminal)
    await terminal.event_queue.settle((await terminal.event_queue.claim(limit=1))[0])

    assert (await warnings(terminal)).keys() == {"lanes"}


async def test_failing_and_stopped_receivers_are_named(terminal: Terminal, owner: Connection, travel: Travel) -> None:
    subscription, _ = await subscribe(terminal.event_queue.hub, "minu_build", "order.*", url=RECEIVER)
    await owner.execute(SET_SUBSCRIPTION.format("failures = 9, open_until = pabal.now() + interval '1 minute'"))
    assert await warnings(terminal) == {"receivers": "minu_build is failing, attempts in a row: 9"}

    await owner.execute(SET_SUBSCRIPTION.format("disabled_at = pabal.now(), disabled_reason = 'gone (410)'"))
    assert await warnings(terminal) == {"receivers": "minu_build is disabled: gone (410)"}

    await owner.execute(SET_SUBSCRIPTION.format("disabled_at = null, disabled_reason = null, open_until = null"))
    await pause(terminal.event_queue.hub, subscription)
    assert (await findings(terminal, 0))["receivers"][0] == "good", "nothing waits for it"
    await terminal.event_queue.publish()
    await travel(timedelta(seconds=11))
    assert await warnings(terminal) == {"receivers": "minu_build is paused, events waiting: 1"}


async def test_an_ordering_key_that_waits_for_a_retry_is_named(terminal: Terminal) -> None:
    queue = terminal.event_queue
    head = await queue.publish(ordering_key="cart-1")
    [held] = await queue.claim()
    await queue.settle(held, Retry("closed", delay=timedelta(hours=12)))
    assert (await findings(terminal, 0))["ordering keys"] == ("good", "none waits for a retry"), "nothing waits"
    for _ in range(2):
        await queue.publish(ordering_key="cart-1")

    seen = (await warnings(terminal))["ordering keys"]

    assert seen.startswith(f"{head} holds the ordering key cart-1 of minu_build, events behind it: 2, next try in ")
    [key] = (await terminal.read("status", code=1))["blocked_keys"]
    assert (key["service"], key["ordering_key"], key["event_id"], key["waiting"]) == (
        "minu_build",
        "cart-1",
        str(head),
        2,
    )


async def test_a_short_wait_for_a_retry_needs_no_person(terminal: Terminal) -> None:
    await terminal.event_queue.publish(ordering_key="cart-1")
    await terminal.event_queue.publish(ordering_key="cart-1")
    [held] = await terminal.event_queue.claim()
    await terminal.event_queue.settle(held, Retry("closed", delay=timedelta(minutes=4)))

    level, seen = (await findings(terminal, 0))["ordering keys"]

    assert level == "good"
    assert ", events behind it: 1, " in seen


async def test_a_disabled_service_is_not_a_silent_consumer(terminal: Terminal, travel: Travel) -> None:
    await terminal.event_queue.publish()
    await travel(LONG)
    await keep_heartbeat(terminal)
    async with terminal.event_queue.hub.transaction() as tx:
        await set_service_active(tx, "minu_build", MINA, active=False)

    assert (await warnings(terminal))["consumers"] == "minu_build is disabled, events waiting: 1"


async def test_all_troubles_of_a_hub_are_on_one_screen(
    terminal: Terminal, owner: Connection, travel: Travel, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = terminal.event_queue
    await queue.publish_failed()
    await queue.publish("cart.filled", ordering_key="cart-1", target="minu_keep")
    [held] = await queue.claim(service="minu_keep")
    await queue.settle(held, Retry("closed", delay=timedelta(hours=12)))
    await queue.publish("cart.filled", ordering_key="cart-1", target="minu_keep")
    await queue.publish(target="minu_find")
    await subscribe(queue.hub, "minu_build", "order.*", url=RECEIVER)
    await owner.execute(SET_SUBSCRIPTION.format("failures = 9, open_until = pabal.now() + interval '1 hour'"))
    await travel(LONG)
    await owner.execute(
        "insert into pabal.chores (name, every, last_started_at, last_success_at, runs) "
        "values ('expire events', '1 minute', pabal.now(), pabal.now() - interval '1 hour', 1)"
    )
    await owner.execute("update pabal.workers set seen_at = pabal.now() - interval '1 hour'")
    monkeypatch.setattr(status_module, "MIN_FREE_DISK", 1 << 60)

    seen = await warnings(terminal)
    screen = (await terminal.run("status", code=1)).stdout

    assert seen.keys() == {"hubs", "lanes", "dead letters", "consumers", "receivers", "ordering keys", "chores", "disk"}
    assert screen.count("\ncheck ") == len(seen)
    assert screen.count("→ ") == len(seen)


async def test_late_chores_need_a_person(terminal: Terminal, owner: Connection) -> None:
    await owner.execute(
        "insert into pabal.chores (name, every, last_started_at, last_success_at, runs) "
        "values ('expire events', '1 minute', pabal.now(), pabal.now() - interval '1 hour', 1)"
    )

    assert await warnings(terminal) == {"chores": "overdue: expire events"}


async def test_a_full_disk_needs_a_person(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_module, "MIN_FREE_DISK", 1 << 60)

    assert (await warnings(terminal)).keys() == {"disk"}


async def test_a_hub_that_does_not_run_needs_a_person(terminal: Terminal, owner: Connection) -> None:
    await owner.execute("update pabal.workers set seen_at = pabal.now() - interval '1 minute'")
    assert (await warnings(terminal))["hubs"] == "no hub is running"

    await owner.execute("delete from pabal.workers")
    assert await warnings(terminal) == {"hubs": "no hub is running"}


async def test_claims_by_plain_sql_are_named_and_in_flight(terminal: Terminal, owner: Connection) -> None:
    await terminal.event_queue.publish()
    await owner.execute("update public.event_queue set status = 'processing', processing_started_at = pabal.now()")

    document = await terminal.read("status")

    assert document["plain_claims"] == 1
    assert document["lanes"][1]["in_flight"] == 1
    assert any(finding["what"] == "claims by SQL" for finding in document["findings"])


async def test_the_doctor_has_the_findings_of_the_status(terminal: Terminal) -> None:
    await terminal.event_queue.publish_failed()

    found = {item["what"]: item["seen"] for item in await terminal.items("doctor")}

    assert found["dead letters"] == "1 unresolved"
    assert found["consumers"] == "every service with waiting events claims them"


async def keep_heartbeat(terminal: Terminal) -> None:
    """After a journey in time the last heartbeat would be old."""
    await terminal.event_queue.owner.execute("update pabal.workers set seen_at = pabal.now()")
