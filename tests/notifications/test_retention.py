"""Notifications are purged 90 days after they ended, never before they end."""

from datetime import timedelta
from uuid import UUID

import pytest

from pabal.notifications.decision.decide import NotificationChannel
from pabal.settings import Settings
from support.dispatch import NotificationHub, database_time, run_chores
from support.fake_discord import FakeDiscord

pytestmark = pytest.mark.anyio

DAY = timedelta(days=1)
PURGE = "purge notifications"


async def remaining(notifier: NotificationHub) -> set[UUID]:
    return {row["id"] for row in await notifier.owner.fetch("select id from notification.requests")}


async def test_notifications_are_purged_ninety_days_after_they_ended(
    notifier: NotificationHub, discord: FakeDiscord
) -> None:
    assert Settings.model_fields["keep_notifications"].default == 90 * DAY
    discord.closed_dms.add("101")
    sent, failed = await notifier.request(), await notifier.request(recipient="101")
    toast = await notifier.request(channel=NotificationChannel.DASHBOARD_TOAST)
    never_due = await notifier.request(scheduled_at=await database_time(notifier) + 365 * DAY)
    await notifier.dispatch()
    await notifier.owner.execute("update notification.requests set scheduled_at = 'infinity' where id = $1", never_due)
    ended_later = await notifier.request(recipient="102", scheduled_at=await database_time(notifier) + 60 * DAY)

    await notifier.travel(89 * DAY + 23 * timedelta(hours=1))
    await run_chores(notifier, PURGE)
    assert await remaining(notifier) == {sent, failed, toast, never_due, ended_later}
    await notifier.dispatch()

    await notifier.travel(timedelta(hours=2))
    await run_chores(notifier, PURGE)
    assert await remaining(notifier) == {never_due, ended_later}, "requested as long ago, but ended later or not at all"
    assert await notifier.owner.fetchval("select count(*) from notification.toasts") == 0
    assert await notifier.attempts(ended_later) == [("done", 1)]
    assert await notifier.owner.fetchval("select count(*) from notification.attempts") == 1
