"""Accounts, conversations and messages as rows, inserted and read by plain SQL."""

import hashlib
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from pabal.core.errors import CallbackExpired
from pabal.hub import Hub
from pabal.relay.reply.reply import BotReply, encode_skill_response
from pabal.relay.reply.send import DeliveredReply, ReplyResult
from support.clusters import Connection
from support.fake_kakao import FakeKakao

ROW_NUMBERS = count(1)
CALLBACK_LIFETIME = timedelta(seconds=55)


def skill_response(*texts: str) -> dict[str, Any]:
    """A bot's skill response with these texts."""
    return {"version": "2.0", "template": {"outputs": [{"simpleText": {"text": text}} for text in texts]}}


@dataclass(frozen=True, slots=True)
class Owner:
    """An account and its relay token."""

    id: UUID
    token: str = field(repr=False)

    @property
    def header(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Chat:
    """The relay's tables, through a connection of their owner."""

    db: Connection

    async def owner(self, **columns: object) -> Owner:
        token = f"prt_{next(ROW_NUMBERS)}"
        values = {
            "openclaw_user_id": token,
            "relay_token_hash": digest(token),
            "rate_limit_per_minute": 10_000,
        } | columns
        placeholders = ", ".join(f"${n}" for n in range(1, len(values) + 1))
        account_id: UUID = await self.db.fetchval(
            f"insert into accounts ({', '.join(values)}) values ({placeholders}) returning id",
            *values.values(),
        )
        return Owner(account_id, token)

    async def session(self, account: UUID | None, *, paired: bool = True, **columns: object) -> str:
        """Insert a session; returns its token."""
        token = f"{next(ROW_NUMBERS):064x}"
        code = f"AAAA-{next(ROW_NUMBERS):04d}".replace("0", "Z").replace("1", "Y")
        await self.db.execute(
            """
            insert into relay_sessions (token_hash, code, account_id, used_at, paired_at)
            values ($1, $2, $3, case when $3::uuid is not null then pabal.now() end,
                    case when $4 then pabal.now() end)
            """,
            digest(token),
            code,
            account,
            paired and account is not None,
        )
        for name, value in columns.items():
            await self.db.execute(
                f"update relay_sessions set {name} = $2 where token_hash = $1",
                digest(token),
                value,
            )
        return token

    async def conversation(self, owner: Owner, user: str = "user") -> str:
        """Pair a user with the owner's bot; returns the conversation key."""
        key = f"channel:{user}"
        await self.db.execute(
            """
            insert into conversation_mappings
              (conversation_key, kakao_channel_id, plusfriend_user_key, account_id, state, paired_at)
            values ($1, 'channel', $2, $3, 'PAIRED', pabal.now())
            on conflict (conversation_key) do update set account_id = $3, state = 'PAIRED', paired_at = pabal.now()
            """,
            key,
            user,
            owner.id,
        )
        return key

    async def message(self, owner: Owner, key: str, url: str | None, life: timedelta = CALLBACK_LIFETIME) -> UUID:
        message_id: UUID = await self.db.fetchval(
            """
            insert into inbound_messages (
              account_id, conversation_key, kakao_payload, normalized, source_event_id, callback_url,
              callback_expires_at
            ) values ($1, $2, '{}', '{}', $5, $3, case when $3::text is not null then pabal.now() + $4::interval end)
            returning id
            """,
            owner.id,
            key,
            url,
            life,
            str(next(ROW_NUMBERS)),
        )
        return message_id

    async def status(self, message: UUID) -> tuple[str, str | None]:
        row = await self.db.fetchrow("select status, reason from inbound_messages where id = $1", message)
        assert row
        return row["status"], row["reason"]

    async def reply(self, message: UUID) -> dict[str, Any] | None:
        """The row of a message's reply."""
        row = await self.db.fetchrow("select * from relay_replies where message_id = $1", message)
        return dict(row) if row else None

    async def state(self, message: UUID) -> str | None:
        state: str | None = await self.db.fetchval("select state from relay_replies where message_id = $1", message)
        return state

    async def failures(self) -> list[str]:
        """The outcomes of callback failures, published or not."""
        rows = await self.db.fetch(
            "select payload ->> 'outcome' as outcome from ("
            "select id, event_type, payload from event_queue "
            "union all select id, event_type, payload from pabal.relay_event_outbox"
            ") e where event_type = 'relay.callback.failed' order by id"
        )
        return [row["outcome"] for row in rows]


@dataclass(frozen=True, slots=True)
class Bot:
    """A bot, its only user, and the fake Kakao between them."""

    hub: Hub
    chat: Chat
    kakao: FakeKakao
    owner: Owner
    key: str

    @classmethod
    async def of(cls, hub: Hub, chat: Chat, there: FakeKakao, user: str = "user") -> "Bot":
        owner = await chat.owner()
        return cls(hub, chat, there, owner, await chat.conversation(owner, user))

    async def insert_message(self, name: str, life: timedelta = CALLBACK_LIFETIME) -> UUID:
        """Insert a message with a callback of this name."""
        return await self.chat.message(self.owner, self.key, self.kakao.url(name), life)

    async def send_reply(self, message: UUID, *texts: str) -> DeliveredReply:
        """A reply that reaches Kakao."""
        result = await self.send_block(message, *texts)
        assert isinstance(result, DeliveredReply)
        return result

    async def send_block(self, message: UUID, *texts: str) -> ReplyResult:
        """A reply, or a further block of it."""
        response = skill_response(*texts)
        return await self.hub.relay.replies.send(
            BotReply(digest(self.owner.token), message, None, response, encode_skill_response(response))
        )

    async def send_late_reply(self, *texts: str) -> UUID:
        """A reply after its callback expired."""
        message = await self.insert_message("gone", timedelta(seconds=-1))
        with pytest.raises(CallbackExpired):
            await self.send_reply(message, *texts)
        return message
