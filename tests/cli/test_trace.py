"""`pabal trace`: one id's story on the screen."""

import re

import msgspec
import pytest

from pabal.events.lane import LANE
from pabal.events.replay import replay_dead_letter
from pabal.hub import Hub, build_rules_handler
from pabal.notifications.dispatch.settle import NotificationDispatchLane
from pabal.notifications.lane import LANE as NOTIFICATIONS
from pabal.notifications.lane import ClaimedNotification
from pabal.notifications.people.preferences import PreferencesUpdate, update_preferences
from pabal.notifications.rules.rules import RuleDraft, add_rule
from pabal.queue.lane import Settlement
from pabal.queue.outcome import Dead
from pabal.trace.notifications import MAX_TRACED_NOTIFICATIONS
from support.failed_events import MINA, MINUTE
from support.notifications import PAID
from support.notifications import draft_notification as notice
from support.notifications import register_builtin_templates as registered
from support.notifications import request_drafts as asked
from support.terminal import Terminal

pytestmark = pytest.mark.anyio


async def test_a_life_is_a_line_for_each_moment(terminal: Terminal) -> None:
    deaths = terminal.deaths
    event, letter = await deaths.dead(why="boom\nmore")
    async with deaths.hub.transaction() as tx:
        await replay_dead_letter(tx, letter, MINA)
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
        f"moved to the dead letters: boom more; dead letter {letter}",
        "replayed by operator:mina",
    ]
    assert lines[4][45:].startswith("attempt 1 by w1 succeeded (")
    assert lines[0][31:45].strip() == ""
    assert all(line[31] == "+" for line in lines[1:])


async def test_a_story_is_one_document_for_programs(terminal: Terminal) -> None:
    event, letter = await terminal.deaths.dead(correlation_id="order-77")

    told = await terminal.read("trace", "order-77")

    assert told.keys() == {"about", "kind", "events", "dead_letters", "moments", "notifications"}
    assert told["notifications"] == {"counts": {}, "items": []}
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
    assert "→ minu_keep  moved to the dead letters: boom" in told
    assert "→ minu_build  queued for minu_build" in told
    assert "→ all subscribers  order.paid published" in told
    assert "  no subscribers\n" in (await terminal.run("trace", str(nobody))).stdout


async def test_what_is_left_of_an_event_is_told(terminal: Terminal) -> None:
    event, letter = await terminal.deaths.dead()
    await terminal.deaths.owner.execute("delete from public.event_queue")
    async with terminal.deaths.hub.transaction() as tx:
        anew = await replay_dead_letter(tx, letter, MINA)

    told = (await terminal.run("trace", str(event)[:13])).stdout

    assert f"event {event}: its row is gone" in told
    assert f"event {anew}  order.paid" in told
    assert f"replayed by operator:mina, as the new event {anew}\n" in told


async def ruled_over(terminal: Terminal) -> tuple[str, str, str]:
    """An event of which a rule makes a DM that is refused and a toast that arrives: the event, the DM, the toast."""
    deaths = terminal.deaths
    hub = await registered(deaths.hub)
    wanted = RuleDraft(
        name="buyers",
        event_pattern="order.paid",
        template_key="payment.succeeded",
        recipients=["user"],
        channels=["user_dm", "dashboard_toast"],
    )
    async with hub.transaction() as tx:
        await add_rule(tx, hub.templates, wanted, MINA)
        await update_preferences(tx, "100", PreferencesUpdate(dm_enabled=False), MINA)
    event = await deaths.publish(payload=msgspec.json.encode({"user": "100", **PAID}))
    async with hub.transaction() as tx:
        held = await LANE.claim(tx, 1, MINUTE, "rules", service="hub")
    await build_rules_handler(hub).handle_events(held)
    [toast] = await claimed(hub)
    async with hub.transaction() as tx:
        await NotificationDispatchLane().settle(tx, [Settlement(toast, await hub.dispatcher.handle(toast))])
    dm = await deaths.owner.fetchval("select id from notification.requests where recipient_type = 'user_dm'")
    return str(event), str(dm), str(toast.id)


async def claimed(hub: Hub) -> list[ClaimedNotification]:
    async with hub.autocommit() as tx:
        return await NOTIFICATIONS.claim(tx, 10, MINUTE, "w1")


async def test_an_event_tells_what_the_rules_made_of_it(terminal: Terminal) -> None:
    event, dm, toast = await ruled_over(terminal)

    told = (await terminal.run("trace", event)).stdout
    read = await terminal.read("trace", event)

    assert f"notification {dm}  payment.succeeded  rule buyers → user_dm 100\n  suppressed, dm_disabled\n" in told
    assert "suppressed on arrival, dm_disabled: dm_disabled, category_on, address_healthy\n" in told
    assert f"notification {toast}  payment.succeeded  rule buyers → dashboard_toast 100\n  sent\n" in told
    assert "attempt 1 by w1 succeeded (" in told
    assert "arrived in the dashboard\n" in told
    assert "notifications in all" not in told
    assert read["notifications"]["counts"] == {"sent": 1, "suppressed": 1}
    assert {each["id"]: each["standing"] for each in read["notifications"]["items"]} == {
        dm: "suppressed, dm_disabled",
        toast: "sent",
    }


async def test_a_notification_tells_of_the_event_that_made_it(terminal: Terminal) -> None:
    _, _, toast = await ruled_over(terminal)

    told = (await terminal.run("trace", toast)).stdout
    read = await terminal.read("trace", toast)

    heading, stands, empty, *lines = told.splitlines()
    assert heading == f"notification {toast}  payment.succeeded  rule buyers → dashboard_toast 100"
    assert (stands, empty) == ("  sent", "")
    assert lines[0][45:] == "order.paid published by minu_find for minu_build"
    kinds = [each["kind"] for each in read["moments"]]
    assert kinds == ["published", "owed", "completed", "asked", "decided", "sent", "arrived"]
    assert (read["kind"], read["about"]) == ("notification", toast)
    assert read["notification"]["attempts"][0]["outcome"] == "done"


async def test_what_was_asked_for_under_a_correlation_id_is_found_by_it(terminal: Terminal) -> None:
    hub = await registered(terminal.deaths.hub)
    [first, other] = await asked(
        hub, notice(hub, correlation_id="order-77"), notice(hub, recipient="101", correlation_id="order-78")
    )

    told = (await terminal.run("trace", "order-77")).stdout
    alone = await terminal.read("trace", "order-77")
    event = await terminal.deaths.publish(correlation_id="order-77")
    beside = await terminal.read("trace", "order-77")

    assert f"\nnotification {first.id}  payment.succeeded  tester → user_dm 100\n  pending, due\n" in told
    assert str(other.id) not in told
    assert (alone["kind"], alone["events"], alone["notifications"]["counts"]) == ("correlation", [], {"pending": 1})
    assert [each["id"] for each in beside["events"]] == [str(event)]
    assert [each["id"] for each in beside["notifications"]["items"]] == [str(first.id)]


async def test_of_very_many_notifications_the_first_are_told(terminal: Terminal) -> None:
    hub = await registered(terminal.deaths.hub)
    event = await terminal.deaths.publish()
    await asked(hub, *(notice(hub, recipient=str(each), event=event) for each in range(MAX_TRACED_NOTIFICATIONS + 5)))

    told = (await terminal.run("trace", str(event))).stdout

    assert told.count("\nnotification ") == MAX_TRACED_NOTIFICATIONS
    assert told.endswith(
        f"\nnotifications in all: {MAX_TRACED_NOTIFICATIONS + 5} pending; the first {MAX_TRACED_NOTIFICATIONS} are told here\n"  # noqa: E501
    )


async def test_nothing_of_that_name_is_one_line(terminal: Terminal) -> None:
    refused = await terminal.run("trace", "order-1", code=1)

    what = "event, delivery, dead letter, notification, message, reply, correlation id or conversation"
    assert refused.stderr == f"pabal: No {what} matches order-1\n"
