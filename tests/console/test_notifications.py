"""Notifications: the log, a notification, templates, rules and addresses, for viewers and admins."""

import re
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from markupsafe import Markup

from pabal.console.notifications.notifications import ExplanationSentence, mark_time, render_explanation_sentence
from pabal.hub import DatabaseUrls, Hub
from pabal.notifications.dispatch.addresses import mark_address_unhealthy
from pabal.notifications.notifications import NotificationFilter, scan_notification_summaries
from pabal.notifications.people.preferences import PreferencesUpdate, update_preferences
from pabal.notifications.rules.rules import Rule, list_rules
from pabal.notifications.states import NotificationState
from pabal.trace.explain_notification import ExplanationLine
from support.notifications import draft_notification, load_notification, register_builtin_templates, request_drafts, sql
from support.operator import HOSTILE, SignedInOperator, is_escaped
from support.rules import TESTER, add_test_rule

pytestmark = pytest.mark.anyio

NOTIFICATIONS_PATH = "/console/notifications"
RULES = f"{NOTIFICATIONS_PATH}/rules"
NEW: dict[str, Any] = {
    "name": "Restores",
    "event_pattern": "restore.*",
    "template_key": "restore.completed",
    "recipients": "owner.discord_id helpers.discord_id",
    "channels": "user_dm",
    "variables": "guild=server.name\nfailed=lost",
    "guild_path": "",
    "incident_path": "job",
    "expires_after": "2h",
    "is_active": "on",
}
TRIED = """
insert into notification.attempts (request_id, lease, attempt, worker, outcome, why, started_at, ended_at)
values ($1, pabal.uuid7(), 1, $2, $3, $4, pabal.now() - interval '3 seconds', pabal.now())
returning 1
"""


@pytest.fixture
async def notifications_hub(hub: Hub) -> Hub:
    return await register_builtin_templates(hub)


async def request_one(hub: Hub, key: str = "payment.succeeded", **fields: Any) -> UUID:
    [one] = await request_drafts(hub, draft_notification(hub, key, **fields))
    return one.id


async def rules_of(hub: Hub) -> list[Rule]:
    async with hub.autocommit() as tx:
        return await list_rules(tx)


async def list_actors(database_urls: DatabaseUrls, action: str) -> list[str]:
    """Return the actors of this action, oldest first."""
    return (
        await sql(database_urls, "select array_agg(actor order by id) from pabal.audit_log where action = $1", action)
        or []
    )


async def test_the_notification_log_shows_states_and_is_filtered_by_the_query_string(
    notifications_hub: Hub, admin: SignedInOperator
) -> None:
    async with notifications_hub.transaction() as tx:
        await update_preferences(tx, "200", PreferencesUpdate(dm_enabled=False), TESTER)
    waits = await request_one(notifications_hub)
    held = await request_one(notifications_hub, recipient="200")
    urgent = await request_one(notifications_hub, "antinuke.triggered")

    whole = (await admin.get(NOTIFICATIONS_PATH)).text
    assert "DMs turned off" in whole
    assert whole.count('class="tag is-emergency"') == 1
    for query, ids in (
        ("", {waits, held, urgent}),
        ("state=unknown", {waits, held, urgent}),
        ("state=suppressed", {held}),
        ("recipient=200", {held}),
        ("template=antinuke.triggered", {urgent}),
        ("state=pending&template=payment.succeeded", {waits}),
    ):
        page = (await admin.get(f"{NOTIFICATIONS_PATH}?{query}")).text
        assert sorted(re.findall(rf"{NOTIFICATIONS_PATH}/([0-9a-f-]{{36}})\"", page)) == sorted(map(str, ids)), query
    assert "No notifications match these filters." in (await admin.get(f"{NOTIFICATIONS_PATH}?recipient=999")).text
    assert "조건에 맞는 알림이 없습니다." in (await admin.get(f"{NOTIFICATIONS_PATH}?recipient=999", "ko")).text


@pytest.mark.parametrize("query", ["", "?state=pending", "?recipient=100", "?state=pending&template=payment.succeeded"])
async def test_the_notification_log_is_paginated(notifications_hub: Hub, admin: SignedInOperator, query: str) -> None:
    request_ids = [
        row.id
        for row in await request_drafts(notifications_hub, *(draft_notification(notifications_hub) for _ in range(105)))
    ]
    ids: list[UUID] = []
    path: str | None = NOTIFICATIONS_PATH + query
    while path:
        page = (await admin.get(path)).text
        ids += map(UUID, re.findall(rf"{NOTIFICATIONS_PATH}/([0-9a-f-]{{36}})\"", page))
        assert ("data-live" in page) == ("cursor" not in path)
        older = re.search(r'href="([^"]+)" rel="next"', page)
        path = older[1].replace("&amp;", "&") if older else None

    assert len(ids) == len({*ids}) == 105
    assert {*ids} == {*request_ids}
    assert (await admin.get(f"{NOTIFICATIONS_PATH}?cursor=nonsense")).status_code == 400


async def test_a_notification_explains_its_state_in_the_language_of_the_page(
    notifications_hub: Hub, admin: SignedInOperator
) -> None:
    async with notifications_hub.transaction() as tx:
        await update_preferences(tx, "100", PreferencesUpdate(payment_notifications=False, locale="ko"), TESTER)
    row = await request_one(notifications_hub)

    english, korean = (
        await admin.get(f"{NOTIFICATIONS_PATH}/{row}"),
        await admin.get(f"{NOTIFICATIONS_PATH}/{row}", "ko"),
    )

    assert "Not sent: notifications for payment are off." in english.text
    assert "보내지 않았습니다. 결제 알림이 꺼져 있습니다." in korean.text
    for page in (english, korean):
        assert "**Nitro** 결제가 완료됐어요." in page.text  # in the language of the recipient, not of the operator
        assert "/console/trace?id=" + str(row) in page.text
    assert "Cancel notification" not in english.text


async def test_secrets_of_a_payload_are_redacted_in_its_text_too(
    notifications_hub: Hub, database_urls: DatabaseUrls, admin: SignedInOperator
) -> None:
    row = await request_one(notifications_hub)
    await sql(
        database_urls, 'update notification.requests set payload = payload || \'{"card_no": "4111 1111"}\' returning 1'
    )
    assert "4111 1111" not in (await admin.get(f"{NOTIFICATIONS_PATH}/{row}")).text

    await sql(database_urls, 'update notification.requests set payload = \'{"item": "lonely"}\' returning 1')
    page = (await admin.get(f"{NOTIFICATIONS_PATH}/{row}")).text
    assert "This notification cannot be rendered." in page
    assert "payload.amount" in page


def test_only_valid_timestamps_in_a_text_become_times() -> None:
    at = datetime(2026, 11, 16, 8, 10, 10, tzinfo=UTC)
    line = ExplanationLine("ended", f"<b>It was sent at {mark_time(at)}.", at)
    assert render_explanation_sentence(line) == ExplanationSentence(
        Markup(
            '&lt;b&gt;It was sent at <time datetime="2026-11-16T08:10:10+00:00" data-local-time>'
            "2026-11-16 08:10:10 UTC</time>."
        ),
        None,
    )
    assert render_explanation_sentence(ExplanationLine("ended", "It is gone.", at)) == ExplanationSentence(
        Markup("It is gone."), at
    )
    forged = "\ue0002026-13-32T99:99:99+00:00\ue001"
    assert "<time" not in render_explanation_sentence(ExplanationLine("attempt", forged, at)).text


async def test_attempts_are_listed_with_their_outcomes(
    notifications_hub: Hub, database_urls: DatabaseUrls, admin: SignedInOperator
) -> None:
    row = await request_one(notifications_hub)
    assert "No attempts yet" in (await admin.get(f"{NOTIFICATIONS_PATH}/{row}")).text
    await sql(database_urls, TRIED, row, "dispatch:here", "retry", "Discord answered 503")

    page = (await admin.get(f"{NOTIFICATIONS_PATH}/{row}")).text
    assert "dispatch:here" in page
    assert "Discord answered 503" in page
    assert "3.0 s" in page


async def test_only_an_admin_can_cancel_a_notification(
    notifications_hub: Hub, database_urls: DatabaseUrls, admin: SignedInOperator, viewer: SignedInOperator
) -> None:
    row = await request_one(notifications_hub)
    assert "Cancel notification" in (await admin.get(f"{NOTIFICATIONS_PATH}/{row}")).text
    assert "Cancel notification" not in (await viewer.get(f"{NOTIFICATIONS_PATH}/{row}")).text
    assert (await viewer.post(f"{NOTIFICATIONS_PATH}/{row}/cancel")).status_code == 403
    assert (await admin.post(f"{NOTIFICATIONS_PATH}/{row}/cancel", csrf_token="00")).status_code == 403
    assert (await load_notification(notifications_hub, row)).state == "pending"

    done = await admin.post(f"{NOTIFICATIONS_PATH}/{row}/cancel")

    assert (done.status_code, done.headers["location"]) == (303, f"{NOTIFICATIONS_PATH}/{row}")
    assert (await load_notification(notifications_hub, row)).reason == "cancelled"
    assert await list_actors(database_urls, "notification.cancelled") == ["operator:the-admin"]
    assert (await admin.post(f"{NOTIFICATIONS_PATH}/{row}/cancel")).status_code == 409


@pytest.mark.parametrize("path", [f"/{UUID(int=7)}", "/nonsense", f"/rules/{UUID(int=7)}", "/templates/no.such"])
async def test_a_missing_row_is_not_found(notifications_hub: Hub, admin: SignedInOperator, path: str) -> None:
    assert (await admin.get(NOTIFICATIONS_PATH + path)).status_code == 404


async def test_a_template_is_previewed_for_every_channel_and_language(
    notifications_hub: Hub, admin: SignedInOperator
) -> None:
    listed = (await admin.get(f"{NOTIFICATIONS_PATH}/templates")).text
    assert all(f"/templates/{template.key}" in listed for template in notifications_hub.templates.all())

    page = (await admin.get(f"{NOTIFICATIONS_PATH}/templates/payment.succeeded")).text
    assert page.count('class="card preview"') == 4
    assert "12,900" in page

    sample = '{"item":"떡 한 접시","amount":7000,"currency":"KRW"}'
    own = await admin.get(f"{NOTIFICATIONS_PATH}/templates/payment.succeeded?payload={sample}")
    assert own.text.count("떡 한 접시") == 5  # the input itself and four rendered texts
    assert "7,000" in own.text


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ('{"item":"x","amount":"much","currency":"KRW"}', "payload.amount"),
        ("{}", "payload.currency"),
        ("{", "This is not a JSON object."),
        ("[1]", "This is not a JSON object."),
        ("", "This is not a JSON object."),
    ],
)
async def test_an_invalid_sample_shows_its_field_errors(
    notifications_hub: Hub, admin: SignedInOperator, payload: str, says: str
) -> None:
    page = await admin.get(f"{NOTIFICATIONS_PATH}/templates/payment.succeeded?payload={payload}")

    assert page.status_code == 400
    assert says in page.text
    assert 'class="card preview"' not in page.text


async def test_a_rule_is_added_edited_disabled_and_deleted(
    notifications_hub: Hub, database_urls: DatabaseUrls, admin: SignedInOperator
) -> None:
    added = await admin.post(RULES, **NEW)
    assert (added.status_code, added.headers["location"]) == (303, RULES)
    [rule] = await rules_of(notifications_hub)
    assert (rule.name, rule.event_pattern, [*rule.recipients]) == (
        "Restores",
        "restore.*",
        ["owner.discord_id", "helpers.discord_id"],
    )
    assert (dict(rule.variables), rule.incident_path, rule.is_active) == (
        {"guild": "server.name", "failed": "lost"},
        "job",
        True,
    )
    listed = (await admin.get(RULES)).text
    assert "When restore.* arrives, send restore.completed to the payload's owner.discord_id" in re.sub(
        r"<[^>]+>", "", listed
    )

    form = (await admin.get(f"{RULES}/{rule.id}")).text
    assert 'value="owner.discord_id helpers.discord_id"' in form
    assert 'value="2h"' in form
    await admin.post(f"{RULES}/{rule.id}", **NEW | {"name": "Restores too"})
    assert [rule.name for rule in await rules_of(notifications_hub)] == ["Restores too"]
    changed = "select details->'fields' from pabal.audit_log where action = 'rule.changed'"
    assert await sql(database_urls, changed) == '["name"]'

    await admin.post(f"{RULES}/{rule.id}/off")
    assert [rule.is_active for rule in await rules_of(notifications_hub)] == [False]
    await admin.post(f"{RULES}/{rule.id}/on")
    assert [rule.is_active for rule in await rules_of(notifications_hub)] == [True]

    asks = await admin.post(f"{RULES}/{rule.id}/remove")
    assert "will be removed. Notifications it already requested are still sent." in asks.text
    assert len(await rules_of(notifications_hub)) == 1
    await admin.post(f"{RULES}/{rule.id}/remove", count="1")
    assert await rules_of(notifications_hub) == []
    assert await list_actors(database_urls, "rule.added") == ["operator:the-admin"]
    assert await list_actors(database_urls, "rule.changed") == ["operator:the-admin"] * 3
    assert await list_actors(database_urls, "rule.removed") == ["operator:the-admin"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"name": " "}, "must have 1 to 100 characters"),
        ({"event_pattern": "Order Paid"}, "must be a pattern such as"),
        ({"template_key": "no.such"}, "no such template: no.such"),
        ({"recipients": ""}, "must be 1 to 20 paths"),
        ({"recipients": "owner..id"}, "recipients[0]: must be a path"),
        ({"channels": "telegram"}, "must be one or more, without duplicates"),
        ({"variables": "guild"}, "guild is not NAME=PATH"),
        ({"variables": "color=x"}, "variables.color: is not a variable of"),
        ({"expires_after": "soon"}, "must be a duration such as"),
        ({"expires_after": "9999d"}, "must be at most a year"),
        ({"expires_after": "0s"}, "must be positive"),
    ],
)
async def test_an_invalid_rule_shows_field_errors_and_keeps_the_input(
    notifications_hub: Hub, admin: SignedInOperator, wrong: dict[str, str], says: str
) -> None:
    response = await admin.post(RULES, **NEW | wrong)

    assert response.status_code == 400
    [field] = wrong
    assert re.search(rf'id="about-{field}"><span class="bad" lang="en">[^<]*{re.escape(says)}', response.text)
    assert "job" in response.text
    assert await rules_of(notifications_hub) == []


async def test_a_second_rule_with_the_same_name_is_refused(notifications_hub: Hub, admin: SignedInOperator) -> None:
    await add_test_rule(notifications_hub, name="Restores")
    response = await admin.post(RULES, **NEW)

    assert response.status_code == 409
    assert "name: rule Restores already exists" in response.text


async def test_a_viewer_can_read_and_not_change_rules(
    notifications_hub: Hub, viewer: SignedInOperator, admin: SignedInOperator
) -> None:
    rule = await add_test_rule(notifications_hub)
    page = await viewer.get(f"{RULES}/{rule.id}")
    assert "<fieldset disabled>" in page.text
    assert "Remove" not in (await viewer.get(RULES)).text

    for path in ("", f"/{rule.id}", f"/{rule.id}/off", f"/{rule.id}/on", f"/{rule.id}/remove"):
        assert (await viewer.post(RULES + path, **NEW, count="1")).status_code == 403
        assert (await admin.post(RULES + path, **NEW, count="1", csrf_token="00")).status_code == 403
    assert await rules_of(notifications_hub) == [rule]


async def test_a_failing_address_is_listed_and_reset_by_an_admin(
    notifications_hub: Hub, database_urls: DatabaseUrls, admin: SignedInOperator, viewer: SignedInOperator
) -> None:
    assert "No blocked addresses." in (await admin.get(f"{NOTIFICATIONS_PATH}/addresses")).text
    row = await request_one(notifications_hub)
    async with notifications_hub.transaction() as tx:
        await mark_address_unhealthy(tx, row, "Discord answered 403 (50007)")
    assert "Discord answered 403 (50007)" in (await viewer.get(f"{NOTIFICATIONS_PATH}/addresses")).text
    address = {"channel": "user_dm", "recipient": "100"}
    assert (await viewer.post(f"{NOTIFICATIONS_PATH}/addresses/heal", **address)).status_code == 403
    assert (
        await admin.post(f"{NOTIFICATIONS_PATH}/addresses/heal", **address | {"channel": "pigeon"})
    ).status_code == 404

    assert (await admin.post(f"{NOTIFICATIONS_PATH}/addresses/heal", **address)).status_code == 303
    assert "No blocked addresses." in (await admin.get(f"{NOTIFICATIONS_PATH}/addresses")).text
    assert await list_actors(database_urls, "address.healed") == ["operator:the-admin"]
    assert (await admin.post(f"{NOTIFICATIONS_PATH}/addresses/heal", **address)).status_code == 404


async def test_hostile_values_are_escaped_everywhere(
    notifications_hub: Hub, database_urls: DatabaseUrls, admin: SignedInOperator
) -> None:
    rule = await add_test_rule(notifications_hub, name=HOSTILE)
    row = await request_one(notifications_hub, payload={"item": HOSTILE, "amount": 1, "currency": HOSTILE})
    await sql(
        database_urls,
        "update notification.requests set requested_by = $1, incident = $1, correlation_id = $1, last_error = $1, "
        "rule_id = $2, event_id = id, state = 'failed', reason = 'exhausted', ended_at = pabal.now() returning 1",
        HOSTILE,
        rule.id,
    )
    await sql(database_urls, TRIED, row, HOSTILE, "dead", HOSTILE)
    async with notifications_hub.transaction() as tx:
        await mark_address_unhealthy(tx, row, HOSTILE)

    for path in ("", f"/{row}", "/rules", f"/rules/{rule.id}", "/addresses"):
        page = await admin.get(NOTIFICATIONS_PATH + path)
        assert page.status_code == 200
        assert is_escaped(page)
        assert ("alert(1)" in page.text) == (path != ""), path
    for query in ("recipient", "template", "state"):
        assert is_escaped(await admin.get(f"{NOTIFICATIONS_PATH}?{query}={HOSTILE}"))
    preview = await admin.get(f"{NOTIFICATIONS_PATH}/templates/payment.succeeded?payload={HOSTILE}")
    assert is_escaped(preview)
    assert is_escaped(await admin.post(RULES, **dict.fromkeys(NEW, HOSTILE)))


@pytest.mark.parametrize("state", [None, "pending"])
@pytest.mark.parametrize("recipient", [None, "100"])
async def test_a_search_for_a_rare_notification_stops_and_can_be_continued(
    notifications_hub: Hub, state: NotificationState | None, recipient: str | None
) -> None:
    rare = await request_one(notifications_hub, "antinuke.triggered")
    await request_drafts(notifications_hub, *(draft_notification(notifications_hub) for _ in range(24)))
    which = NotificationFilter(template="antinuke.triggered", state=state, recipient=recipient)
    async with notifications_hub.autocommit() as tx:
        first = await scan_notification_summaries(tx, which, limit=10, scan_limit=10)
        assert (first.rows, first.truncated) == ([], True)
        assert first.end
        second = await scan_notification_summaries(
            tx, which, before=(first.end.created_at, first.end.id), limit=10, scan_limit=10
        )
        assert (second.rows, second.truncated) == ([], True)
        assert second.end
        third = await scan_notification_summaries(
            tx, which, before=(second.end.created_at, second.end.id), limit=10, scan_limit=10
        )

    assert [row.id for row in third.rows] == [rare]
    assert (third.end, third.truncated) == (None, False)
