"""The page of one conversation: a code typed for in the chat opens it, once, and for half an hour at most."""

import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.core.errors import NotFound, Unauthenticated
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.relay.bearer import digest
from pabal.relay.conversations import State

Q = beside(__file__)


@dataclass(frozen=True, slots=True)
class Opened:
    """What the browser keeps that brought the code, and for how long."""

    cookie: str = field(repr=False)
    left: timedelta


@dataclass(frozen=True, slots=True)
class Reader:
    """Whoever's browser opened the page of this conversation; `left` is how long it stays open."""

    conversation_key: str
    left: timedelta


@dataclass(frozen=True, slots=True)
class Standing:
    """How a conversation stands: with whom, since when, and how much there is of it.

    `open_messages` are those that would be cancelled with its pairing.
    """

    conversation_key: str
    state: State
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


async def open_page(tx: Tx, code: str) -> Opened | None:
    """Take a code, once, and give what its browser may keep; None for a code that is no longer good."""
    cookie = secrets.token_urlsafe(32)
    left = await tx.value(Q.open, code_hash=digest(code), cookie_hash=digest(cookie))
    return None if left is None else Opened(cookie, left)


async def reader_of(tx: Tx, cookie: str) -> Reader:
    """Find whose page a cookie opens."""
    found = await tx.maybe(Reader, Q.find, cookie_hash=digest(cookie))
    if found is None:
        raise Unauthenticated("this page is no longer open")
    return found


async def close_page(tx: Tx, cookie: str) -> None:
    await tx.run(Q.close, cookie_hash=digest(cookie))


async def standing(tx: Tx, key: str) -> Standing:
    """Of whichever account: for the person themselves, for an operator, or for an owner who was found to be its own."""
    found = await tx.maybe(Standing, Q.standing, conversation=key)
    if found is None:
        raise NotFound("there is no such conversation")
    return found
