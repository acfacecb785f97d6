"""The relay tables equal the seed's except for the deviations listed here; and their own rules."""

from uuid import UUID, uuid4

import asyncpg
import pytest

from support.catalog import read
from support.clusters import Connection

pytestmark = pytest.mark.anyio

TABLES = ("accounts", "conversation_mappings", "inbound_messages", "pairing_codes")

DEVIATIONS = {
    "column": {
        "public.accounts.relay_token_hash": "text not null default ('none:'::text || gen_random_uuid())",
        "public.accounts.rate_limit_per_minute": "integer default 600",
        "public.inbound_messages.callback_url": "text",
        "public.inbound_messages.callback_expires_at": "timestamp with time zone",
        "public.inbound_messages.source_event_id": "text not null",
    },
    "constraint": {
        "public.conversation_mappings.conversation_mappings_account_id_fkey": (
            "FOREIGN KEY (account_id) REFERENCES accounts(id) ON DELETE SET NULL"
        ),
        "public.inbound_messages.inbound_messages_account_id_fkey": (
            "FOREIGN KEY (account_id) REFERENCES accounts(id) ON DELETE CASCADE"
        ),
        "public.pairing_codes.pairing_codes_account_id_fkey": (
            "FOREIGN KEY (account_id) REFERENCES accounts(id) ON DELETE CASCADE"
        ),
        "public.inbound_messages.inbound_messages_source_event_id_key": "UNIQUE (channel_id, source_event_id)",
    },
    "index": {
        "public.idx_messages_account_status": (
            "CREATE INDEX idx_messages_account_status ON public.inbound_messages USING btree (account_id, status, seq)"
        ),
        "public.inbound_messages_source_event_id_key": (
            "CREATE UNIQUE INDEX inbound_messages_source_event_id_key"
            " ON public.inbound_messages USING btree (channel_id, source_event_id)"
        ),
    },
}


def of_the_relay(kind: str, objects: dict[str, str]) -> dict[str, str]:
    if kind == "index":
        return {
            name: definition
            for name, definition in objects.items()
            if any(f"ON public.{table} " in definition for table in TABLES)
        }
    return {name: definition for name, definition in objects.items() if name.split(".")[1] in TABLES}


@pytest.mark.parametrize("seeded", ["002"], indirect=True)
@pytest.mark.parametrize("kind", ["column", "constraint", "index"])
async def test_every_object_of_the_seed_exists(kind: str, seeded: Connection, db: Connection) -> None:
    seed_objects = of_the_relay(kind, await read(seeded, kind))
    hub_objects = await read(db, kind)

    assert len(seed_objects) >= len(TABLES)
    assert {name: hub_objects.get(name) for name in seed_objects} == seed_objects | DEVIATIONS[kind]


async def insert_account(db: Connection, name: str = "owner") -> UUID:
    account_id: UUID = await db.fetchval("insert into accounts (openclaw_user_id) values ($1) returning id", name)
    return account_id


async def insert_conversation(db: Connection, user: str, owner: UUID | None, state: str, **options: str) -> None:
    await db.execute(
        """
        insert into conversation_mappings
          (conversation_key, kakao_channel_id, plusfriend_user_key, account_id, state,
           paired_at, pending_at, blocked_at, blocked_by)
        values ('bot:' || $1, 'bot', $1, $2, $3,
                case when $3 = 'PAIRED' then now() end, case when $3 = 'PENDING' then now() end,
                case when $3 = 'BLOCKED' then now() end, $4)
        """,
        user,
        owner,
        state,
        options.get("blocked_by"),
    )


async def insert_message(db: Connection, owner: UUID, event: str = "e1") -> UUID:
    message_id: UUID = await db.fetchval(
        """
        insert into inbound_messages (account_id, conversation_key, kakao_payload, normalized, source_event_id)
        values ($1, 'bot:user:with:colons', '{}', '{}', $2) returning id
        """,
        owner,
        event,
    )
    return message_id


async def test_deleting_an_account_leaves_no_contradiction(db: Connection) -> None:
    await db.execute("set role service_role")
    owner = await insert_account(db)
    await insert_conversation(db, "paired", owner, "PAIRED")
    await insert_conversation(db, "pending", owner, "PENDING")
    await insert_conversation(db, "blocked", owner, "BLOCKED", blocked_by="owner")
    await insert_conversation(db, "banned", owner, "BLOCKED", blocked_by="operator")
    message_id = await insert_message(db, owner)
    await db.execute(
        """
        insert into relay_replies (message_id, account_id, conversation_key, response, answered_at, kept_until)
        values ($1, $2, 'bot:user', '{}', now(), now())
        """,
        message_id,
        owner,
    )
    await db.execute("insert into pairing_codes (code, account_id, expires_at) values ('C', $1, now())", owner)

    await db.execute("delete from accounts where id = $1", owner)

    rows = await db.fetch(
        "select plusfriend_user_key as user_key, state, coalesce(account_id::text, paired_at::text, pending_at::text)"
        " from conversation_mappings order by user_key"
    )
    assert [tuple(row) for row in rows] == [
        ("banned", "BLOCKED", None),  # a block by an operator does not end with the account
        ("blocked", "UNPAIRED", None),
        ("paired", "UNPAIRED", None),
        ("pending", "UNPAIRED", None),
    ]
    for table in ("inbound_messages", "relay_replies", "pairing_codes"):
        assert await db.fetchval(f"select count(*) from {table}") == 0


async def test_a_statement_that_sets_only_the_state_is_completed(db: Connection) -> None:
    owner = await insert_account(db)
    await insert_conversation(db, "user", owner, "PENDING")

    await db.execute("update conversation_mappings set state = 'PAIRED'")
    assert await db.fetchval("select paired_at is not null and pending_at is null from conversation_mappings")
    await db.execute("update conversation_mappings set state = 'UNPAIRED'")
    assert await db.fetchval("select account_id is null and paired_at is null from conversation_mappings")


@pytest.mark.parametrize(
    ("state", "constraint"),
    [("PAIRED", "conversation_paired"), ("PENDING", "conversation_pending"), ("LOST", "conversation_state")],
)
async def test_a_paired_conversation_has_an_account(db: Connection, state: str, constraint: str) -> None:
    with pytest.raises(asyncpg.CheckViolationError) as error:
        await insert_conversation(db, "user", None, state)
    assert error.value.constraint_name == constraint


async def test_the_channel_is_the_part_before_the_first_colon(db: Connection) -> None:
    await insert_message(db, await insert_account(db))
    assert await db.fetchval("select channel_id from inbound_messages") == "bot"


@pytest.mark.parametrize(
    ("status", "reason"), [("ACKED", "acked"), ("EXPIRED", "queue_life"), ("CANCELLED", "cancelled")]
)
async def test_a_message_ends_with_a_time_and_a_reason(db: Connection, status: str, reason: str) -> None:
    await db.execute("set role service_role")
    await insert_message(db, await insert_account(db))
    await db.execute("update inbound_messages set status = 'DELIVERED', delivered_at = now()")
    assert await db.fetchval("select lease is not null and leased_until > now() from inbound_messages")

    await db.execute("update inbound_messages set status = $1", status)

    row = await db.fetchrow("select reason, ended_at, acked_at, lease, leased_until from inbound_messages")
    assert row is not None
    assert row["reason"] == reason
    assert row["ended_at"] is not None
    assert (row["acked_at"] is not None) == (status == "ACKED")
    assert row["lease"] is row["leased_until"] is None
    with pytest.raises(asyncpg.CheckViolationError):
        await db.execute("update inbound_messages set reason = null")


async def test_one_end_is_not_rewritten_into_another(db: Connection) -> None:
    await insert_message(db, await insert_account(db))
    await db.execute("update inbound_messages set status = 'EXPIRED'")
    with pytest.raises(asyncpg.CheckViolationError):
        await db.execute("update inbound_messages set status = 'ACKED'")


async def test_a_session_account_has_no_usable_token(db: Connection) -> None:
    await insert_account(db, "session:1")
    await insert_account(db, "session:2")
    hashes = [row[0] for row in await db.fetch("select relay_token_hash from accounts")]
    assert len(set(hashes)) == 2
    assert all(len(text) != 64 for text in hashes)


async def test_a_session_belongs_to_an_account_once_its_code_is_used(db: Connection) -> None:
    await db.execute("insert into relay_sessions (token_hash, code) values (repeat('a', 64), 'ABCD-2345')")
    with pytest.raises(asyncpg.CheckViolationError):
        await db.execute("update relay_sessions set used_at = now(), used_by = 'bot:user'")
    with pytest.raises(asyncpg.CheckViolationError):
        await db.execute("update relay_sessions set code = 'ABCD-0I1O'")
    with pytest.raises(asyncpg.UniqueViolationError):
        await db.execute("insert into relay_sessions (token_hash, code) values (repeat('a', 64), 'ABCD-2346')")


async def test_a_callback_is_used_once_and_a_late_reply_is_kept(db: Connection) -> None:
    owner = await insert_account(db)
    message_id = await insert_message(db, owner)
    insert_reply = """
        insert into relay_replies (message_id, account_id, conversation_key, spent_by, outcome, fence, spent_at)
        values ($1, $2, 'bot:user', 'hub', 'sending', $3, now()) on conflict (message_id) do nothing returning state
    """
    assert await db.fetchval(insert_reply, message_id, owner, uuid4()) == "awaited"
    assert await db.fetchval(insert_reply, message_id, owner, uuid4()) is None

    await db.execute("update relay_replies set outcome = 'sent', settled_at = now()")
    with pytest.raises(asyncpg.CheckViolationError):  # a late reply without kept_until
        await db.execute("update relay_replies set response = '{}', answered_at = now()")
    await db.execute("update relay_replies set response = '{}', answered_at = now(), kept_until = now()")
    row = await db.fetchrow("select state, outcome, spent_by from relay_replies")
    assert row is not None
    assert tuple(row) == ("late", "sent", "hub")
