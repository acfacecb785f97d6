"""The page of one conversation: a code typed for in the chat opens it, once, and for half an hour at most."""

import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.core.errors import NotFound, Unauthenticated
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.bearer import hash_relay_secret
from pabal.relay.conversations import ConversationState

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class NewChatPageSession:
    """What the browser keeps that brought the code, and for how long."""

    cookie: str = field(repr=False)
    expires_in: timedelta


@dataclass(frozen=True, slots=True)
class ChatPageSession:
    """Whoever's browser opened the page of this conversation; `left` is how long it stays open."""

    conversation_key: str
    expires_in: timedelta


@dataclass(frozen=True, slots=True)
class ConversationDetails:
    """How a conversation stands: with whom, since when, and how much there is of it.

    `open_messages` are those that would be cancelled with its pairing.
    """

    conversation_key: str
    state: ConversationState
    blocked_by: str | None
    channel: str
    user: str
    account_id: UUID | None
    account: str | None
    is_disabled: bool
    first_seen_at: datetime
    last_seen_at: datetime
    paired_at: datetime | None
    messages: int
    open_messages: int


async def open_chat_page(tx: Tx, code: str) -> NewChatPageSession | None:
    """Take a code, once, and give what its browser may keep; None for a code that is no longer good."""
    cookie = secrets.token_urlsafe(32)
    left = await tx.value(Q.open_chat_page, code_hash=hash_relay_secret(code), cookie_hash=hash_relay_secret(cookie))
    return None if left is None else NewChatPageSession(cookie, left)


async def find_chat_page_session(tx: Tx, cookie: str) -> ChatPageSession:
    """Find whose page a cookie opens."""
    found = await tx.maybe(ChatPageSession, Q.find_chat_page_session, cookie_hash=hash_relay_secret(cookie))
    if found is None:
        raise Unauthenticated("this page is no longer open")
    return found


async def close_chat_page(tx: Tx, cookie: str) -> None:
    await tx.run(Q.delete_chat_page_session, cookie_hash=hash_relay_secret(cookie))


async def find_conversation_details(tx: Tx, key: str) -> ConversationDetails:
    """Of whichever account: for the person themselves, for an operator, or for an owner who was found to be its own."""
    found = await tx.maybe(ConversationDetails, Q.find_conversation_details, conversation=key)
    if found is None:
        raise NotFound("there is no such conversation")
    return found
