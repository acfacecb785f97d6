"""`pabal notify`: an operator sends notices, sees what became of them, and answers why."""

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
from support.notifications import PAID
from support.notifications import register_builtin_templates as registered
from support.pabal_process import listing, pabal
from support.terminal import Terminal, terminal_at

pytestmark = pytest.mark.anyio

BOUGHT = json.dumps(PAID)
SENT = re.compile(r"notification (\S+) is recorded; it is due ")
RULE = ("--events", "order.*", "--template", "payment.succeeded", "--to", "user.discord_id")
DM_RULE = (*RULE, "--channel", "user_dm")


@pytest.fixture
async def terminal(folder: Path, database_urls: DatabaseUrls) -> AsyncGenerator[Terminal]:
    async with terminal_at(folder, database_urls) as made:
        await registered(made.deaths.hub)
        yield made


async def sent(terminal: Terminal, *words: str, payload: str = BOUGHT) -> dict[str, Any]:
    return await terminal.read("notify", "send", "payment.succeeded", "--payload", payload, *words)


async def count(terminal: Terminal) -> int:
    return await terminal.deaths.owner.fetchval("select count(*) from notification.requests")


async def test_a_notice_is_sent_listed_shown_and_explained(terminal: Terminal) -> None:
    (terminal.folder / "body.json").write_text(BOUGHT)
    told = await terminal.run("notify", "send", "payment.succeeded", "--dm", "100", "--payload", "@body.json")
    [first] = SENT.findall(told.stdout)
    second = (await sent(terminal, "--toast", "101", "--locale", "en"))["id"]
    async with terminal.deaths.hub.autocommit() as tx:
        held = await LANE.claim(tx, 10, timedelta(minutes=1), "w1")
        [mine] = [each for each in held if str(each.id) == first]
        await LANE.settle(tx, [Settlement(mine, Dead("closed DMs", "refused"))])

    table = (await terminal.run("notify", "list")).stdout
    page = await terminal.read("notify", "list", "--limit", "1")
    rest = await terminal.read("notify", "list", "--limit", "1", "--cursor", page["cursor"])
    failed = await terminal.read("notify", "list", "--state", "failed", "--recipient", "100")
    shown = (await terminal.run("notify", "show", first)).stdout
    whole = await terminal.read("notify", "show", first)

    assert [line.split()[0] for line in table.splitlines()[1:]] == [second, first]
    assert "failed (refused)" in table
    assert [page["items"][0]["id"], rest["items"][0]["id"]] == [second, first]
    assert [each["id"] for each in failed["items"]] == [first]
    assert ["state", "failed"] in [line.split() for line in shown.splitlines()]
    assert '"item": "Nitro"' in shown
    assert whole["requested_by"].startswith("cli:")
    assert [(each["outcome"], each["why"]) for each in whole["attempts"]] == [("dead", "closed DMs")]


async def test_why_is_told_in_both_languages(terminal: Terminal) -> None:
    await terminal.run("notify", "prefs", "100", "--set", "dm_enabled=false")
    asked = await sent(terminal, "--dm", "100")

    english = (await terminal.run("notify", "explain", asked["id"])).stdout
    korean = (await terminal.run("notify", "explain", asked["id"], "--language", "ko")).stdout
    read = await terminal.read("notify", "explain", asked["id"], "--language", "ko")

    assert (asked["state"], asked["reason"]) == ("suppressed", "dm_disabled")
    headings = [line for line in english.splitlines() if not line.startswith(" ")]
    assert headings == ["Request", "Decision at request time", "Result", "What to do next"]
    assert "  Direct messages are off.\n" in english
    assert "  개인 메시지 수신이 꺼져 있습니다.\n" in korean
    assert (read["state"], read["reason"], read["language"]) == ("suppressed", "dm_disabled", "ko")
    assert [line["part"] for line in read["lines"]] == ["asked", "asked", *["decided"] * 3, "ended", "next"]


async def test_a_dry_run_says_what_would_be_and_sends_nothing(terminal: Terminal) -> None:
    await terminal.run("notify", "prefs", "100", "--set", "payment_notifications=off", "locale=en")
    words = ("notify", "send", "payment.succeeded", "--payload", BOUGHT, "--dry-run")

    against = (await terminal.run(*words, "--dm", "100")).stdout
    for_it = await terminal.read(*words, "--toast", "101")

    assert against.splitlines()[0] == "it would be suppressed: category_off"
    assert "  Notifications for payment are off.\n" in against
    assert "  Payment received\n" in against
    assert (for_it["would"], for_it["reason"], for_it["locale"]) == ("send", None, "ko")
    assert for_it["steps"] == ["category_on", "address_healthy"]
    assert for_it["title"] == "결제 완료"
    assert await count(terminal) == 0


async def test_a_key_of_a_service_is_asked_for_once_and_a_later_one_waits(terminal: Terminal) -> None:
    words = ("--dm", "100", "--source", "minu_find", "--key", "order-1")
    first, again = await sent(terminal, *words), await sent(terminal, *words)
    later = await sent(terminal, "--dm", "101", "--send-in", "2h", "--expires-in", "1h")

    waits = await terminal.deaths.owner.fetchrow(
        "select scheduled_at - created_at as due, expires_at - scheduled_at as life from notification.requests "
        "where id::text = $1",
        later["id"],
    )
    assert (again["id"], first["repeated"], again["repeated"]) == (first["id"], False, True)
    assert waits is not None
    assert tuple(waits) == (timedelta(hours=2), timedelta(hours=1))


async def test_a_notice_is_called_off_once(terminal: Terminal) -> None:
    row = (await sent(terminal, "--dm", "100"))["id"]

    told = await terminal.run("notify", "cancel", row)
    again = await terminal.run("notify", "cancel", row, code=1)

    assert told.stdout == f"{row} is called off\n"
    assert again.stderr == "pabal: The notification cannot be cancelled: it is suppressed\n"


async def test_a_notice_that_failed_is_sent_again_once(terminal: Terminal) -> None:
    row = (await sent(terminal, "--dm", "100"))["id"]
    async with terminal.deaths.hub.autocommit() as tx:
        held = await LANE.claim(tx, 10, timedelta(minutes=1), "w1")
        await LANE.settle(tx, [Settlement(each, Dead("no", "refused")) for each in held])

    told = await terminal.run("notify", "again", row)
    [second] = SENT.findall(told.stdout)
    refusal = await terminal.run("notify", "again", row, code=1)
    shown = await terminal.read("notify", "show", second)

    assert (shown["again_of"], shown["state"]) == (row, "pending")
    assert shown["requested_by"].startswith("cli:")
    assert refusal.stderr == f"pabal: The notification was already sent again as {second}\n"


async def test_an_address_that_refused_us_is_healed(terminal: Terminal) -> None:
    first = await sent(terminal, "--dm", "100")
    async with terminal.deaths.hub.transaction() as tx:
        assert await mark_address_unhealthy(tx, UUID(first["id"]), "closed DMs")
    before = await sent(terminal, "--dm", "100")
    await terminal.run("notify", "heal", "user_dm", "100")
    after = await sent(terminal, "--dm", "100")
    again = await terminal.run("notify", "heal", "user_dm", "100", code=1)

    assert (before["reason"], after["reason"]) == ("address_unhealthy", None)
    assert again.stderr == "pabal: No such unhealthy address\n"


async def test_wishes_are_shown_and_changed(terminal: Terminal) -> None:
    untouched = await terminal.read("notify", "prefs", "100")
    changed = await terminal.read(
        "notify", "prefs", "100", "--set", "dm_enabled=false", "night_consent=true", "locale=en"
    )
    shown = (await terminal.run("notify", "prefs", "100")).stdout

    assert (untouched["dm_enabled"], untouched["updated_at"]) == (True, None)
    assert (changed["dm_enabled"], changed["payment_notifications"], changed["locale"]) == (False, True, "en")
    assert changed["night_consent_at"] is not None
    assert ["dm", "enabled", "off"] in [line.split() for line in shown.splitlines()]
    [actor] = await terminal.deaths.owner.fetch(
        "select actor from pabal.audit_log where action = 'preferences.changed'"
    )
    assert actor["actor"].startswith("cli:")


async def test_a_rules_life(terminal: Terminal) -> None:
    empty = (await terminal.run("notify", "rules", "list")).stdout
    words = (*RULE, "--channel", "user_dm", "dashboard_toast", "--variable", "item=order.item", "--expires-after", "2h")
    added = await terminal.read("notify", "rules", "add", "buyers", *words)
    table = (await terminal.run("notify", "rules", "list")).stdout
    changed = await terminal.read(
        "notify", "rules", "change", added["id"], "--inactive", "--name", "payers", "--without", "expires_after"
    )
    shown = (await terminal.run("notify", "rules", "show", added["id"])).stdout
    gone = (await terminal.run("notify", "rules", "remove", added["id"])).stdout

    assert empty == "No rules.\n"
    assert (added["event_pattern"], added["channels"]) == ("order.*", ["user_dm", "dashboard_toast"])
    assert added["variables"] == {"item": "order.item"}
    assert table.splitlines()[1].split()[:2] == [added["id"], "buyers"]
    assert (changed["name"], changed["is_active"], changed["expires_after"]) == ("payers", False, None)
    assert changed["recipients"] == added["recipients"]
    assert ["variable", "item", "order.item"] in [line.split() for line in shown.splitlines()]
    assert gone == f"{added['id']} is gone\n"
    assert await terminal.read("notify", "rules", "list") == []


async def test_what_the_database_names_and_no_file_defines_is_a_mistake(terminal: Terminal) -> None:
    good = await terminal.run("notify", "check")
    await terminal.deaths.owner.execute(
        "insert into notification.templates (key, category, texts, checksum) values ('old.one', 'system', '{}', '')"
    )
    await terminal.deaths.owner.execute(
        "insert into notification.rules (name, event_pattern, template_key, recipients, channels) "
        "values ('old', 'a.b', 'old.one', '[\"user\"]', '{user_dm}')"
    )
    bad = await terminal.run("notify", "check", code=1)
    files = await terminal.read("notify", "check", "--files-only")

    assert re.fullmatch(r"\d+ templates are in order\n", good.stdout)
    assert bad.stderr == "pabal: notification.templates: old.one is in use, but no file defines it\n"
    assert files["mistakes"] == []


def test_templates_and_code_are_checked_without_a_hub(folder: Path) -> None:
    own = folder / "own"
    own.mkdir()
    (own / "shop.closed.toml").write_text('category = "system"\n[user_dm.ko]\nbody = "{{ who }}"\n')
    (folder / "shop.py").write_text('send(template_key="shop.open")\n')

    files = listing("notify", "check", "--files-only", folder=folder, code=1, PABAL_TEMPLATES=str(own))
    code = pabal("notify", "check", "--files-only", "--code", str(folder), folder=folder, code=1)

    assert {each["field"] for each in files["mistakes"]} == {"shop.closed.toml"}
    assert "user_dm: has no text in en" in [each["why"] for each in files["mistakes"]]
    assert code.stderr == "pabal: shop.py:1: no such template: shop.open\n"


def test_a_template_is_previewed_without_a_hub(folder: Path) -> None:
    everything = listing("notify", "preview", "payment.succeeded", folder=folder)
    words = ("notify", "preview", "payment.succeeded", "--payload", BOUGHT, "--channel", "user_dm", "--locale", "en")
    one = pabal(*words, folder=folder).stdout

    assert {(each["channel"], each["locale"]) for each in everything} == {
        (channel, locale) for channel in ("user_dm", "dashboard_toast") for locale in ("ko", "en")
    }
    assert one.splitlines()[:2] == ["user_dm en", "  Payment received"]
    assert "12,900 KRW" in one


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["send", "payment.succeeded"], 2, "Say one of --dm, --audit-channel and --toast"),
        (["send", "payment.succeeded", "--dm", "1", "--toast", "1"], 2, "Say one of"),
        (["send", "nothing.like.it", "--dm", "1"], 1, "no such template: nothing.like.it"),
        (["send", "payment.succeeded", "--dm", "1"], 1, "payload.amount: is required"),
        (["send", "payment.succeeded", "--dm", "1", "--payload", "[]"], 1, "payload: is not a JSON object"),
        (["send", "payment.succeeded", "--dm", "1", "--payload", BOUGHT, "--source", "x"], 1, "there is no service x"),
        (
            ["send", "payment.succeeded", "--dm", "1", "--payload", BOUGHT, "--dry-run", "--key", "k"],
            1,
            "requires a source service",
        ),
        (["show", str(new_id())], 1, "No such notification"),
        (["explain", str(new_id())], 1, "No such notification"),
        (["again", str(new_id())], 1, "No such notification"),
        (["preview", "payment.succeeded", "--channel", "guild_audit_channel"], 1, "has no text for"),
        (["prefs", "100", "--set", "dms=false"], 1, "dms is none of dm_enabled"),
        (["prefs", "100", "--set", "dm_enabled=maybe"], 1, "dm_enabled is true or false"),
        (["rules", "add", "x", "--events", "a.b"], 1, "say --template and --to and --channel as well"),
        (["rules", "add", "x", *DM_RULE, "--variable", "item"], 1, "item is not NAME=PATH"),
        (["rules", "add", "x", *DM_RULE, "--expires-after", "366d"], 1, "expires_after: must be at most a year"),
        (["rules", "add", "x", *DM_RULE, "--expires-after", f"{'9' * 30}d"], 2, "anybody will wait"),
        (["rules", "change", str(new_id())], 1, "say what is to be otherwise"),
        (["rules", "remove", str(new_id())], 1, "No such rule"),
    ],
)
async def test_a_refusal_is_one_line(terminal: Terminal, words: list[str], code: int, told: str) -> None:
    refusal = await terminal.run("notify", *words, code=code)

    [line] = refusal.stderr.splitlines()
    assert told in line
    assert refusal.stdout == ""


async def test_a_hub_that_never_started_says_so(folder: Path, database_urls: DatabaseUrls) -> None:
    async with terminal_at(folder, database_urls) as bare:
        words = ("notify", "send", "payment.succeeded", "--dm", "1", "--payload", BOUGHT)
        refusal = await bare.run(*words, code=1)

    assert refusal.stderr == (
        "pabal: the database does not know payment.succeeded yet: a hub registers it when it starts\n"
    )


async def test_nothing_asked_for_is_one_sentence(terminal: Terminal) -> None:
    assert (await terminal.run("notify", "list")).stdout == "No notifications.\n"
