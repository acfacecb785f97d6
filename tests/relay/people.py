"""Owners with tokens, clients with sessions, and users who write."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from pabal.core.actor import Actor
from pabal.core.ids import new_id
from pabal.hub import Hub
from pabal.relay.accounts import create_account
from pabal.relay.pairing.codes import create_pairing_code
from pabal.relay.pairing.sessions import NewRelaySession, create_relay_session
from pabal.relay.webhook.commands import parse_chat_command, run_chat_command
from pabal.relay.webhook.payload import InboundPayload
from pabal.settings import Settings
from support.clusters import Connection

TESTER = Actor("tester")
CHANNEL = "bot"

INSERT_MESSAGE = """
insert into public.inbound_messages (id, account_id, conversation_key, kakao_payload, normalized, source_event_id)
values ($1::uuid, $2, $3, '{}', '{}', $1::uuid::text)
"""


@dataclass(frozen=True, slots=True)
class RelayAccount:
    """A bot's owner with a relay token."""

    account: UUID
    token: str = field(repr=False)

    @property
    def bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}


def key_of_user(user: str) -> str:
    return f"{CHANNEL}:{user}"


async def add_account(hub: Hub, name: str = "owner", rate_limit: int = 60) -> RelayAccount:
    """Create an account with a relay token."""
    async with hub.transaction() as tx:
        account, token = await create_account(tx, name, TESTER, rate_limit=rate_limit)
    return RelayAccount(account.id, token)


async def new_session(hub: Hub) -> NewRelaySession:
    """Create a session with a token and a code."""
    async with hub.autocommit() as tx:
        return await create_relay_session(tx, "127.0.0.1")


async def create_code(hub: Hub, account: UUID, **options: Any) -> str:
    async with hub.transaction() as tx:
        return (await create_pairing_code(tx, account, TESTER, **options)).code


async def send_command(
    hub: Hub, user: str, text: str, *, event: str | None = None, settings: Settings | None = None
) -> str:
    """Send a command as a user and return the text of the response. Repeat `event` to repeat a webhook."""
    settings = settings or hub.settings
    payload = InboundPayload(CHANNEL, user, text, None, event or new_id().hex, "{}")
    command = parse_chat_command(text, settings.command_prefix)
    assert command, f"{text} is no command"
    async with hub.transaction() as tx:
        response = await run_chat_command(tx, payload, command, settings, hub.relay.metrics)
    [output] = response["template"]["outputs"]
    return output["simpleText"]["text"]


async def pair_user(hub: Hub, user: str, account: UUID) -> str:
    """Pair a user with an account by a new code; returns the conversation key."""
    await send_command(hub, user, f"/pair {await create_code(hub, account)}")
    return key_of_user(user)


async def insert_message(owner: Connection, account: UUID, user: str) -> UUID:
    """Insert a queued message, as a webhook would."""
    message = new_id()
    await owner.execute(INSERT_MESSAGE, message, account, key_of_user(user))
    return message


async def load_conversation(owner: Connection, user: str) -> dict[str, Any]:
    row = await owner.fetchrow(
        "select * from public.conversation_mappings where conversation_key = $1", key_of_user(user)
    )
    return dict(row) if row else {}


async def conversation_state_of(owner: Connection, user: str) -> tuple[str, UUID | None]:
    """The state of a user's conversation, and its account."""
    row = await load_conversation(owner, user)
    return row["state"], row["account_id"]


async def control_events(owner: Connection) -> list[tuple[str, UUID | None, UUID | None]]:
    """All control events in order: kind, account, session."""
    rows = await owner.fetch("select kind, account_id, session_id from public.relay_control_events order by id")
    return [(row["kind"], row["account_id"], row["session_id"]) for row in rows]


async def audit_actions_of(owner: Connection, subject: object) -> list[str]:
    rows = await owner.fetch("select action from pabal.audit_log where subject = $1 order by id", str(subject))
    return [row["action"] for row in rows]
