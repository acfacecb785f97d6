"""The trace of a notification, and of the notifications an event caused."""

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
from support.dispatch import NotificationHub, has_attempts
from support.fake_discord import FAILURE, FakeDiscord
from support.wait import wait_until

pytestmark = pytest.mark.anyio

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


async def result(notifier: NotificationHub, request: UUID) -> NotificationTrace:
    async with notifier.hub.autocommit() as tx:
        return await trace_notification(tx, request)


def kinds(rows: NotificationTrace) -> list[str]:
    return [moment.kind for moment in rows.entries]


def says(rows: NotificationTrace) -> str:
    return "\n".join(moment.says for moment in rows.entries)


async def created(notifier: NotificationHub, *events: UUID) -> EventNotifications:
    async with notifier.hub.autocommit() as tx:
        return await trace_notifications_of_events(tx, events)


async def prefer(notifier: NotificationHub, person: str, **changes: Any) -> None:
    async with notifier.hub.transaction() as tx:
        await update_preferences(tx, person, PreferencesUpdate(**changes), HUB_ACTOR)


async def test_trace_of_an_emergency_sent_after_retries(notifier: NotificationHub, discord: FakeDiscord) -> None:
    await prefer(notifier, "100", dm_enabled=False)
    discord.dm_channel_of("100")
    discord.script.append(FAILURE)
    request = await notifier.request("antinuke.triggered")
    async with notifier.run_worker():
        await wait_until(lambda: has_attempts(notifier, 1))
        await notifier.travel(MINUTE)
        await wait_until(notifier.is_idle)

    rows = await result(notifier, request)

    [message] = discord.messages
    assert kinds(rows) == ["asked", "decided", "deed", "failed", "sent"]
    assert rows.entries[0].says == "antinuke.triggered for user_dm 100 requested by hub"
    assert rows.entries[1].says == "accepted for sending: emergency, dm_disabled, category_on, address_healthy"
    assert rows.entries[2].says == "preference.overridden (dm_disabled) by hub"
    assert rows.entries[3].says.startswith("attempt 1 by tester failed: ")
    assert rows.entries[4].says == (
        f"attempt 2 by tester succeeded: Discord message {message.id} in channel {discord.dm_channel_of('100')}"
    )
    assert notification_status_text(rows.request, rows.now) == "sent"


async def test_trace_of_a_toast_from_request_to_read(notifier: NotificationHub) -> None:
    request = await notifier.request(channel=NotificationChannel.DASHBOARD_TOAST)
    await notifier.dispatch()
    for mark in (ToastAction.SEEN, ToastAction.READ, ToastAction.ARCHIVE):
        await notifier.travel(MINUTE)
        async with notifier.hub.transaction() as tx:
            await mark_toast(tx, "100", request, mark)

    assert kinds(await result(notifier, request)) == [
        "asked",
        "decided",
        "sent",
        "arrived",
        "seen",
        "shown",
        "archived",
    ]


async def test_trace_of_a_suppressed_notification_has_time_and_reason(notifier: NotificationHub) -> None:
    changed = await notifier.request(recipient="101")
    await prefer(notifier, "100", dm_enabled=False)
    await prefer(notifier, "101", dm_enabled=False)
    at_once = await notifier.request()
    await notifier.travel(MINUTE)
    await notifier.dispatch()

    assert says(await result(notifier, at_once)).splitlines()[1] == (
        "suppressed on arrival, dm_disabled: dm_disabled, category_on, address_healthy"
    )
    assert kinds(await result(notifier, changed)) == ["asked", "decided", "suppressed"]
    assert says(await result(notifier, changed)).endswith("suppressed before sending: dm_disabled")
    assert (
        notification_status_text((await result(notifier, changed)).request, (await result(notifier, changed)).now)
        == "suppressed, dm_disabled"
    )


async def test_trace_of_ends_without_an_attempt(notifier: NotificationHub) -> None:
    soon = await notifier.owner.fetchval("select pabal.now() + interval '1 minute'")
    late, off, lost = (
        await notifier.request(expires_at=soon),
        await notifier.request(recipient="101"),
        await notifier.request(recipient="102"),
    )
    async with notifier.hub.transaction() as tx:
        await cancel_notification(tx, off, NotificationAccess("hub", all_services=True), HUB_ACTOR)
    await notifier.owner.execute("update notification.requests set scheduled_at = 'infinity' where id = $1", late)
    for _ in range(4):  # three workers disappear; the fourth claim fails it
        async with notifier.hub.autocommit() as tx:
            await LANE.claim(tx, 10, MINUTE, "w1")
        await notifier.travel(2 * MINUTE)
    async with notifier.hub.transaction() as tx:
        await LANE.expire(tx, 10)

    assert kinds(await result(notifier, late)) == ["asked", "decided", "expired"]
    assert kinds(await result(notifier, off)) == ["asked", "decided", "suppressed", "deed"]
    assert says(await result(notifier, off)).endswith("suppressed: cancelled\nnotification.cancelled by hub")
    assert kinds(await result(notifier, lost)) == ["asked", "decided", "unknown", "unknown", "unknown", "died"]
    assert says(await result(notifier, lost)).endswith("failed, unknown: lease expired")


async def test_trace_of_a_pending_notification(notifier: NotificationHub) -> None:
    later = await notifier.request(scheduled_at=await notifier.owner.fetchval("select pabal.now() + interval '1 hour'"))
    due = await notifier.request(recipient="101")
    before = await result(notifier, due)
    async with notifier.hub.autocommit() as tx:
        [held] = await LANE.claim(tx, 1, MINUTE, "w1")
    planned, collect_changes = await result(notifier, later), await result(notifier, due)

    assert held.id == due
    assert notification_status_text(before.request, before.now) == "pending, due"
    assert (
        notification_status_text(planned.request, planned.request.scheduled_at - MINUTE) == "pending, due in 1 min 0 s"
    )
    assert collect_changes.request.leased_until is not None
    assert notification_status_text(collect_changes.request, collect_changes.request.leased_until - 20 * SECOND) == (
        "pending, held by w1; the lease ends in 20 s"
    )


async def test_a_notification_is_found_by_a_prefix_of_its_id(notifier: NotificationHub) -> None:
    request = await notifier.request()
    async with notifier.hub.autocommit() as tx:
        assert [*await find_notification_matches(tx, str(request)[:13])] == [request]
        assert await find_notification_matches(tx, "order-77") == {}
        with pytest.raises(NotFound):
            await trace_notification(tx, new_id())


async def test_trace_of_an_event_lists_the_first_notifications_and_counts_the_rest(notifier: NotificationHub) -> None:
    event = new_id()
    await prefer(notifier, "100", dm_enabled=False)
    requests = [
        await notifier.request(recipient=str(100 + item), event=event) for item in range(MAX_TRACED_NOTIFICATIONS + 3)
    ]

    rows = await created(notifier, event, new_id())

    assert {item.state: item.count for item in rows.counts} == {
        "pending": MAX_TRACED_NOTIFICATIONS + 2,
        "suppressed": 1,
    }
    assert [item.request.id for item in rows.traces] == requests[:MAX_TRACED_NOTIFICATIONS]
    assert await created(notifier, new_id()) == EventNotifications([], [])
