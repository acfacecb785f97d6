"""The audit log page: filters, redaction and verification of the seals."""

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
from relay.people import add_account, pair_user
from support.audit_log import AuditLog, SealingHost
from support.operator import HOSTILE, SignedInOperator, is_escaped

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
[VERIFIED] = parse_queries("-- name: verified\nselect count(*) from pabal.audit_log where action = 'audit.verified'")


@pytest.fixture
def audit_log(hub: Hub, database_urls: DatabaseUrls) -> AuditLog:
    return AuditLog(hub, database_urls, hub.key_ring)


async def record_entries(hub: Hub, *entries: AuditEntry) -> None:
    async with hub.transaction() as tx:
        for entry in entries:
            await record_audit_entry(tx, entry)


def subjects(page: str) -> list[str]:
    return re.findall(r'<code title="(s[^"]*)">', page)


async def test_the_audit_log_is_newest_first_and_filtered_by_the_query_string(
    hub: Hub, viewer: SignedInOperator, travel: Travel
) -> None:
    await record_entries(hub, AuditEntry("old", "x.done", "s-old", client_ip="192.0.2.9"))
    await travel(timedelta(minutes=90))
    await record_entries(
        hub, AuditEntry("minu_find", "token.issued", "s-one", {"n": 1}), AuditEntry("hub", "token.refreshed", "s-two")
    )

    async def list_subjects(**filters: str) -> list[str]:
        return subjects((await viewer.get(f"/console/audit?{urlencode(filters)}")).text)

    assert await list_subjects() == ["s-two", "s-one", "s-old"]
    assert await list_subjects(actor="hub", action="token.") == ["s-two"]
    assert await list_subjects(action="token.i") == ["s-one"]
    assert await list_subjects(subject="s-old") == ["s-old"]
    assert await list_subjects(since="1h") == ["s-two", "s-one"]
    assert await list_subjects(since="nonsense") == ["s-two", "s-one", "s-old"]
    page = await viewer.get("/console/audit?action=nothing.like.it")
    assert "No entries match these filters." in page.text
    assert "192.0.2.9" in (await viewer.get("/console/audit")).text


async def test_pagination_shows_every_row_once(hub: Hub, admin: SignedInOperator) -> None:
    await record_entries(hub, *(AuditEntry("hub", "x.done", f"s-{n}") for n in range(120)))
    list_subjects: list[str] = []
    path = "/console/audit?actor=hub&action=x."
    while path:
        page = await admin.get(path)
        list_subjects += subjects(page.text)
        more = re.search(r'href="([^"]+)" rel="next"', page.text)
        path = more[1].replace("&amp;", "&") if more else ""

    assert list_subjects == [f"s-{n}" for n in reversed(range(120))]


async def test_a_search_that_hit_the_scan_limit_can_be_continued(
    hub: Hub, admin: SignedInOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MAX_SCANNED_IDS", 20)
    await record_entries(hub, AuditEntry("rare", "x.done", "s-rare"), *(AuditEntry("hub", "x.done") for _ in range(30)))

    first = await admin.get("/console/audit?actor=rare")
    [older] = re.findall(r'href="([^"]+)" rel="next"', first.text)
    second = await admin.get(older.replace("&amp;", "&"))

    assert (subjects(first.text), subjects(second.text)) == ([], ["s-rare"])
    assert "Only part of the log was searched." in first.text
    assert "Only part of" not in second.text


async def test_details_are_redacted_and_escaped(hub: Hub, admin: SignedInOperator) -> None:
    details = {HOSTILE: HOSTILE, "access_token": "do not show this", "deep": [{"비밀번호": "nor this"}]}
    await record_entries(hub, AuditEntry(HOSTILE, HOSTILE, HOSTILE, details))

    pages = [
        await admin.get("/console/audit"),
        await admin.get(f"/console/audit?{urlencode({'actor': HOSTILE})}"),
        await admin.get(f"/console/audit?{urlencode({'subject': HOSTILE, 'action': HOSTILE, 'since': HOSTILE})}"),
    ]

    for page in pages:
        assert page.status_code == 200
        assert is_escaped(page)
        assert "{{7*7}}" in page.text
        assert "do not show this" not in page.text
        assert "nor this" not in page.text
    assert (await admin.get("/console/audit?cursor=%27--")).status_code == 400


async def test_verification_reports_the_seals_and_rows_it_checked(
    hub: Hub, admin: SignedInOperator, audit_log: AuditLog
) -> None:
    await audit_log.write_sealed(3, 2)

    page = await admin.post("/console/audit/verify")

    assert page.status_code == 200
    assert "All seals are intact." in page.text
    [seals, rows] = re.findall(r"Verified (\d+) seals over (\d+) entries", page.text)[0]
    head = (await audit_log.verify()).head
    assert int(seals) == 2
    assert int(rows) >= 5
    assert "This covers the whole log." in page.text
    assert str(head) in page.text
    async with hub.autocommit() as tx:
        assert await tx.value(VERIFIED) == 1


async def test_verification_names_the_tampered_rows(admin: SignedInOperator, audit_log: AuditLog) -> None:
    [[first, second]] = await audit_log.write_sealed(2)
    await audit_log.tamper(
        f"update pabal.audit_log set actor = 'nobody' where id = {first}",
        f"delete from pabal.audit_log where id = {second}",
    )

    page = await admin.post("/console/audit/verify")

    assert "2 mismatches between the log and its seals." in page.text
    assert f"row {first} was changed" in page.text
    assert f"row {second} was removed" in page.text
    assert "All seals are intact." not in page.text


async def test_viewers_and_forged_forms_cannot_start_a_verification(
    hub: Hub, admin: SignedInOperator, viewer: SignedInOperator
) -> None:
    responses = [
        await viewer.post("/console/audit/verify"),
        await admin.post("/console/audit/verify", csrf_token="0" * 64),
    ]

    assert [response.status_code for response in responses] == [403, 403]
    assert "/console/audit/verify" not in (await viewer.get("/console/audit")).text
    async with hub.autocommit() as tx:
        assert await tx.value(VERIFIED) == 0


async def test_chat_users_appear_only_under_an_alias(hub: Hub, admin: SignedInOperator) -> None:
    user = "f3a9c0ffee-a-users-own-key"
    key = await pair_user(hub, user, (await add_account(hub)).account)
    async with hub.transaction() as tx:
        await block_conversation(tx, key, Actor("operator:the-admin"))
        await unblock_conversation(tx, key, Actor("operator:the-admin"))

    page = (await admin.get("/console/audit")).text

    assert "conversation.blocked" in page
    assert conversation_pseudonym(key) in page
    assert user not in page


def test_every_kind_of_break_has_a_text() -> None:
    assert [kind for kind in BreakKind if not Translator("en").has_variant("audit.break", kind)] == []


async def test_a_chain_without_the_known_head_is_shown_before_any_verification(
    audit_log: AuditLog, viewer: SignedInOperator, admin: SignedInOperator
) -> None:
    await audit_log.write_sealed(2, 1)
    await SealingHost(audit_log.hub, audit_log.hub.settings.data_dir).seal()
    intact = (await viewer.get("/console/audit")).text
    await audit_log.tamper("delete from pabal.audit_seals")

    broken = (await viewer.get("/console/audit")).text
    verified = (await admin.post("/console/audit/verify")).text

    assert 'role="alert"' not in intact
    assert 'role="alert"' in broken
    assert "accept-restore" in broken
    assert Translator("ko")("audit.chain.broken") in (await viewer.get("/console/audit", "ko")).text
    assert "is missing: the chain was cut or replaced" in verified
