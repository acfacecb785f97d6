"""Browser sessions: an owner's portal session in place of the token, and a user's chat page opened by a code."""

import secrets
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Unauthenticated
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
from pabal.relay.conversations import BlockedBy, ConversationState, conversation_not_found

Q = load_queries(__file__)

PORTAL_SESSION_LIFETIME = timedelta(hours=12)
PORTAL_SIGN_IN_LIMIT = RateLimit("sign-ins to the portal", 10, timedelta(minutes=5))


@dataclass(frozen=True, slots=True)
class PendingSessionCode:
    """The pairing code of a session that is not paired yet."""

    code: str
    expires_in: timedelta


async def create_portal_session(tx: Tx, token: str, actor: Actor) -> str:
    """Sign in with a token; returns the cookie. `actor` carries the client's address, the token its name."""
    principal = await authenticate_relay_token(tx, token)
    cookie = secrets.token_urlsafe(32)
    await tx.run(
        Q.insert_portal_session,
        cookie_hash=hash_relay_secret(cookie),
        token_hash=hash_relay_secret(token),
        life=PORTAL_SESSION_LIFETIME,
    )
    await record_action(
        tx, replace(actor, name=relay_principal_name(principal)), "portal.signed_in", str(principal.token_id)
    )
    return cookie


async def authenticate_portal_session(tx: Tx, cookie: str) -> RelayPrincipal:
    """The principal of a cookie. The session ends with the token it was opened with."""
    return await authenticate_relay_token_hash(tx, await find_portal_token_hash(tx, cookie))


async def find_portal_token_hash(tx: Tx, cookie: str) -> str:
    """The hash of the token that the session was opened with."""
    token_hash = await tx.value(Q.find_portal_token_hash, cookie_hash=hash_relay_secret(cookie))
    if token_hash is None:
        raise Unauthenticated("not signed in")
    return token_hash


async def lock_portal_owner(tx: Tx, cookie: str, owner: AccountOwner) -> str:
    """Keep an owner's sign-in valid until this transaction ends; returns the hash of their token."""
    await lock_owner_account(tx, owner)
    token_hash = await find_portal_token_hash(tx, cookie)
    await verify_owner_token(tx, owner, token_hash)
    return token_hash


async def replace_portal_token(tx: Tx, cookie: str, old_token_hash: str, token: str) -> None:
    """Move one browser session from a rotated token to the new one, so that it stays signed in."""
    await tx.run(
        Q.replace_portal_token,
        cookie_hash=hash_relay_secret(cookie),
        before=old_token_hash,
        token_hash=hash_relay_secret(token),
    )


async def delete_portal_session(tx: Tx, cookie: str) -> None:
    await tx.run(Q.delete_portal_session, cookie_hash=hash_relay_secret(cookie))


async def find_pending_session_code(tx: Tx, session: UUID) -> PendingSessionCode | None:
    """The live code of a session; None if it is paired, revoked or expired."""
    return await tx.maybe(PendingSessionCode, Q.find_pending_session_code, session=session)


async def purge_portal_sessions(tx: Tx, batch: int) -> int:
    """Delete expired portal sessions; returns how many."""
    return await tx.run(Q.purge_portal_sessions, batch=batch)


def relay_principal_name(principal: RelayPrincipal) -> str:
    """The principal's name in the audit log: its account, or its session before the first pairing."""
    return f"account:{principal.account_id}" if principal.account_id else f"session:{principal.session_id}"


@dataclass(frozen=True, slots=True)
class NewChatPageSession:
    """The cookie for the browser that redeemed the page code."""

    cookie: str = field(repr=False)
    expires_in: timedelta


@dataclass(frozen=True, slots=True)
class ChatPageSession:
    """A browser session that shows one conversation."""

    conversation_key: str
    expires_in: timedelta


@dataclass(frozen=True, slots=True)
class ConversationDetails:
    """A conversation with its account and message counts. Unpairing would cancel the `open_messages`."""

    conversation_key: str
    state: ConversationState
    blocked_by: BlockedBy | None
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
    """Redeem a page code, once; None for a code that is used, expired or unknown."""
    cookie = secrets.token_urlsafe(32)
    expires_in = await tx.value(
        Q.open_chat_page, code_hash=hash_relay_secret(code), cookie_hash=hash_relay_secret(cookie)
    )
    return None if expires_in is None else NewChatPageSession(cookie, expires_in)


async def find_chat_page_session(tx: Tx, cookie: str) -> ChatPageSession:
    """The chat page session of a cookie."""
    session = await tx.maybe(ChatPageSession, Q.find_chat_page_session, cookie_hash=hash_relay_secret(cookie))
    if session is None:
        raise Unauthenticated("the chat page session has expired")
    return session


async def close_chat_page(tx: Tx, cookie: str) -> None:
    await tx.run(Q.delete_chat_page_session, cookie_hash=hash_relay_secret(cookie))


async def find_conversation_details(tx: Tx, key: str) -> ConversationDetails:
    """One conversation, of any account. The caller has checked that it may be read."""
    details = await tx.maybe(ConversationDetails, Q.find_conversation_details, conversation=key)
    if details is None:
        raise conversation_not_found()
    return details
