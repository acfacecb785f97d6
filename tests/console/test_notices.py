"""The notifications room as it is served: the log, one notification, templates, rules, addresses; who may do what."""

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
from pabal.trace.explain_notification import ExplanationLine
from support.notifications import draft_notification as notice
from support.notifications import load_notification as seen
from support.notifications import register_builtin_templates as registered
from support.notifications import request_drafts as asked
from support.notifications import sql
from support.operator import HOSTILE, Signed, unharmed
from support.rules import TESTER
from support.rules import add_test_rule as add

pytestmark = pytest.mark.anyio

ROOM = "/console/notifications"
RULES = f"{ROOM}/rules"
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
async def room(hub: Hub) -> Hub:
    return await registered(hub)


async def ask_one(hub: Hub, key: str = "payment.succeeded", **how: Any) -> UUID:
    [one] = await asked(hub, notice(hub, key, **how))
    return one.id


async def rules_of(hub: Hub) -> list[Rule]:
    async with hub.autocommit() as tx:
        return await list_rules(tx)


async def audited(database_urls: DatabaseUrls, action: str) -> list[str]:
    """Who did this, each time it was done."""
    return (
        await sql(database_urls, "select array_agg(actor order by id) from pabal.audit_log where action = $1", action)
        or []
    )


async def test_the_log_says_how_each_stands_and_is_narrowed_by_its_address(room: Hub, admin: Signed) -> None:
    async with room.transaction() as tx:
        await update_preferences(tx, "200", PreferencesUpdate(dm_enabled=False), TESTER)
    waits = await ask_one(room)
    held = await ask_one(room, recipient="200")
    urgent = await ask_one(room, "antinuke.triggered")

    whole = (await admin.get(ROOM)).text
    for row in (waits, held, urgent):
        assert f"{ROOM}/{row}" in whole
    assert "DMs turned off" in whole
    assert whole.count('class="tag is-emergency"') == 1

    for query, found in (
        ("state=suppressed", held),
        ("recipient=200", held),
        ("template=antinuke.triggered", urgent),
        ("state=pending&template=payment.succeeded", waits),
    ):
        narrowed = (await admin.get(f"{ROOM}?{query}")).text
        assert re.findall(rf"{ROOM}/([0-9a-f-]{{36}})\"", narrowed) == [str(found)], query
    assert "No notifications match these filters." in (await admin.get(f"{ROOM}?recipient=999")).text
    assert "조건에 맞는 알림이 없습니다." in (await admin.get(f"{ROOM}?recipient=999", "ko")).text


@pytest.mark.parametrize("query", ["", "?state=pending", "?recipient=100", "?state=pending&template=payment.succeeded"])
async def test_pages_of_the_log_follow_each_other(room: Hub, admin: Signed, query: str) -> None:
    every = [each.id for each in await asked(room, *(notice(room) for _ in range(105)))]
    found: list[UUID] = []
    path: str | None = ROOM + query
    while path:
        page = (await admin.get(path)).text
        found += map(UUID, re.findall(rf"{ROOM}/([0-9a-f-]{{36}})\"", page))
        assert ("data-live" in page) == ("cursor" not in path)
        older = re.search(r'href="([^"]+)" rel="next"', page)
        path = older[1].replace("&amp;", "&") if older else None

    assert len(found) == len({*found}) == 105
    assert {*found} == {*every}
    assert (await admin.get(f"{ROOM}?cursor=nonsense")).status_code == 400


async def test_one_notification_says_why_in_the_language_of_the_page(room: Hub, admin: Signed) -> None:
    async with room.transaction() as tx:
        await update_preferences(tx, "100", PreferencesUpdate(payment_notifications=False, locale="ko"), TESTER)
    row = await ask_one(room)

    english, korean = await admin.get(f"{ROOM}/{row}"), await admin.get(f"{ROOM}/{row}", "ko")

    assert "Not sent: notifications for payment are off." in english.text
    assert "보내지 않았습니다. 결제 알림이 꺼져 있습니다." in korean.text
    for page in (english, korean):
        assert "**Nitro** 결제가 완료됐어요." in page.text  # in the reader's language, whoever looks
        assert "/console/trace?id=" + str(row) in page.text
    assert "Cancel notification" not in english.text


async def test_what_a_payload_hides_is_hidden_in_its_words_too(
    room: Hub, database_urls: DatabaseUrls, admin: Signed
) -> None:
    row = await ask_one(room)
    await sql(
        database_urls, 'update notification.requests set payload = payload || \'{"card_no": "4111 1111"}\' returning 1'
    )
    assert "4111 1111" not in (await admin.get(f"{ROOM}/{row}")).text

    await sql(database_urls, 'update notification.requests set payload = \'{"item": "lonely"}\' returning 1')
    page = (await admin.get(f"{ROOM}/{row}")).text
    assert "This notification cannot be rendered." in page
    assert "payload.amount" in page


def test_a_time_in_a_sentence_is_one_and_what_only_looks_so_is_not() -> None:
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


async def test_attempts_are_listed_with_what_came_of_them(
    room: Hub, database_urls: DatabaseUrls, admin: Signed
) -> None:
    row = await ask_one(room)
    assert "No attempts yet" in (await admin.get(f"{ROOM}/{row}")).text
    await sql(database_urls, TRIED, row, "dispatch:here", "retry", "Discord answered 503")

    page = (await admin.get(f"{ROOM}/{row}")).text
    assert "dispatch:here" in page
    assert "Discord answered 503" in page
    assert "3.0 s" in page


async def test_an_admin_calls_one_off_and_nobody_else_does(
    room: Hub, database_urls: DatabaseUrls, admin: Signed, viewer: Signed
) -> None:
    row = await ask_one(room)
    assert "Cancel notification" in (await admin.get(f"{ROOM}/{row}")).text
    assert "Cancel notification" not in (await viewer.get(f"{ROOM}/{row}")).text
    assert (await viewer.post(f"{ROOM}/{row}/cancel")).status_code == 403
    assert (await admin.post(f"{ROOM}/{row}/cancel", csrf_token="00")).status_code == 403
    assert (await seen(room, row)).state == "pending"

    done = await admin.post(f"{ROOM}/{row}/cancel")

    assert (done.status_code, done.headers["location"]) == (303, f"{ROOM}/{row}")
    assert (await seen(room, row)).reason == "cancelled"
    assert await audited(database_urls, "notification.cancelled") == ["operator:the-admin"]
    assert (await admin.post(f"{ROOM}/{row}/cancel")).status_code == 409


@pytest.mark.parametrize("path", [f"/{UUID(int=7)}", "/nonsense", f"/rules/{UUID(int=7)}", "/templates/no.such"])
async def test_what_is_not_there_is_said(room: Hub, admin: Signed, path: str) -> None:
    assert (await admin.get(ROOM + path)).status_code == 404


async def test_a_template_is_shown_through_each_channel_in_each_language(room: Hub, admin: Signed) -> None:
    listed = (await admin.get(f"{ROOM}/templates")).text
    assert all(f"/templates/{each.key}" in listed for each in room.templates.all())

    page = (await admin.get(f"{ROOM}/templates/payment.succeeded")).text
    assert page.count('class="card preview"') == 4
    assert "12,900" in page

    own = await admin.get(
        f'{ROOM}/templates/payment.succeeded?payload={{"item":"떡 한 접시","amount":7000,"currency":"KRW"}}'
    )
    assert own.text.count("떡 한 접시") == 5  # as it was written, and in four texts
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
async def test_what_is_wrong_with_a_sample_is_named(room: Hub, admin: Signed, payload: str, says: str) -> None:
    page = await admin.get(f"{ROOM}/templates/payment.succeeded?payload={payload}")

    assert page.status_code == 400
    assert says in page.text
    assert 'class="card preview"' not in page.text


async def test_a_rule_is_added_changed_switched_and_removed(
    room: Hub, database_urls: DatabaseUrls, admin: Signed
) -> None:
    added = await admin.post(RULES, **NEW)
    assert (added.status_code, added.headers["location"]) == (303, RULES)
    [rule] = await rules_of(room)
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
    assert [each.name for each in await rules_of(room)] == ["Restores too"]
    changed = "select details->'fields' from pabal.audit_log where action = 'rule.changed'"
    assert await sql(database_urls, changed) == '["name"]'

    await admin.post(f"{RULES}/{rule.id}/off")
    assert [each.is_active for each in await rules_of(room)] == [False]
    await admin.post(f"{RULES}/{rule.id}/on")
    assert [each.is_active for each in await rules_of(room)] == [True]

    asks = await admin.post(f"{RULES}/{rule.id}/remove")
    assert "will be removed. Notifications it already requested are still sent." in asks.text
    assert len(await rules_of(room)) == 1
    await admin.post(f"{RULES}/{rule.id}/remove", count="1")
    assert await rules_of(room) == []
    assert await audited(database_urls, "rule.added") == ["operator:the-admin"]
    assert await audited(database_urls, "rule.changed") == ["operator:the-admin"] * 3
    assert await audited(database_urls, "rule.removed") == ["operator:the-admin"]


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
async def test_what_is_wrong_with_a_rule_is_said_beside_it_and_nothing_written_is_lost(
    room: Hub, admin: Signed, wrong: dict[str, str], says: str
) -> None:
    answer = await admin.post(RULES, **NEW | wrong)

    assert answer.status_code == 400
    [field] = wrong
    assert re.search(rf'id="about-{field}"><span class="bad" lang="en">[^<]*{re.escape(says)}', answer.text)
    assert "job" in answer.text
    assert await rules_of(room) == []


async def test_two_rules_of_one_name_are_refused(room: Hub, admin: Signed) -> None:
    await add(room, name="Restores")
    answer = await admin.post(RULES, **NEW)

    assert answer.status_code == 409
    assert "name: rule Restores already exists" in answer.text


async def test_a_viewer_sees_rules_and_changes_none(room: Hub, viewer: Signed, admin: Signed) -> None:
    rule = await add(room)
    page = await viewer.get(f"{RULES}/{rule.id}")
    assert "<fieldset disabled>" in page.text
    assert "Remove" not in (await viewer.get(RULES)).text

    for path in ("", f"/{rule.id}", f"/{rule.id}/off", f"/{rule.id}/on", f"/{rule.id}/remove"):
        assert (await viewer.post(RULES + path, **NEW, count="1")).status_code == 403
        assert (await admin.post(RULES + path, **NEW, count="1", csrf_token="00")).status_code == 403
    assert await rules_of(room) == [rule]


async def test_an_address_that_refuses_is_listed_and_healed_by_an_admin(
    room: Hub, database_urls: DatabaseUrls, admin: Signed, viewer: Signed
) -> None:
    assert "No blocked addresses." in (await admin.get(f"{ROOM}/addresses")).text
    row = await ask_one(room)
    async with room.transaction() as tx:
        await mark_address_unhealthy(tx, row, "Discord answered 403 (50007)")
    assert "Discord answered 403 (50007)" in (await viewer.get(f"{ROOM}/addresses")).text
    given = {"channel": "user_dm", "recipient": "100"}
    assert (await viewer.post(f"{ROOM}/addresses/heal", **given)).status_code == 403
    assert (await admin.post(f"{ROOM}/addresses/heal", **given | {"channel": "pigeon"})).status_code == 404

    assert (await admin.post(f"{ROOM}/addresses/heal", **given)).status_code == 303
    assert "No blocked addresses." in (await admin.get(f"{ROOM}/addresses")).text
    assert await audited(database_urls, "address.healed") == ["operator:the-admin"]
    assert (await admin.post(f"{ROOM}/addresses/heal", **given)).status_code == 404


async def test_nothing_hostile_runs_wherever_it_is_shown(room: Hub, database_urls: DatabaseUrls, admin: Signed) -> None:
    rule = await add(room, name=HOSTILE)
    row = await ask_one(room, payload={"item": HOSTILE, "amount": 1, "currency": HOSTILE})
    await sql(
        database_urls,
        "update notification.requests set requested_by = $1, incident = $1, correlation_id = $1, last_error = $1, "
        "rule_id = $2, event_id = id, state = 'failed', reason = 'exhausted', ended_at = pabal.now() returning 1",
        HOSTILE,
        rule.id,
    )
    await sql(database_urls, TRIED, row, HOSTILE, "dead", HOSTILE)
    async with room.transaction() as tx:
        await mark_address_unhealthy(tx, row, HOSTILE)

    for path in ("", f"/{row}", "/rules", f"/rules/{rule.id}", "/addresses"):
        page = await admin.get(ROOM + path)
        assert page.status_code == 200
        assert unharmed(page)
        assert ("alert(1)" in page.text) == (path != ""), path
    for query in ("recipient", "template", "state"):
        assert unharmed(await admin.get(f"{ROOM}?{query}={HOSTILE}"))
    told = await admin.get(f"{ROOM}/templates/payment.succeeded?payload={HOSTILE}")
    assert unharmed(told)
    assert unharmed(await admin.post(RULES, **dict.fromkeys(NEW, HOSTILE)))


@pytest.mark.parametrize("state", [None, "pending"])
@pytest.mark.parametrize("recipient", [None, "100"])
async def test_a_look_for_something_rare_gives_up_and_goes_on_from_there(
    room: Hub, state: str | None, recipient: str | None
) -> None:
    rare = await ask_one(room, "antinuke.triggered")
    await asked(room, *(notice(room) for _ in range(24)))
    which = NotificationFilter(template="antinuke.triggered", state=state, recipient=recipient)
    async with room.autocommit() as tx:
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

    assert [each.id for each in third.rows] == [rare]
    assert (third.end, third.truncated) == (None, False)
