"""A notification's story: whatever became of it, it is told, and an event tells what was made of it."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.core.actor import HUB_ACTOR
from pabal.core.errors import NotFound
from pabal.core.ids import new_id
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.lane import LANE
from pabal.notifications.notifications import NotificationAccess
from pabal.notifications.people.preferences import PreferencesUpdate, update_preferences
from pabal.notifications.requests import cancel_notification
from pabal.notifications.toasts.inbox import ToastAction, mark_toast
from pabal.trace.notification_entries import notification_status_text
from pabal.trace.notifications import (
    MAX_TRACED_NOTIFICATIONS,
    EventNotifications,
    NotificationTrace,
    find_notification_matches,
    trace_notification,
    trace_notifications_of_events,
)
from support.dispatch import Office, tried
from support.fake_discord import FAILS, Discord
from support.wait import until

pytestmark = pytest.mark.anyio

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


async def told(desk: Office, request: UUID) -> NotificationTrace:
    async with desk.hub.autocommit() as tx:
        return await trace_notification(tx, request)


def kinds(found: NotificationTrace) -> list[str]:
    return [moment.kind for moment in found.entries]


def says(found: NotificationTrace) -> str:
    return "\n".join(moment.says for moment in found.entries)


async def made(desk: Office, *events: UUID) -> EventNotifications:
    async with desk.hub.autocommit() as tx:
        return await trace_notifications_of_events(tx, events)


async def prefer(desk: Office, person: str, **wish: Any) -> None:
    async with desk.hub.transaction() as tx:
        await update_preferences(tx, person, PreferencesUpdate(**wish), HUB_ACTOR)


async def test_an_emergency_that_got_through_in_the_end(desk: Office, there: Discord) -> None:
    await prefer(desk, "100", dm_enabled=False)
    there.dm_of("100")
    there.script.append(FAILS)
    request = await desk.ask("antinuke.triggered")
    async with desk.working():
        await until(lambda: tried(desk, 1))
        await desk.travel(MINUTE)
        await until(desk.is_idle)

    found = await told(desk, request)

    [message] = there.messages
    assert kinds(found) == ["asked", "decided", "deed", "failed", "sent"]
    assert found.entries[0].says == "antinuke.triggered for user_dm 100 requested by hub"
    assert found.entries[1].says == "accepted for sending: emergency, dm_disabled, category_on, address_healthy"
    assert found.entries[2].says == "preference.overridden (dm_disabled) by hub"
    assert found.entries[3].says.startswith("attempt 1 by tester failed: ")
    assert found.entries[4].says == (
        f"attempt 2 by tester succeeded: Discord message {message.id} in channel {there.dm_of('100')}"
    )
    assert notification_status_text(found.request, found.now) == "sent"


async def test_a_toast_from_the_asking_to_the_reading(desk: Office) -> None:
    request = await desk.ask(channel=NotificationChannel.DASHBOARD_TOAST)
    await desk.dispatch()
    for mark in (ToastAction.SEEN, ToastAction.READ, ToastAction.ARCHIVE):
        await desk.travel(MINUTE)
        async with desk.hub.transaction() as tx:
            await mark_toast(tx, "100", request, mark)

    assert kinds(await told(desk, request)) == ["asked", "decided", "sent", "arrived", "seen", "shown", "archived"]


async def test_what_is_suppressed_says_when_and_why(desk: Office) -> None:
    changed = await desk.ask(recipient="101")
    await prefer(desk, "100", dm_enabled=False)
    await prefer(desk, "101", dm_enabled=False)
    at_once = await desk.ask()
    await desk.travel(MINUTE)
    await desk.dispatch()

    assert says(await told(desk, at_once)).splitlines()[1] == (
        "suppressed on arrival, dm_disabled: dm_disabled, category_on, address_healthy"
    )
    assert kinds(await told(desk, changed)) == ["asked", "decided", "suppressed"]
    assert says(await told(desk, changed)).endswith("suppressed as it was about accepted for sending: dm_disabled")
    assert (
        notification_status_text((await told(desk, changed)).request, (await told(desk, changed)).now)
        == "suppressed, dm_disabled"
    )


async def test_ends_that_no_attempt_tells_of(desk: Office) -> None:
    soon = await desk.owner.fetchval("select pabal.now() + interval '1 minute'")
    late, off, lost = (
        await desk.ask(expires_at=soon),
        await desk.ask(recipient="101"),
        await desk.ask(recipient="102"),
    )
    async with desk.hub.transaction() as tx:
        await cancel_notification(tx, off, NotificationAccess("hub", all_services=True), HUB_ACTOR)
    await desk.owner.execute("update notification.requests set scheduled_at = 'infinity' where id = $1", late)
    for _ in range(4):  # somebody takes it three times and never comes back; the fourth look gives it up
        async with desk.hub.autocommit() as tx:
            await LANE.claim(tx, 10, MINUTE, "w1")
        await desk.travel(2 * MINUTE)
    async with desk.hub.transaction() as tx:
        await LANE.expire(tx, 10)

    assert kinds(await told(desk, late)) == ["asked", "decided", "expired"]
    assert kinds(await told(desk, off)) == ["asked", "decided", "suppressed", "deed"]
    assert says(await told(desk, off)).endswith("suppressed: cancelled\nnotification.cancelled by hub")
    assert kinds(await told(desk, lost)) == ["asked", "decided", "unknown", "unknown", "unknown", "died"]
    assert says(await told(desk, lost)).endswith("failed, unknown: lease expired")


async def test_how_one_that_waits_stands(desk: Office) -> None:
    later = await desk.ask(scheduled_at=await desk.owner.fetchval("select pabal.now() + interval '1 hour'"))
    due = await desk.ask(recipient="101")
    before = await told(desk, due)
    async with desk.hub.autocommit() as tx:
        [held] = await LANE.claim(tx, 1, MINUTE, "w1")
    planned, taken = await told(desk, later), await told(desk, due)

    assert held.id == due
    assert notification_status_text(before.request, before.now) == "pending, due"
    assert (
        notification_status_text(planned.request, planned.request.scheduled_at - MINUTE) == "pending, due in 1 min 0 s"
    )
    assert taken.request.leased_until is not None
    assert notification_status_text(taken.request, taken.request.leased_until - 20 * SECOND) == (
        "pending, held by w1; the lease ends in 20 s"
    )


async def test_it_is_found_by_the_beginning_of_its_id(desk: Office) -> None:
    request = await desk.ask()
    async with desk.hub.autocommit() as tx:
        assert [*await find_notification_matches(tx, str(request)[:13])] == [request]
        assert await find_notification_matches(tx, "order-77") == {}
        with pytest.raises(NotFound):
            await trace_notification(tx, new_id())


async def test_an_event_tells_the_first_of_many_and_counts_the_rest(desk: Office) -> None:
    event = new_id()
    await prefer(desk, "100", dm_enabled=False)
    requests = [await desk.ask(recipient=str(100 + each), event=event) for each in range(MAX_TRACED_NOTIFICATIONS + 3)]

    found = await made(desk, event, new_id())

    assert {each.state: each.count for each in found.counts} == {
        "pending": MAX_TRACED_NOTIFICATIONS + 2,
        "suppressed": 1,
    }
    assert [each.request.id for each in found.traces] == requests[:MAX_TRACED_NOTIFICATIONS]
    assert await made(desk, new_id()) == EventNotifications([], [])
