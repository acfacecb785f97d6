"""A hub without a Discord token: nothing is marked as sent."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from structlog.testing import capture_logs

from pabal.console.overview import find_issues, read_overview
from pabal.core.actor import HUB_ACTOR
from pabal.core.errors import Conflict
from pabal.doctor.doctor import run_checks
from pabal.hub import DatabaseUrls
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.notifications import NotificationAccess
from pabal.notifications.people.tokens import exchange_person_link, find_person_by_token, issue_person_link
from pabal.settings import Settings
from pabal.trace.explain_notification import explain_notification
from support.dispatch import AUDIT, NotificationHub, open_notification_hub, run_chores
from support.fake_discord import FakeDiscord
from support.lane_under_test import Travel
from support.wait import wait_until

pytestmark = pytest.mark.anyio

OPERATOR = NotificationAccess("hub", all_services=True)
DEAD_LETTERS = {"count": 12, "service": "shop", "error": "no"}


@pytest.fixture
async def tokenless(
    settings: Settings, database_urls: DatabaseUrls, discord: FakeDiscord, travel: Travel
) -> AsyncGenerator[NotificationHub]:
    async with open_notification_hub(
        settings, database_urls, discord, travel, discord_token="", operator_channel=AUDIT
    ) as opened:
        yield opened


async def request_important(notifier: NotificationHub) -> Any:
    return await notifier.request(
        "system.dead_letters", AUDIT, channel=NotificationChannel.GUILD_AUDIT_CHANNEL, payload=DEAD_LETTERS
    )


async def explanation(notifier: NotificationHub, request: Any) -> list[str]:
    async with notifier.hub.autocommit() as tx:
        return [line.says for line in (await explain_notification(tx, request, OPERATOR, "en", str)).lines]


async def doctor_finding(notifier: NotificationHub, database_urls: DatabaseUrls) -> str:
    findings = await run_checks(notifier.hub.settings, database_urls)
    [finding] = [finding for finding in findings if finding.what == "discord"]
    return f"{finding.level} {finding.seen}"


async def test_a_link_request_names_the_missing_token_and_counts_for_no_limit(tokenless: NotificationHub) -> None:
    user = await tokenless.owner.fetchval("insert into identity.users default values returning id")
    async with tokenless.hub.transaction() as tx:
        cookie = await exchange_person_link(tx, (await issue_person_link(tx, str(user), HUB_ACTOR)).token)
        assert cookie
        person = await find_person_by_token(tx, cookie, "cookie")

    for _ in range(4):  # one more than the limit of an account
        with pytest.raises(Conflict, match="this hub has no Discord token"):
            await tokenless.hub.link_requester.request_link(person, "80351110224678912", "en")


async def test_a_normal_notification_is_suppressed_and_explained(
    tokenless: NotificationHub, database_urls: DatabaseUrls
) -> None:
    before = await doctor_finding(tokenless, database_urls)
    request = await tokenless.request()
    await tokenless.dispatch()

    assert await tokenless.state(request) == ("suppressed", "no_transport", 0)
    assert "Not sent: this hub has no Discord token." in await explanation(tokenless, request)
    assert "no notification needed one" in before
    assert "suppressed in the last day: 1" in await doctor_finding(tokenless, database_urls)
    issues = find_issues(await read_overview(tokenless.hub))
    assert "overview.issue.no_transport.suppressed" in [issue.text_id for issue in issues]


async def test_important_notifications_and_emergencies_wait_for_the_token(
    tokenless: NotificationHub, settings: Settings, database_urls: DatabaseUrls, discord: FakeDiscord, travel: Travel
) -> None:
    requests = [await request_important(tokenless), await tokenless.request("antinuke.triggered")]
    normal = await tokenless.request()

    async def normal_has_ended() -> bool:
        return (await tokenless.state(normal))[0] != "pending"

    async with tokenless.run_worker():
        await wait_until(normal_has_ended)
    with capture_logs() as logs:
        await run_chores(tokenless, "alert missing token")

    for request in requests:
        assert await tokenless.state(request) == ("pending", None, 0)
        assert "Waits for a Discord token" in " ".join(await explanation(tokenless, request))
    [alert] = [entry for entry in logs if entry["event"] == "operator alert"]
    assert (alert["template"], alert["count"]) == ("system.no_transport", 2)
    assert "notifications waiting: 2" in await doctor_finding(tokenless, database_urls)
    issues = find_issues(await read_overview(tokenless.hub))
    assert "overview.issue.no_transport.waiting" in [issue.text_id for issue in issues]
    discord.guild.add(AUDIT)
    async with open_notification_hub(settings, database_urls, discord, travel) as notifier:
        await notifier.dispatch()
        assert [(await notifier.state(request))[0] for request in requests] == ["sent", "sent"]


async def test_toasts_need_no_token(tokenless: NotificationHub) -> None:
    request = await tokenless.request(channel=NotificationChannel.DASHBOARD_TOAST)
    await tokenless.dispatch()

    assert (await tokenless.state(request))[0] == "sent"
