"""The audit log in the console: what was done, by whom, and whether the seals hold."""

import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from urllib.parse import urlencode

import pytest

from pabal.audit import log
from pabal.audit.pseudonym import conversation_pseudonym
from pabal.audit.record import AuditEntry, record_audit_entry
from pabal.audit.verify import BreakKind
from pabal.console.i18n import Translator
from pabal.core.actor import Actor
from pabal.db.queries import parse_queries
from pabal.hub import DatabaseUrls, Hub
from pabal.relay.conversations import block_conversation, unblock_conversation
from relay.people import an_owner, pair
from support.audit_log import Ledger
from support.operator import HOSTILE, Signed, unharmed

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
[VERIFIED] = parse_queries("-- name: verified\nselect count(*) from pabal.audit_log where action = 'audit.verified'")


@pytest.fixture
def ledger(hub: Hub, database_urls: DatabaseUrls) -> Ledger:
    return Ledger(hub, database_urls, hub.key_ring)


async def write(hub: Hub, *deeds: AuditEntry) -> None:
    async with hub.transaction() as tx:
        for deed in deeds:
            await record_audit_entry(tx, deed)


def subjects(page: str) -> list[str]:
    return re.findall(r'<code title="(s[^"]*)">', page)


async def test_the_log_is_shown_newest_first_and_narrowed_by_its_address(
    hub: Hub, viewer: Signed, travel: Travel
) -> None:
    await write(hub, AuditEntry("old", "x.done", "s-old", client_ip="192.0.2.9"))
    await travel(timedelta(minutes=90))
    await write(
        hub, AuditEntry("minu_find", "token.issued", "s-one", {"n": 1}), AuditEntry("hub", "token.refreshed", "s-two")
    )

    async def shown(**sought: str) -> list[str]:
        return subjects((await viewer.get(f"/console/audit?{urlencode(sought)}")).text)

    assert await shown() == ["s-two", "s-one", "s-old"]
    assert await shown(actor="hub", action="token.") == ["s-two"]
    assert await shown(action="token.i") == ["s-one"]
    assert await shown(subject="s-old") == ["s-old"]
    assert await shown(since="1h") == ["s-two", "s-one"]
    assert await shown(since="nonsense") == ["s-two", "s-one", "s-old"]
    page = await viewer.get("/console/audit?action=nothing.like.it")
    assert "No entries match these filters." in page.text
    assert "192.0.2.9" in (await viewer.get("/console/audit")).text


async def test_page_by_page_every_row_is_shown_once(hub: Hub, admin: Signed) -> None:
    await write(hub, *(AuditEntry("hub", "x.done", f"s-{n}") for n in range(120)))
    shown: list[str] = []
    path = "/console/audit?actor=hub&action=x."
    while path:
        page = await admin.get(path)
        shown += subjects(page.text)
        more = re.search(r'href="([^"]+)" rel="next"', page.text)
        path = more[1].replace("&amp;", "&") if more else ""

    assert shown == [f"s-{n}" for n in reversed(range(120))]


async def test_a_search_that_stopped_says_so_and_goes_on(
    hub: Hub, admin: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MAX_SCANNED_IDS", 20)
    await write(hub, AuditEntry("rare", "x.done", "s-rare"), *(AuditEntry("hub", "x.done") for _ in range(30)))

    first = await admin.get("/console/audit?actor=rare")
    [older] = re.findall(r'href="([^"]+)" rel="next"', first.text)
    second = await admin.get(older.replace("&amp;", "&"))

    assert (subjects(first.text), subjects(second.text)) == ([], ["s-rare"])
    assert "Only part of the log was searched." in first.text
    assert "Only a part" not in second.text


async def test_details_are_masked_and_hostile_words_stay_words(hub: Hub, admin: Signed) -> None:
    details = {HOSTILE: HOSTILE, "access_token": "do not show this", "deep": [{"비밀번호": "nor this"}]}
    await write(hub, AuditEntry(HOSTILE, HOSTILE, HOSTILE, details))

    pages = [
        await admin.get("/console/audit"),
        await admin.get(f"/console/audit?{urlencode({'actor': HOSTILE})}"),
        await admin.get(f"/console/audit?{urlencode({'subject': HOSTILE, 'action': HOSTILE, 'since': HOSTILE})}"),
    ]

    for page in pages:
        assert page.status_code == 200
        assert unharmed(page)
        assert "{{7*7}}" in page.text
        assert "do not show this" not in page.text
        assert "nor this" not in page.text
    assert (await admin.get("/console/audit?cursor=%27--")).status_code == 400


async def test_the_seals_hold_and_the_page_says_what_was_checked(hub: Hub, admin: Signed, ledger: Ledger) -> None:
    await ledger.chain(3, 2)

    page = await admin.post("/console/audit/verify")

    assert page.status_code == 200
    assert "All seals are intact." in page.text
    [seals, rows] = re.findall(r"Verified (\d+) seals over (\d+) entries", page.text)[0]
    head = (await ledger.verify()).head
    assert int(seals) == 2
    assert int(rows) >= 5
    assert "This covers the whole log." in page.text
    assert str(head) in page.text
    async with hub.autocommit() as tx:
        assert await tx.value(VERIFIED) == 1


async def test_what_was_tampered_with_is_named(admin: Signed, ledger: Ledger) -> None:
    [[first, second]] = await ledger.chain(2)
    await ledger.tamper(
        f"update pabal.audit_log set actor = 'nobody' where id = {first}",
        f"delete from pabal.audit_log where id = {second}",
    )

    page = await admin.post("/console/audit/verify")

    assert "2 mismatches between the log and its seals." in page.text
    assert f"row {first} was changed" in page.text
    assert f"row {second} was removed" in page.text
    assert "All seals are intact." not in page.text


async def test_a_viewer_and_a_form_of_somebody_else_check_nothing(hub: Hub, admin: Signed, viewer: Signed) -> None:
    answers = [
        await viewer.post("/console/audit/verify"),
        await admin.post("/console/audit/verify", csrf_token="0" * 64),
    ]

    assert [answer.status_code for answer in answers] == [403, 403]
    assert "/console/audit/verify" not in (await viewer.get("/console/audit")).text
    async with hub.autocommit() as tx:
        assert await tx.value(VERIFIED) == 0


async def test_people_who_chat_are_there_under_an_alias_only(hub: Hub, admin: Signed) -> None:
    user = "f3a9c0ffee-a-users-own-key"
    key = await pair(hub, user, (await an_owner(hub)).account)
    async with hub.transaction() as tx:
        await block_conversation(tx, key, Actor("operator:the-admin"))
        await unblock_conversation(tx, key, Actor("operator:the-admin"))

    page = (await admin.get("/console/audit")).text

    assert "conversation.blocked" in page
    assert conversation_pseudonym(key) in page
    assert user not in page


def test_every_kind_of_break_has_a_text() -> None:
    assert [kind for kind in BreakKind if not Translator("en").has_variant("audit.break", kind)] == []
