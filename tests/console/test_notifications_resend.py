"""Resending a failed notification."""

from uuid import UUID

import pytest

from pabal.hub import DatabaseUrls, Hub
from support.notifications import (
    draft_notification,
    list_all_notifications,
    register_builtin_templates,
    request_drafts,
    sql,
)
from support.operator import SignedInOperator

pytestmark = pytest.mark.anyio

NOTIFICATIONS_PATH = "/console/notifications"
FAILED = "update notification.requests set state = 'failed', last_error = 'no' where id = $1 returning 1"


@pytest.fixture
async def notifications_hub(hub: Hub) -> Hub:
    return await register_builtin_templates(hub)


@pytest.fixture
async def failed_notification(notifications_hub: Hub, database_urls: DatabaseUrls) -> UUID:
    [one] = await request_drafts(notifications_hub, draft_notification(notifications_hub))
    await sql(database_urls, FAILED, one.id)
    return one.id


async def test_a_resent_notification_and_its_original_link_to_each_other(
    notifications_hub: Hub, database_urls: DatabaseUrls, admin: SignedInOperator, failed_notification: UUID
) -> None:
    before = (await admin.get(f"{NOTIFICATIONS_PATH}/{failed_notification}")).text
    done = await admin.post(f"{NOTIFICATIONS_PATH}/{failed_notification}/again")
    [second] = [row for row in await list_all_notifications(notifications_hub) if row.id != failed_notification]

    assert f"{NOTIFICATIONS_PATH}/{failed_notification}/again" in before
    assert (done.status_code, done.headers["location"]) == (303, f"{NOTIFICATIONS_PATH}/{second.id}")
    assert (second.state, second.again_of, second.requested_by) == (
        "pending",
        failed_notification,
        "operator:the-admin",
    )
    first_page, second_page = (
        await admin.get(f"{NOTIFICATIONS_PATH}/{failed_notification}"),
        await admin.get(f"{NOTIFICATIONS_PATH}/{second.id}"),
    )
    assert f'href="{NOTIFICATIONS_PATH}/{second.id}"' in first_page.text
    assert f'href="{NOTIFICATIONS_PATH}/{failed_notification}"' in second_page.text
    assert f"{NOTIFICATIONS_PATH}/{failed_notification}/again" not in first_page.text, "it is on its way"
    assert "Requested by the-admin in the console." in second_page.text
    assert "실패한 알림" in (await admin.get(f"{NOTIFICATIONS_PATH}/{second.id}", "ko")).text
    actor = "select actor from pabal.audit_log where action = 'notification.again' and subject = $1"
    assert await sql(database_urls, actor, str(failed_notification)) == "operator:the-admin"


async def test_resending_requires_an_admin_and_a_csrf_token(
    notifications_hub: Hub, admin: SignedInOperator, viewer: SignedInOperator, failed_notification: UUID
) -> None:
    path = f"{NOTIFICATIONS_PATH}/{failed_notification}/again"

    assert (await viewer.post(path)).status_code == 403
    assert (await admin.post(path, csrf_token="ff")).status_code == 403
    assert path not in (await viewer.get(f"{NOTIFICATIONS_PATH}/{failed_notification}")).text
    assert len(await list_all_notifications(notifications_hub)) == 1


async def test_a_notification_that_cannot_be_resent_says_why(
    notifications_hub: Hub, admin: SignedInOperator, failed_notification: UUID
) -> None:
    await admin.post(f"{NOTIFICATIONS_PATH}/{failed_notification}/again")
    [second] = [row for row in await list_all_notifications(notifications_hub) if row.id != failed_notification]

    for row, why in ((failed_notification, f"already sent again as {second.id}"), (second.id, "it is pending")):
        refused = await admin.post(f"{NOTIFICATIONS_PATH}/{row}/again")
        assert refused.status_code == 409
        assert why in refused.text
    assert len(await list_all_notifications(notifications_hub)) == 2
