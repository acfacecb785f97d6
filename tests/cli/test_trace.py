"""`pabal trace`."""

import re

import msgspec
import pytest

from pabal.events.consume.lane import LANE, EventClaimFilter
from pabal.events.dead_letters.replay import replay_dead_letter
from pabal.hub import Hub
from pabal.hub_workers import build_rules_handler
from pabal.notifications.dispatch.dispatch_lane import NotificationDispatchLane
from pabal.notifications.lane import LANE as NOTIFICATIONS
from pabal.notifications.lane import ClaimedNotification
from pabal.notifications.people.preferences import PreferencesUpdate, update_preferences
from pabal.notifications.rules.rules import RuleDraft, add_rule
from pabal.queue.lane import Settlement
from pabal.queue.outcome import Dead
from pabal.trace.notifications import MAX_TRACED_NOTIFICATIONS
from support.failed_events import MINA, MINUTE
from support.notifications import PAID, draft_notification, register_builtin_templates, request_drafts
from support.terminal import Terminal

pytestmark = pytest.mark.anyio


async def test_a_trace_has_one_line_per_entry(terminal: Terminal) -> None:
    event_queue = terminal.event_queue
    event, letter = await event_queue.publish_failed(why="boom\nmore")
    async with event_queue.hub.transaction() as tx:
        await replay_dead_letter(tx, letter, MINA)
    [held] = await event_queue.claim()
    await event_queue.settle(held)

    result = (await terminal.run("trace", str(letter))).stdout

    heading, status_line, empty, *lines = result.splitlines()
    assert heading == f"event {event}  order.paid  minu_find → minu_build"
    assert (status_line, empty) == ("  completed", "")
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


async def test_a_trace_as_json_is_one_document(terminal: Terminal) -> None:
    event, letter = await terminal.event_queue.publish_failed(correlation_id="order-77")

    result = await terminal.read("trace", "order-77")

    assert result.keys() == {"about", "kind", "events", "dead_letters", "moments", "notifications"}
    assert result["notifications"] == {"counts": {}, "items": []}
    assert (result["about"], result["kind"]) == ("order-77", "correlation")
    assert [(item["id"], item["standing"]) for item in result["events"]] == [(str(event), "failed")]
    assert [item["id"] for item in result["dead_letters"]] == [str(letter)]
    assert [item["kind"] for item in result["moments"]] == ["published", "failed", "died"]
    assert [item["after"] is None for item in result["moments"]] == [True, False, False]
    assert result["moments"][1]["took"] >= 0


async def test_each_line_of_a_broadcast_names_its_receiver(terminal: Terminal) -> None:
    event_queue = terminal.event_queue
    unknown = await event_queue.publish(target=None)
    await event_queue.owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types)"
        " values ('minu_build', 'pull', '{*}'), ('minu_keep', 'pull', '{*}')"
    )
    event = await event_queue.publish(target=None)
    [held] = await event_queue.claim(service="minu_keep")
    await event_queue.settle(held, Dead("boom"))

    result = (await terminal.run("trace", str(event))).stdout

    assert "  0 of 2 done, 1 dead\n" in result
    assert f"delivery {held.id}  order.paid  minu_find → minu_keep\n  failed\n" in result
    assert "→ minu_keep  moved to the dead letters: boom" in result
    assert "→ minu_build  queued for minu_build" in result
    assert "→ all subscribers  order.paid published" in result
    assert "  no subscribers\n" in (await terminal.run("trace", str(unknown))).stdout


async def test_a_deleted_event_is_traced_by_its_dead_letter(terminal: Terminal) -> None:
    event, letter = await terminal.event_queue.publish_failed()
    await terminal.event_queue.owner.execute("delete from public.event_queue")
    async with terminal.event_queue.hub.transaction() as tx:
        anew = await replay_dead_letter(tx, letter, MINA)

    result = (await terminal.run("trace", str(event)[:13])).stdout

    assert f"event {event}: deleted" in result
    assert f"event {anew}  order.paid" in result
    assert f"replayed by operator:mina, as the new event {anew}\n" in result


async def ruled_over(terminal: Terminal) -> tuple[str, str, str]:
    """The ids of an event and of its notifications: a suppressed DM and a delivered toast."""
    event_queue = terminal.event_queue
    hub = await register_builtin_templates(event_queue.hub)
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
    event = await event_queue.publish(payload=msgspec.json.encode({"user": "100", **PAID}))
    async with hub.transaction() as tx:
        held = await LANE.claim(tx, 1, MINUTE, "rules", EventClaimFilter("hub"))
    await build_rules_handler(hub).handle_events(held)
    [toast] = await claimed(hub)
    async with hub.transaction() as tx:
        await NotificationDispatchLane().settle(tx, [Settlement(toast, await hub.dispatcher.handle(toast))])
    dm = await event_queue.owner.fetchval("select id from notification.requests where recipient_type = 'user_dm'")
    return str(event), str(dm), str(toast.id)


async def claimed(hub: Hub) -> list[ClaimedNotification]:
    async with hub.autocommit() as tx:
        return await NOTIFICATIONS.claim(tx, 10, MINUTE, "w1")


async def test_the_trace_of_an_event_includes_its_notifications(terminal: Terminal) -> None:
    event, dm, toast = await ruled_over(terminal)

    result = (await terminal.run("trace", event)).stdout
    read = await terminal.read("trace", event)

    assert f"notification {dm}  payment.succeeded  rule buyers → user_dm 100\n  suppressed, dm_disabled\n" in result
    assert "suppressed on arrival, dm_disabled: dm_disabled, category_on, address_healthy\n" in result
    assert f"notification {toast}  payment.succeeded  rule buyers → dashboard_toast 100\n  sent\n" in result
    assert "attempt 1 by w1 succeeded (" in result
    assert "arrived in the dashboard\n" in result
    assert "\nnotifications: " not in result
    assert read["notifications"]["counts"] == {"sent": 1, "suppressed": 1}
    assert {item["id"]: item["standing"] for item in read["notifications"]["items"]} == {
        dm: "suppressed, dm_disabled",
        toast: "sent",
    }


async def test_the_trace_of_a_notification_includes_its_event(terminal: Terminal) -> None:
    _, _, toast = await ruled_over(terminal)

    result = (await terminal.run("trace", toast)).stdout
    read = await terminal.read("trace", toast)

    heading, status_line, empty, *lines = result.splitlines()
    assert heading == f"notification {toast}  payment.succeeded  rule buyers → dashboard_toast 100"
    assert (status_line, empty) == ("  sent", "")
    assert lines[0][45:] == "order.paid published by minu_find for minu_build"
    kinds = [item["kind"] for item in read["moments"]]
    assert kinds == ["published", "owed", "completed", "asked", "decided", "sent", "arrived"]
    assert (read["kind"], read["about"]) == ("notification", toast)
    assert read["notification"]["attempts"][0]["outcome"] == "done"


async def test_notifications_are_traced_by_correlation_id(terminal: Terminal) -> None:
    hub = await register_builtin_templates(terminal.event_queue.hub)
    [first, other] = await request_drafts(
        hub,
        draft_notification(hub, correlation_id="order-77"),
        draft_notification(hub, recipient="101", correlation_id="order-78"),
    )

    result = (await terminal.run("trace", "order-77")).stdout
    alone = await terminal.read("trace", "order-77")
    event = await terminal.event_queue.publish(correlation_id="order-77")
    beside = await terminal.read("trace", "order-77")

    assert f"\nnotification {first.id}  payment.succeeded  tester → user_dm 100\n  pending, due\n" in result
    assert str(other.id) not in result
    assert (alone["kind"], alone["events"], alone["notifications"]["counts"]) == ("correlation", [], {"pending": 1})
    assert [item["id"] for item in beside["events"]] == [str(event)]
    assert [item["id"] for item in beside["notifications"]["items"]] == [str(first.id)]


async def test_only_the_first_of_many_notifications_are_shown(terminal: Terminal) -> None:
    hub = await register_builtin_templates(terminal.event_queue.hub)
    event = await terminal.event_queue.publish()
    await request_drafts(
        hub,
        *(draft_notification(hub, recipient=str(item), event=event) for item in range(MAX_TRACED_NOTIFICATIONS + 5)),
    )

    result = (await terminal.run("trace", str(event))).stdout

    assert result.count("\nnotification ") == MAX_TRACED_NOTIFICATIONS
    assert result.endswith(
        f"\nnotifications: {MAX_TRACED_NOTIFICATIONS + 5} pending; showing the first {MAX_TRACED_NOTIFICATIONS}\n"
    )


async def test_an_unknown_id_is_one_line(terminal: Terminal) -> None:
    refused = await terminal.run("trace", "order-1", code=1)

    what = "event, delivery, dead letter, notification, message, reply, correlation id or conversation"
    assert refused.stderr == f"pabal: No {what} matches order-1\n"
