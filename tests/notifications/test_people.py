"""Person tokens give access to one person's data; a person can be exported and erased."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from pabal.audit.pseudonym import person_pseudonym
from pabal.core.actor import Actor
from pabal.core.errors import NotFound, Unauthenticated
from pabal.hub import DatabaseUrls, Hub
from pabal.limits import RateLimit, consume_rate_limit
from pabal.notifications.people.preferences import PreferencesUpdate, update_preferences
from pabal.notifications.people.tokens import (
    PERSON_COOKIE_LIFETIME,
    PERSON_LINK_LIFETIME,
    PersonTokenKind,
    exchange_person_link,
    find_person_by_token,
    issue_person_link,
    purge_person_tokens,
    revoke_person_token,
)
from pabal.notifications.privacy import PersonDataCounts, erase_person, export_person
from pabal.notifications.toasts.inbox import ToastAction
from support.dump import dump_database
from support.inbox import JUN, MINA, SHOP, Inbox

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
OPERATOR = Actor("operator:mina")
TOLERANCE = timedelta(milliseconds=500)
SECRET_TEXT = "아무에게도 말하지 마"
USER = "0192f0c1-0000-7000-8000-000000000001"


async def token_owner(hub: Hub, token: str, kind: PersonTokenKind) -> str | None:
    """Return the owner of a token, or None."""
    async with hub.autocommit() as tx:
        try:
            return (await find_person_by_token(tx, token, kind)).id
        except Unauthenticated:
            return None


async def exchange(hub: Hub, token: str) -> str | None:
    async with hub.transaction() as tx:
        return await exchange_person_link(tx, token)


async def test_a_link_is_valid_for_15_minutes(inbox: Inbox, hub: Hub, travel: Travel) -> None:
    link = await inbox.token(MINA)
    assert await token_owner(hub, link, "link") == MINA

    await travel(PERSON_LINK_LIFETIME - TOLERANCE)
    assert await token_owner(hub, link, "link") == MINA
    await travel(TOLERANCE)
    assert await token_owner(hub, link, "link") is None
    assert await exchange(hub, link) is None


async def test_a_link_is_exchanged_once(inbox: Inbox, hub: Hub) -> None:
    link = await inbox.token(MINA)

    cookie = await exchange(hub, link)

    assert cookie
    assert await token_owner(hub, cookie, "cookie") == MINA
    assert await token_owner(hub, link, "link") is None
    assert await exchange(hub, link) is None
    assert await exchange(hub, cookie) is None


async def test_twenty_concurrent_exchanges_give_one_cookie(inbox: Inbox, hub: Hub) -> None:
    link = await inbox.token()

    cookies = await asyncio.gather(*(exchange(hub, link) for _ in range(20)))

    assert len([cookie for cookie in cookies if cookie]) == 1
    assert await inbox.db.fetchval("select count(*) from notification.person_tokens where kind = 'cookie'") == 1


async def test_a_cookie_lasts_a_week_and_kinds_are_not_interchangeable(inbox: Inbox, hub: Hub, travel: Travel) -> None:
    link, cookie = await inbox.token(), await inbox.cookie()

    assert [await token_owner(hub, link, "cookie"), await token_owner(hub, cookie, "link")] == [None, None]
    await travel(PERSON_COOKIE_LIFETIME - TOLERANCE)
    assert await token_owner(hub, cookie, "cookie") == MINA
    await travel(TOLERANCE)
    assert await token_owner(hub, cookie, "cookie") is None


async def test_a_revoked_cookie_is_invalid(inbox: Inbox, hub: Hub) -> None:
    revoked, kept = await inbox.cookie(), await inbox.cookie()
    async with hub.transaction() as tx:
        await revoke_person_token(tx, await find_person_by_token(tx, revoked, "cookie"))

    assert [await token_owner(hub, revoked, "cookie"), await token_owner(hub, kept, "cookie")] == [None, MINA]


async def test_only_the_hash_of_a_token_is_stored(inbox: Inbox, hub: Hub, database_urls: DatabaseUrls) -> None:
    tokens = [await inbox.token(), await inbox.cookie()]

    dump = await dump_database(database_urls)

    for token in tokens:
        assert token.encode() not in dump
        assert hashlib.sha256(token.encode()).hexdigest().encode() in dump
    async with hub.autocommit() as tx:
        assert tokens[0] not in repr(await issue_person_link(tx, MINA, SHOP))


async def test_only_expired_tokens_are_purged(inbox: Inbox, hub: Hub, travel: Travel) -> None:
    await inbox.token()
    cookie = await inbox.cookie()
    await travel(PERSON_LINK_LIFETIME)
    valid_link = await inbox.token()
    async with hub.autocommit() as tx:
        assert [await purge_person_tokens(tx, 1) for _ in range(3)] == [1, 1, 0]

    assert [await token_owner(hub, valid_link, "link"), await token_owner(hub, cookie, "cookie")] == [MINA, MINA]


async def test_issuing_a_link_is_audited_under_a_pseudonym(inbox: Inbox) -> None:
    await inbox.token(MINA)

    row = await inbox.db.fetchrow("select actor, action, subject from pabal.audit_log")
    assert row is not None
    assert (row["actor"], row["action"], row["subject"]) == ("shop", "person_token.issued", person_pseudonym(MINA))
    assert MINA not in str(dict(row))


# Export and erasure


async def create_personal_data(inbox: Inbox, person: str, user: str) -> None:
    """Create every kind of row that can hold data of a person."""
    hub = inbox.hub
    toast = await inbox.insert_toast(person, title=SECRET_TEXT, body=SECRET_TEXT)
    await inbox.mark(toast, ToastAction.ARCHIVE, person)
    await inbox.insert_toast(person, body=SECRET_TEXT)
    await inbox.request(person)
    await inbox.cookie(person)
    await inbox.token(person)
    await inbox.db.execute("insert into identity.users (id) values ($1)", user)
    async with hub.transaction() as tx:
        await update_preferences(
            tx,
            person,
            PreferencesUpdate(dm_enabled=False, night_consent=True, locale="ko"),
            Actor(person_pseudonym(person)),
        )
    await inbox.db.execute("update notification.people set user_id = $2 where discord_id = $1", person, user)
    await inbox.db.execute("insert into notification.preferences (user_id) values ($1)", user)
    await inbox.db.execute(
        "insert into notification.addresses (recipient_type, recipient_id, dm_channel_id) values ('user_dm', $1, $2)",
        person,
        f"dm-{person}",
    )
    await inbox.db.execute(
        "insert into notification.requests "
        "(id, recipient_type, recipient_id, template_key, payload, state, requested_by, scheduled_at) "
        "select pabal.uuid7(), type, recipient, key, payload, 'pending', who, pabal.now() + interval '1 day' "
        "from (values ('user_dm', $1, 'test.system', jsonb_build_object('text', $2::text), 'shop'), "
        "('guild_audit_channel', 'ops', 'system.undelivered', "
        "jsonb_build_object('recipient', 'user_dm ' || $1), 'hub')) "
        "as r (type, recipient, key, payload, who)",
        person,
        SECRET_TEXT,
    )
    for key in (person, f"dm-{person}"):
        async with hub.autocommit() as tx:
            await consume_rate_limit(tx, RateLimit("messages", 5, timedelta(minutes=1)), key)


async def erase(hub: Hub, person: str) -> PersonDataCounts:
    async with hub.transaction() as tx:
        return await erase_person(tx, person, OPERATOR)


async def test_nothing_of_an_erased_person_remains(inbox: Inbox, hub: Hub, database_urls: DatabaseUrls) -> None:
    await create_personal_data(inbox, MINA, USER)
    before = await dump_database(database_urls)
    assert before.count(MINA.encode()) > 10

    counts = await erase(hub, MINA)

    after = await dump_database(database_urls)
    assert (counts.requests, counts.toasts) == (4, 2)
    assert MINA.encode() not in after
    assert SECRET_TEXT.encode() not in after
    assert await inbox.db.fetchval("select count(*) from notification.preferences") == 0
    assert await inbox.db.fetchval("select count(*) from identity.users") == 1


async def test_an_erasure_keeps_the_data_of_others(inbox: Inbox, hub: Hub) -> None:
    await create_personal_data(inbox, JUN, USER)
    await create_personal_data(inbox, JUN[:-1], "0192f0c1-0000-7000-8000-000000000002")  # a prefix of JUN
    before = await person_rows(hub, JUN)

    await erase(hub, JUN[:-1])

    assert await person_rows(hub, JUN) == before
    assert await inbox.db.fetchval("select count(*) from pabal.limits") == 2


async def person_rows(hub: Hub, person: str) -> dict[str, Any]:
    async with hub.autocommit() as tx:
        document = await export_person(tx, person, OPERATOR)
    return {name: value for name, value in document.items() if name not in {"exported_at", "deeds"}}


async def test_audit_entries_are_found_by_the_pseudonym(inbox: Inbox, hub: Hub) -> None:
    await inbox.insert_toast(MINA)
    await erase(hub, MINA)

    rows = await inbox.db.fetch(
        "select actor, action, details from pabal.audit_log where subject = $1", person_pseudonym(MINA)
    )
    assert [(row["actor"], row["action"]) for row in rows] == [("operator:mina", "person.erased")]
    assert '"requests": 1' in rows[0]["details"]


async def test_an_erasure_ends_open_streams(inbox: Inbox, hub: Hub) -> None:
    stream, _ = await hub.toast_streams.open(await inbox.person(MINA), None)

    await erase(hub, MINA)

    async with asyncio.timeout(10):
        assert [change async for change in stream.changes(timedelta(seconds=20))] == []


async def test_an_export_is_complete_and_has_no_credentials(inbox: Inbox, hub: Hub) -> None:
    await create_personal_data(inbox, MINA, USER)
    token = await inbox.token(MINA)

    async with hub.transaction() as tx:
        document = await export_person(tx, MINA, OPERATOR)

    assert document["person"]["discord_id"] == MINA
    assert document["person"]["dm_enabled"] is False
    assert document["preferences"]["user_id"] == USER
    assert [len(document[name]) for name in ("requests", "toasts", "addresses", "tokens")] == [4, 2, 1, 4]
    assert {request["payload"].get("text") for request in document["requests"]} == {None, SECRET_TEXT}
    assert {toast["body"] for toast in document["toasts"]} == {SECRET_TEXT}
    assert [entry["action"] for entry in document["deeds"]].count("person_token.issued") == 3
    assert hashlib.sha256(token.encode()).hexdigest() not in str(document)


async def test_an_export_has_the_tokens_of_the_registered_user(inbox: Inbox, hub: Hub) -> None:
    await create_personal_data(inbox, MINA, USER)
    before = await person_rows(hub, MINA)

    await inbox.db.execute(
        "update notification.person_tokens set user_id = $1::text::uuid, discord_id = $1::text", USER
    )

    assert len((await person_rows(hub, MINA))["tokens"]) == len(before["tokens"]) > 0


async def test_an_unknown_person_is_not_found(inbox: Inbox, hub: Hub) -> None:
    await inbox.insert_toast(MINA)
    for operation in (erase_person, export_person):
        with pytest.raises(NotFound, match="No such person"):
            async with hub.transaction() as tx:
                await operation(tx, JUN, OPERATOR)
