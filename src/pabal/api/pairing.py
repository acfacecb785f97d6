"""Pairing, for a bot's owner: make codes, see who is connected, let go, keep out, let in."""

from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec

from pabal.api.door import Answer, Body, Door, Query, Shape
from pabal.api.tenant import stays
from pabal.api.visit import Visit
from pabal.core.actor import Actor
from pabal.core.base64url import decoded, encoded
from pabal.core.errors import Conflict, Invalid, NotFound, TooMany
from pabal.db.tx import Tx
from pabal.limits import take
from pabal.relay import codes, conversations
from pabal.relay.bearer import Owner
from pabal.relay.conversations import State
from pabal.wiring import Hub

LIFE, LONGEST = int(codes.LIFE.total_seconds()), int(codes.LONGEST.total_seconds())


class CodeRequest(Body, frozen=True, rename="camel"):
    """How long the code shall be good for, and what its owner wants to remember of it."""

    expires_in_seconds: Annotated[int, msgspec.Meta(ge=1, le=LONGEST)] = LIFE
    metadata: dict[str, Any] | None = None


class CodeView(Answer, frozen=True, rename="camel"):
    """A pairing code; `expiresAt` in milliseconds since 1970."""

    code: str
    expires_at: int


class UserQuery(Query, frozen=True):
    """Which page of the users."""

    cursor: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 50


class UserView(Answer, frozen=True, rename="camel"):
    """A user: connected, waiting for approval, or blocked."""

    conversation_key: str
    plusfriend_user_key: str
    state: State
    paired_at: datetime | None
    last_seen_at: datetime | None


class UserPage(Answer, frozen=True, rename="camel"):
    users: list[UserView]
    cursor: str | None
    has_more: bool


class Which(Body, frozen=True, rename="camel"):
    """One of the owner's conversations."""

    conversation_key: Annotated[str, msgspec.Meta(min_length=1, max_length=1100)]


class Success(Answer, frozen=True):
    success: bool


async def generate_code(hub: Hub, visit: Visit, owner: Owner, body: CodeRequest) -> CodeView:
    """Make a code that connects one more user to this account. At most five are live at once."""
    async with hub.autocommit() as tx:
        await take(tx, codes.PER_MINUTE, str(owner.account))
    life = timedelta(seconds=body.expires_in_seconds)
    async with hub.transaction() as tx:
        made = await codes.generate(tx, owner.account, by(visit, owner), life=life, metadata=body.metadata)
        await stays(tx, visit, owner)
    hub.relay.figures.created.add(1)
    return CodeView(made.code, round(made.expires_at.timestamp() * 1000))


async def list_users(hub: Hub, owner: Owner, query: UserQuery) -> UserPage:
    """Who is connected to this account, waits for approval, or is blocked; by their keys."""
    async with hub.autocommit() as tx:
        rows = await conversations.every(tx, account=owner.account, after=place_of(query.cursor), limit=query.limit + 1)
    page, has_more = rows[: query.limit], len(rows) > query.limit
    views = [UserView(**{name: getattr(row, name) for name in UserView.__struct_fields__}) for row in page]
    return UserPage(views, encoded(page[-1].conversation_key.encode()) if has_more else None, has_more)


async def unpair_user(hub: Hub, visit: Visit, owner: Owner, body: Which) -> Success:
    """Disconnect a user. What they wrote and nobody answered is cancelled."""
    async with hub.transaction() as tx:
        await hold(tx, visit, owner, body)
        await conversations.unpair(tx, body.conversation_key, by(visit, owner), owner.account)
    return Success(success=True)


async def block_user(hub: Hub, visit: Visit, owner: Owner, body: Which) -> Success:
    """Take nothing more from a user; no code helps them until they are unblocked."""
    async with hub.transaction() as tx:
        await hold(tx, visit, owner, body)
        await conversations.block(tx, body.conversation_key, by(visit, owner), owner.account)
    return Success(success=True)


async def unblock_user(hub: Hub, visit: Visit, owner: Owner, body: Which) -> Success:
    """Undo a block: who was connected before is connected again. An operator's block is 409."""
    async with hub.transaction() as tx:
        await hold(tx, visit, owner, body)
        await conversations.unblock(tx, body.conversation_key, by(visit, owner), owner.account)
    return Success(success=True)


async def approve_user(hub: Hub, visit: Visit, owner: Owner, body: Which) -> Success:
    """Let in a user who has redeemed a code and waits for it."""
    async with hub.transaction() as tx:
        await hold(tx, visit, owner, body)
        await conversations.approve(tx, body.conversation_key, by(visit, owner), hub.relay.figures, owner.account)
    return Success(success=True)


async def deny_user(hub: Hub, visit: Visit, owner: Owner, body: Which) -> Success:
    """Send away a user who waits for approval."""
    async with hub.transaction() as tx:
        await hold(tx, visit, owner, body)
        await conversations.deny(tx, body.conversation_key, by(visit, owner), owner.account)
    return Success(success=True)


async def hold(tx: Tx, visit: Visit, owner: Owner, body: Which) -> None:
    """Wait for whoever is at this conversation, and see then that the owner is let in: the deed may end that itself."""
    await conversations.held(tx, body.conversation_key, owner.account)
    await stays(tx, visit, owner)


def by(visit: Visit, owner: Owner) -> Actor:
    return visit.by(f"account:{owner.account}")


def place_of(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        key = decoded(cursor).decode()
    except ValueError:
        raise Invalid.one("cursor", "is not one this list gave") from None
    if "\0" in key:
        raise Invalid.one("cursor", "is not one this list gave")
    return key


DOORS = tuple(
    Door(method, f"{family}/pairing/{word}", handler, bearer=True, may_raise=may_raise, shape=Shape.RELAY, tag="relay")
    for family in ("/openclaw", "/v1")
    for method, word, handler, may_raise in (
        ("POST", "generate", generate_code, (TooMany,)),
        ("GET", "list", list_users, ()),
        ("POST", "unpair", unpair_user, (NotFound, Conflict)),
        ("POST", "block", block_user, (NotFound,)),
        ("POST", "unblock", unblock_user, (NotFound, Conflict)),
        ("POST", "approve", approve_user, (NotFound, Conflict)),
        ("POST", "deny", deny_user, (NotFound, Conflict)),
    )
)
