"""`pabal notification`, `rule`, `template`, `person` and `address`."""

import json
import re
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls
from pabal.notifications.dispatch.addresses import mark_address_unhealthy
from pabal.notifications.lane import LANE
from pabal.queue.lane import Settlement
from pabal.queue.outcome import Dead
from support.notifications import PAID, register_builtin_templates
from support.pabal_process import pabal, pabal_json
from support.terminal import Terminal, open_terminal

pytestmark = pytest.mark.anyio

BOUGHT = json.dumps(PAID)
SENT = re.compile(r"notification (\S+) requested; due ")
RULE = ("--events", "order.*", "--template", "payment.succeeded", "--to", "user.discord_id")
DM_RULE = (*RULE, "--channel", "user_dm")


@pytest.fixture
async def terminal(folder: Path, database_urls: DatabaseUrls) -> AsyncGenerator[Terminal]:
    async with open_terminal(folder, database_urls) as made:
        await register_builtin_templates(made.event_queue.hub)
        yield made


async def sent(terminal: Terminal, *args: str, payload: str = BOUGHT) -> dict[str, Any]:
    return await terminal.read("notification", "send", "payment.succeeded", "--payload", payload, *args)


async def count(terminal: Terminal) -> int:
    return await terminal.event_queue.owner.fetchval("select count(*) from notification.requests")


async def test_a_notification_is_sent_listed_and_shown(terminal: Terminal) -> None:
    (terminal.folder / "body.json").write_text(BOUGHT)
    result = await terminal.run("notification", "send", "payment.succeeded", "--dm", "100", "--payload", "@body.json")
    [first] = SENT.findall(result.stdout)
    second = (await sent(terminal, "--toast", "101", "--locale", "en"))["id"]
    async with terminal.event_queue.hub.autocommit() as tx:
        held = await LANE.claim(tx, 10, timedelta(minutes=1), "w1")
        [mine] = [item for item in held if str(item.id) == first]
        await LANE.settle(tx, [Settlement(mine, Dead("closed DMs", "refused"))])

    table = (await terminal.run("notification", "list")).stdout
    page = await terminal.read("notification", "list", "--limit", "1")
    rest = await terminal.read("notification", "list", "--limit", "1", "--cursor", page["cursor"])
    failed = await terminal.read("notification", "list", "--state", "failed", "--recipient", "100")
    shown = (await terminal.run("notification", "show", first)).stdout
    whole = await terminal.read("notification", "show", first)

    assert [line.split()[0] for line in table.splitlines()[1:]] == [second, first]
    assert "failed (refused)" in table
    assert [page["items"][0]["id"], rest["items"][0]["id"]] == [second, first]
    assert [item["id"] for item in failed["items"]] == [first]
    assert ["state", "failed"] in [line.split() for line in shown.splitlines()]
    assert '"item": "Nitro"' in shown
    assert whole["requested_by"].startswith("cli:")
    assert [(item["outcome"], item["why"]) for item in whole["attempts"]] == [("dead", "closed DMs")]


async def test_explain_answers_in_both_languages(terminal: Terminal) -> None:
    await terminal.run("person", "preferences", "100", "--set", "dm_enabled=false")
    asked = await sent(terminal, "--dm", "100")

    english = (await terminal.run("notification", "explain", asked["id"])).stdout
    korean = (await terminal.run("notification", "explain", asked["id"], "--language", "ko")).stdout
    read = await terminal.read("notification", "explain", asked["id"], "--language", "ko")

    assert (asked["state"], asked["reason"]) == ("suppressed", "dm_disabled")
    headings = [line for line in english.splitlines() if not line.startswith(" ")]
    assert headings == ["Request", "Decision at request time", "Result", "What to do next"]
    assert "  Direct messages are off.\n" in english
    assert "  DM 수신이 꺼져 있습니다.\n" in korean
    assert (read["state"], read["reason"], read["language"]) == ("suppressed", "dm_disabled", "ko")
    assert [line["part"] for line in read["lines"]] == ["asked", "asked", *["decided"] * 4, "ended", "next"]


async def test_a_dry_run_prints_the_decision_and_sends_nothing(terminal: Terminal) -> None:
    await terminal.run("person", "preferences", "100", "--set", "payment_notifications=off", "--set", "locale=en")
    args = ("notification", "send", "payment.succeeded", "--payload", BOUGHT, "--dry-run")

    against = (await terminal.run(*args, "--dm", "100")).stdout
    for_it = await terminal.read(*args, "--toast", "101")

    assert against.splitlines()[0] == "It would be suppressed: category_off."
    assert "  Notifications for payment are off.\n" in against
    assert "  Payment received\n" in against
    assert (for_it["would"], for_it["reason"], for_it["locale"]) == ("send", None, "ko")
    assert for_it["steps"] == ["category_on", "address_healthy"]
    assert for_it["title"] == "결제 완료"
    assert await count(terminal) == 0


async def test_an_idempotency_key_is_requested_once_and_a_delay_is_kept(terminal: Terminal) -> None:
    args = ("--dm", "100", "--source", "minu_find", "--key", "order-1")
    first, again = await sent(terminal, *args), await sent(terminal, *args)
    later = await sent(terminal, "--dm", "101", "--send-in", "2h", "--expires-in", "1h")

    waits = await terminal.event_queue.owner.fetchrow(
        "select scheduled_at - created_at as due, expires_at - scheduled_at as life from notification.requests "
        "where id::text = $1",
        later["id"],
    )
    assert (again["id"], first["repeated"], again["repeated"]) == (first["id"], False, True)
    assert waits is not None
    assert tuple(waits) == (timedelta(hours=2), timedelta(hours=1))


async def test_a_notification_is_cancelled_once(terminal: Terminal) -> None:
    row = (await sent(terminal, "--dm", "100"))["id"]

    result = await terminal.run("notification", "cancel", row)
    again = await terminal.run("notification", "cancel", row, code=1)

    assert result.stdout == f"{row} cancelled\n"
    assert again.stderr == "pabal: The notification cannot be cancelled: it is suppressed\n"


async def test_a_failed_notification_is_resent_once(terminal: Terminal) -> None:
    row = (await sent(terminal, "--dm", "100"))["id"]
    async with terminal.event_queue.hub.autocommit() as tx:
        held = await LANE.claim(tx, 10, timedelta(minutes=1), "w1")
        await LANE.settle(tx, [Settlement(item, Dead("no", "refused")) for item in held])

    result = await terminal.run("notification", "resend", row)
    [second] = SENT.findall(result.stdout)
    refusal = await terminal.run("notification", "resend", row, code=1)
    shown = await terminal.read("notification", "show", second)

    assert (shown["again_of"], shown["state"]) == (row, "pending")
    assert shown["requested_by"].startswith("cli:")
    assert refusal.stderr == f"pabal: The notification was already sent again as {second}\n"


async def test_a_blocked_address_is_listed_and_enabled(terminal: Terminal) -> None:
    first = await sent(terminal, "--dm", "100")
    async with terminal.event_queue.hub.transaction() as tx:
        assert await mark_address_unhealthy(tx, UUID(first["id"]), "closed DMs")
    before = await sent(terminal, "--dm", "100")
    [blocked] = await terminal.items("address", "list")
    await terminal.run("address", "enable", "user_dm", "100")
    after = await sent(terminal, "--dm", "100")
    again = await terminal.run("address", "enable", "user_dm", "100", code=1)

    assert (before["reason"], after["reason"]) == ("address_unhealthy", None)
    assert (blocked["recipient_type"], blocked["recipient_id"], blocked["reason"]) == ("user_dm", "100", "closed DMs")
    assert await terminal.items("address", "list") == []
    assert again.stderr == "pabal: No such unhealthy address\n"


async def test_preferences_are_shown_and_changed(terminal: Terminal) -> None:
    untouched = await terminal.read("person", "preferences", "100")
    changed = await terminal.read(
        "person",
        "preferences",
        "100",
        "--set",
        "dm_enabled=false",
        "--set",
        "night_consent=true",
        "--set",
        "locale=en",
        "--reason",
        "consent form",
    )
    shown = (await terminal.run("person", "preferences", "100")).stdout

    assert (untouched["dm_enabled"], untouched["updated_at"]) == (True, None)
    assert (changed["dm_enabled"], changed["payment_notifications"], changed["locale"]) == (False, True, "en")
    assert changed["night_consent_at"] is not None
    assert ["dm", "enabled", "off"] in [line.split() for line in shown.splitlines()]
    [actor] = await terminal.event_queue.owner.fetch(
        "select actor from pabal.audit_log where action = 'preferences.changed'"
    )
    assert actor["actor"].startswith("cli:")


async def test_the_life_of_a_rule(terminal: Terminal) -> None:
    empty = (await terminal.run("rule", "list")).stdout
    args = (
        *RULE,
        "--channel",
        "user_dm",
        "--channel",
        "dashboard_toast",
        "--variable",
        "item=order.item",
        "--expires-after",
        "2h",
    )
    added = await terminal.read("rule", "add", "buyers", *args)
    table = (await terminal.run("rule", "list")).stdout
    changed = await terminal.read("rule", "set", added["id"], "--name", "payers", "--without", "expires_after")
    shown = (await terminal.run("rule", "show", added["id"])).stdout
    switched = [(await terminal.read("rule", verb, added["id"]))["is_active"] for verb in ("enable", "disable")]
    gone = (await terminal.run("rule", "remove", added["id"])).stdout

    assert empty == "No rules.\n"
    assert (added["event_pattern"], added["channels"]) == ("order.*", ["user_dm", "dashboard_toast"])
    assert added["variables"] == {"item": "order.item"}
    assert table.splitlines()[1].split()[:2] == [added["id"], "buyers"]
    assert (changed["name"], changed["is_active"], changed["expires_after"]) == ("payers", True, None)
    assert changed["recipients"] == added["recipients"]
    assert switched == [True, False]
    assert ["variable", "item", "order.item"] in [line.split() for line in shown.splitlines()]
    assert gone == f"{added['id']} removed\n"
    assert await terminal.items("rule", "list") == []


async def test_check_reports_a_template_that_only_the_database_names(terminal: Terminal) -> None:
    good = await terminal.run("template", "check")
    await terminal.event_queue.owner.execute(
        "insert into notification.templates (key, category, texts, checksum) values ('old.one', 'system', '{}', '')"
    )
    await terminal.event_queue.owner.execute(
        "insert into notification.rules (name, event_pattern, template_key, recipients, channels) "
        "values ('old', 'a.b', 'old.one', '[\"user\"]', '{user_dm}')"
    )
    bad = await terminal.run("template", "check", code=1)
    files = await terminal.read("template", "check", "--files-only")

    assert re.fullmatch(r"\d+ templates checked, no problems\n", good.stdout)
    assert bad.stderr == "pabal: notification.templates: old.one is in use, but no file defines it\n"
    assert files["mistakes"] == []


def test_templates_and_code_are_checked_without_a_hub(folder: Path) -> None:
    own = folder / "own"
    own.mkdir()
    (own / "shop.closed.toml").write_text('category = "system"\n[user_dm.ko]\nbody = "{{ who }}"\n')
    (folder / "shop.py").write_text('send(template_key="shop.open")\n')

    files = pabal_json("template", "check", "--files-only", folder=folder, code=1, PABAL_TEMPLATES=str(own))
    code = pabal("template", "check", "--files-only", "--code", str(folder), folder=folder, code=1)

    assert {item["field"] for item in files["mistakes"]} == {"shop.closed.toml"}
    assert "user_dm: has no text in en" in [item["why"] for item in files["mistakes"]]
    assert code.stderr == "pabal: shop.py:1: no such template: shop.open\n"


def test_templates_are_listed_and_shown_without_a_hub(folder: Path) -> None:
    templates = {template["key"]: template for template in pabal_json("template", "list", folder=folder)["items"]}
    shown = pabal_json("template", "show", "payment.succeeded", folder=folder)
    text = pabal("template", "show", "payment.succeeded", folder=folder).stdout

    assert templates["payment.succeeded"] == shown
    assert shown["channels"] == ["user_dm", "dashboard_toast"]
    assert {"amount", "item"} <= shown["variables"].keys()
    assert ["category", "payment"] in [line.split() for line in text.splitlines()]


def test_a_template_is_previewed_without_a_hub(folder: Path) -> None:
    everything = pabal_json("template", "preview", "payment.succeeded", folder=folder)["items"]
    args = ("template", "preview", "payment.succeeded", "--payload", BOUGHT, "--channel", "user_dm", "--locale", "en")
    one = pabal(*args, folder=folder).stdout

    assert {(item["channel"], item["locale"]) for item in everything} == {
        (channel, locale) for channel in ("user_dm", "dashboard_toast") for locale in ("ko", "en")
    }
    assert one.splitlines()[:2] == ["user_dm en", "  Payment received"]
    assert "12,900 KRW" in one


@pytest.mark.parametrize(
    ("args", "code", "result"),
    [
        (["notification", "send", "payment.succeeded"], 2, "Use exactly one of --dm, --audit-channel and --toast"),
        (["notification", "send", "payment.succeeded", "--dm", "1", "--toast", "1"], 2, "Use exactly one of"),
        (
            ["notification", "send", "nothing.like.it", "--dm", "1"],
            1,
            "template_key: no such template: nothing.like.it",
        ),
        (["notification", "send", "payment.succeeded", "--dm", "1"], 1, "payload.amount: is required, of type integer"),
        (
            ["notification", "send", "payment.succeeded", "--dm", "1", "--payload", "[]"],
            2,
            "--payload is not a JSON object",
        ),
        (
            ["notification", "send", "payment.succeeded", "--dm", "1", "--payload", BOUGHT, "--source", "x"],
            1,
            "No such service: x. See `pabal service list`",
        ),
        (
            ["notification", "send", "payment.succeeded", "--dm", "1", "--payload", BOUGHT, "--dry-run", "--key", "k"],
            1,
            "idempotency_key: requires a source service",
        ),
        (["notification", "show", str(new_id())], 1, "No such notification: "),
        (["notification", "explain", str(new_id())], 1, "No such notification: "),
        (["notification", "resend", str(new_id())], 1, "No such notification: "),
        (["template", "show", "nope"], 1, "No such template: nope. See `pabal template list`"),
        (["template", "preview", "payment.succeeded", "--channel", "guild_audit_channel"], 1, "has no text for"),
        (["person", "preferences", "100", "--set", "dms=false"], 2, "--set dms: is not one of dm_enabled"),
        (["person", "preferences", "100", "--set", "dm_enabled=maybe"], 2, "--set dm_enabled: must be true or false"),
        (["rule", "add", "x", "--events", "a.b"], 2, "needs --template and --to and --channel"),
        (["rule", "add", "x", *DM_RULE, "--variable", "item"], 2, "item is not NAME=PATH"),
        (["rule", "add", "x", *DM_RULE, "--expires-after", "366d"], 1, "expires_after: must be at most a year"),
        (["rule", "add", "x", *DM_RULE, "--expires-after", f"{'9' * 30}d"], 2, "is too long a duration"),
        (["rule", "set", str(new_id())], 2, "Nothing to change: give "),
        (["rule", "remove", str(new_id())], 1, "No such rule: "),
    ],
)
async def test_a_refusal_is_one_line(terminal: Terminal, args: list[str], code: int, result: str) -> None:
    refusal = await terminal.run(*args, code=code)

    [line] = refusal.stderr.splitlines()
    assert result in line
    assert refusal.stdout == ""


async def test_a_template_that_is_not_registered_is_refused(folder: Path, database_urls: DatabaseUrls) -> None:
    async with open_terminal(folder, database_urls) as bare:
        args = ("notification", "send", "payment.succeeded", "--dm", "1", "--payload", BOUGHT)
        refusal = await bare.run(*args, code=1)

    assert refusal.stderr == (
        "pabal: template payment.succeeded is not in the database yet: a hub registers it when it starts\n"
    )


async def test_an_empty_list_is_one_sentence(terminal: Terminal) -> None:
    assert (await terminal.run("notification", "list")).stdout == "No notifications.\n"
