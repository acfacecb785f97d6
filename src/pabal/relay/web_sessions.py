"""The portal's sign-ins: an owner shows a token once, and a browser keeps something else for it."""

import secrets
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import NotFound, Unauthenticated
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.limits import RateLimit
from pabal.relay.auth import (
    AccountOwner,
    RelayPrincipal,
    authenticate_relay_token,
    authenticate_relay_token_hash,
    hash_relay_secret,
    lock_owner_account,
    verify_owner_token,
)
from pabal.relay.conversations import ConversationState

Q = load_queries(__file__)

PORTAL_SESSION_LIFETIME = timedelta(hours=12)
PORTAL_SIGN_IN_LIMIT = RateLimit("sign-ins to the portal", 10, timedelta(minutes=5))


@dataclass(frozen=True, slots=True)
class PendingSessionCode:
    """The code of a session that nobody has paired yet, and how long it is good for."""

    code: str
    expires_in: timedelta


async def create_portal_session(tx: Tx, token: str, actor: Actor) -> str:
    """Let in whoever shows a good token; what their browser keeps. `by` says from where they come, not yet who."""
    bearer = await authenticate_relay_token(tx, token)
    cookie = secrets.token_urlsafe(32)
    await tx.run(
        Q.insert_portal_session,
        cookie_hash=hash_relay_secret(cookie),
        token_hash=hash_relay_secret(token),
        life=PORTAL_SESSION_LIFETIME,
    )
    await record_action(tx, replace(actor, name=relay_principal_name(bearer)), "portal.signed_in", str(bearer.token_id))
    return cookie


async def authenticate_portal_session(tx: Tx, cookie: str) -> RelayPrincipal:
    """Whoever is signed in, as the token they showed stands now: one that died has ended this too."""
    return await authenticate_relay_token_hash(tx, await find_portal_token_hash(tx, cookie))


async def find_portal_token_hash(tx: Tx, cookie: str) -> str:
    """What is kept of the token that a browser showed."""
    token_hash = await tx.value(Q.find_portal_token_hash, cookie_hash=hash_relay_secret(cookie))
    if token_hash is None:
        raise Unauthenticated("nobody is signed in here")
    return token_hash


async def lock_portal_owner(tx: Tx, cookie: str, owner: AccountOwner) -> str:
    """See that an owner who was let in still is, and until this transaction ends; what is kept of their token."""
    await lock_owner_account(tx, owner)
    token_hash = await find_portal_token_hash(tx, cookie)
    await verify_owner_token(tx, owner, token_hash)
    return token_hash


async def replace_portal_token(tx: Tx, cookie: str, old_token_hash: str, token: str) -> None:
    """Let one browser stay in with the token that took the place of the one it showed, of which `before` is kept."""
    await tx.run(
        Q.replace_portal_token,
        cookie_hash=hash_relay_secret(cookie),
        before=old_token_hash,
        token_hash=hash_relay_secret(token),
    )


async def delete_portal_session(tx: Tx, cookie: str) -> None:
    await tx.run(Q.delete_portal_session, cookie_hash=hash_relay_secret(cookie))


async def find_pending_session_code(tx: Tx, session: UUID) -> PendingSessionCode | None:
    """The code a session waits with; None for one that waits no longer."""
    return await tx.maybe(PendingSessionCode, Q.find_pending_session_code, session=session)


async def purge_portal_sessions(tx: Tx, batch: int) -> int:
    """Drop the sign-ins that have expired; how many went."""
    return await tx.run(Q.purge_portal_sessions, batch=batch)


def relay_principal_name(principal: RelayPrincipal) -> str:
    """As the audit log calls them: the account, or the session that has none yet."""
    return f"account:{principal.account_id}" if principal.account_id else f"session:{principal.session_id}"


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
