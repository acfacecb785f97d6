"""A notification that failed, in the console: an admin sends it again, and each says what became of the other."""

from uuid import UUID

import pytest

from pabal.hub import DatabaseUrls, Hub
from support.notifications import draft_notification as notice
from support.notifications import list_all_notifications as every
from support.notifications import register_builtin_templates as registered
from support.notifications import request_drafts as asked
from support.notifications import sql
from support.operator import Signed

pytestmark = pytest.mark.anyio

ROOM = "/console/notifications"
FAILED = "update notification.requests set state = 'failed', last_error = 'no' where id = $1 returning 1"


@pytest.fixture
async def room(hub: Hub) -> Hub:
    return await registered(hub)


@pytest.fixture
async def failed(room: Hub, database_urls: DatabaseUrls) -> UUID:
    [one] = await asked(room, notice(room))
    await sql(database_urls, FAILED, one.id)
    return one.id


async def test_it_is_sent_again_and_both_know_of_each_other(
    room: Hub, database_urls: DatabaseUrls, admin: Signed, failed: UUID
) -> None:
    before = (await admin.get(f"{ROOM}/{failed}")).text
    done = await admin.post(f"{ROOM}/{failed}/again")
    [second] = [each for each in await every(room) if each.id != failed]

    assert f"{ROOM}/{failed}/again" in before
    assert (done.status_code, done.headers["location"]) == (303, f"{ROOM}/{second.id}")
    assert (second.state, second.again_of, second.requested_by) == ("pending", failed, "operator:the-admin")
    first_page, second_page = await admin.get(f"{ROOM}/{failed}"), await admin.get(f"{ROOM}/{second.id}")
    assert f'href="{ROOM}/{second.id}"' in first_page.text
    assert f'href="{ROOM}/{failed}"' in second_page.text
    assert f"{ROOM}/{failed}/again" not in first_page.text, "it is on its way"
    assert "Requested by the-admin in the console." in second_page.text
    assert "실패한 알림" in (await admin.get(f"{ROOM}/{second.id}", "ko")).text
    actor = "select actor from pabal.audit_log where action = 'notification.again' and subject = $1"
    assert await sql(database_urls, actor, str(failed)) == "operator:the-admin"


async def test_nobody_but_an_admin_with_a_form_of_ours_sends_anything(
    room: Hub, admin: Signed, viewer: Signed, failed: UUID
) -> None:
    path = f"{ROOM}/{failed}/again"

    assert (await viewer.post(path)).status_code == 403
    assert (await admin.post(path, csrf_token="ff")).status_code == 403
    assert path not in (await viewer.get(f"{ROOM}/{failed}")).text
    assert len(await every(room)) == 1


async def test_what_cannot_be_sent_again_says_why(room: Hub, admin: Signed, failed: UUID) -> None:
    await admin.post(f"{ROOM}/{failed}/again")
    [second] = [each for each in await every(room) if each.id != failed]

    for row, why in ((failed, f"already sent again as {second.id}"), (second.id, "it is pending")):
        refused = await admin.post(f"{ROOM}/{row}/again")
        assert refused.status_code == 409
        assert why in refused.text
    assert len(await every(room)) == 2
