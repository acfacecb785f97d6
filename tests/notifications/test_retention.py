"""What ended is kept for ninety days and goes with all that belongs to it; what has not ended is never deleted."""

from datetime import timedelta
from uuid import UUID

import pytest

from pabal.notifications.decision.decide import NotificationChannel
from pabal.settings import Settings
from support.dispatch import Office, chore, now
from support.fake_discord import Discord

pytestmark = pytest.mark.anyio

DAY = timedelta(days=1)
PURGE = "purge notifications"


async def left(desk: Office) -> set[UUID]:
    return {row["id"] for row in await desk.owner.fetch("select id from notification.requests")}


async def test_ninety_days_after_the_end_it_goes(desk: Office, there: Discord) -> None:
    assert Settings.model_fields["keep_notifications"].default == 90 * DAY
    there.closed.add("101")
    sent, failed = await desk.ask(), await desk.ask(recipient="101")
    toast = await desk.ask(channel=NotificationChannel.DASHBOARD_TOAST)
    planned = await desk.ask(scheduled_at=await now(desk) + 365 * DAY)
    await desk.dispatch()
    await desk.owner.execute("update notification.requests set scheduled_at = 'infinity' where id = $1", planned)
    old = await desk.ask(recipient="102", scheduled_at=await now(desk) + 60 * DAY)

    await desk.travel(89 * DAY + 23 * timedelta(hours=1))
    await chore(desk, PURGE)
    assert await left(desk) == {sent, failed, toast, planned, old}
    await desk.dispatch()

    await desk.travel(timedelta(hours=2))
    await chore(desk, PURGE)
    assert await left(desk) == {planned, old}, "asked for as long ago, and ended since or not at all"
    assert await desk.owner.fetchval("select count(*) from notification.toasts") == 0
    assert await desk.attempts(old) == [("done", 1)]
    assert await desk.owner.fetchval("select count(*) from notification.attempts") == 1
