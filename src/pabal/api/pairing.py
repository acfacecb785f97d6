"""Pairing endpoints for bot owners: create codes, list users, unpair, block and approve them."""

from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec

from pabal.core.actor import Actor
from pabal.core.errors import Conflict, NotFound, RateLimited
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.limits import consume_rate_limit
from pabal.relay.auth import AccountOwner
from pabal.relay.conversations import (
    ConversationState,
    approve_pairing,
    block_conversation,
    decode_conversation_cursor,
    deny_pairing,
    encode_conversation_cursor,
    list_conversations,
    lock_conversation,
    unblock_conversation,
    unpair_conversation,
)
from pabal.relay.pairing import codes
from pabal.relay.pairing.codes import create_pairing_code
from pabal.web.auth import verify_owner_in_transaction
from pabal.web.field_types import KeyCursorText
from pabal.web.request import RequestContext
from pabal.web.route import ErrorFormat, RequestBody, RequestQuery, ResponseBody, Route
from pabal.web.untyped_json import check_json_depth

DEFAULT_CODE_SECONDS, MAX_CODE_SECONDS = (
    int(codes.DEFAULT_CODE_LIFETIME.total_seconds()),
    int(codes.MAX_CODE_LIFETIME.total_seconds()),
)


PairingMetadata = Annotated[dict[Annotated[str, msgspec.Meta(max_length=255)], Any], msgspec.Meta(max_length=100)]
"""Data of the owner; its values are bounded by `codes.MAX_METADATA_BYTES`."""


class PairingCodeBody(RequestBody, frozen=True, rename="camel"):
    """Lifetime of the code, and data of your own to store with it."""

    expires_in_seconds: Annotated[int, msgspec.Meta(ge=1, le=MAX_CODE_SECONDS)] = DEFAULT_CODE_SECONDS
    metadata: PairingMetadata | None = None


class PairingCodeView(ResponseBody, frozen=True, rename="camel"):
    """A pairing code. `expiresAt` is in epoch milliseconds."""

    code: str
    expires_at: int


class PairingUserQuery(RequestQuery, frozen=True):
    """Page of users."""

    cursor: KeyCursorText | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 50


class PairingUserView(ResponseBody, frozen=True, rename="camel"):
    """A user who is paired, waits for approval, or is blocked."""

    conversation_key: str
    plusfriend_user_key: str
    state: ConversationState
    paired_at: datetime | None
    last_seen_at: datetime | None


class PairingUserPage(ResponseBody, frozen=True, rename="camel"):
    users: list[PairingUserView]
    cursor: str | None
    has_more: bool


class PairingUserBody(RequestBody, frozen=True, rename="camel"):
    """One of your conversations."""

    conversation_key: Annotated[str, msgspec.Meta(min_length=1, max_length=1100)]


class PairingSuccessView(ResponseBody, frozen=True):
    success: bool


async def post_pairing_code(
    hub: Hub, context: RequestContext, owner: AccountOwner, body: PairingCodeBody
) -> PairingCodeView:
    """Create a pairing code that connects one user to this account. An account has at most five unused codes."""
    async with hub.autocommit() as tx:
        await consume_rate_limit(tx, codes.PAIRING_CODE_RATE_LIMIT, str(owner.account_id))
    if body.metadata is not None:
        check_json_depth(body.metadata, "metadata")
    lifetime = timedelta(seconds=body.expires_in_seconds)
    async with hub.transaction() as tx:
        code = await create_pairing_code(
            tx, owner.account_id, owner_actor(context, owner), lifetime=lifetime, metadata=body.metadata
        )
        await verify_owner_in_transaction(tx, context, owner)
    hub.relay.metrics.pairing_codes_created.add(1)
    return PairingCodeView(code.code, round(code.expires_at.timestamp() * 1000))


async def get_pairing_users(hub: Hub, owner: AccountOwner, query: PairingUserQuery) -> PairingUserPage:
    """List users of this account: paired, waiting for approval, or blocked. Ordered by conversation key."""
    async with hub.autocommit() as tx:
        rows = await list_conversations(
            tx, account=owner.account_id, after=decode_conversation_cursor(query.cursor), limit=query.limit + 1
        )
    page, has_more = rows[: query.limit], len(rows) > query.limit
    views = [
        PairingUserView(**{name: getattr(row, name) for name in PairingUserView.__struct_fields__}) for row in page
    ]
    return PairingUserPage(views, encode_conversation_cursor(page[-1]) if has_more else None, has_more)


async def post_pairing_unpair(
    hub: Hub, context: RequestContext, owner: AccountOwner, body: PairingUserBody
) -> PairingSuccessView:
    """Unpair a user. Their unanswered messages are cancelled."""
    async with hub.transaction() as tx:
        await lock_owned_conversation(tx, context, owner, body)
        await unpair_conversation(tx, body.conversation_key, owner_actor(context, owner), owner.account_id)
    return PairingSuccessView(success=True)


async def post_pairing_block(
    hub: Hub, context: RequestContext, owner: AccountOwner, body: PairingUserBody
) -> PairingSuccessView:
    """Block a user. Their messages are refused, and they cannot pair again until unblocked."""
    async with hub.transaction() as tx:
        await lock_owned_conversation(tx, context, owner, body)
        await block_conversation(tx, body.conversation_key, owner_actor(context, owner), owner.account_id)
    return PairingSuccessView(success=True)


async def post_pairing_unblock(
    hub: Hub, context: RequestContext, owner: AccountOwner, body: PairingUserBody
) -> PairingSuccessView:
    """Unblock a user. A user who was paired is paired again. Returns 409 for a block by an operator."""
    async with hub.transaction() as tx:
        await lock_owned_conversation(tx, context, owner, body)
        await unblock_conversation(tx, body.conversation_key, owner_actor(context, owner), owner.account_id)
    return PairingSuccessView(success=True)


async def post_pairing_approve(
    hub: Hub, context: RequestContext, owner: AccountOwner, body: PairingUserBody
) -> PairingSuccessView:
    """Approve a user who redeemed a code and waits for approval."""
    async with hub.transaction() as tx:
        await lock_owned_conversation(tx, context, owner, body)
        await approve_pairing(
            tx, body.conversation_key, owner_actor(context, owner), hub.relay.metrics, owner.account_id
        )
    return PairingSuccessView(success=True)


async def post_pairing_deny(
    hub: Hub, context: RequestContext, owner: AccountOwner, body: PairingUserBody
) -> PairingSuccessView:
    """Deny a user who waits for approval."""
    async with hub.transaction() as tx:
        await lock_owned_conversation(tx, context, owner, body)
        await deny_pairing(tx, body.conversation_key, owner_actor(context, owner), owner.account_id)
    return PairingSuccessView(success=True)


async def lock_owned_conversation(tx: Tx, context: RequestContext, owner: AccountOwner, body: PairingUserBody) -> None:
    """Lock the conversation, then verify the owner's token: it may have been revoked while we waited for the lock."""
    await lock_conversation(tx, body.conversation_key, owner.account_id)
    await verify_owner_in_transaction(tx, context, owner)


def owner_actor(context: RequestContext, owner: AccountOwner) -> Actor:
    return context.actor(f"account:{owner.account_id}")


ROUTES = tuple(
    Route(
        method,
        f"{prefix}/pairing/{action}",
        handler,
        relay_auth=True,
        may_raise=may_raise,
        error_format=ErrorFormat.RELAY,
        tag="relay",
    )
    for prefix in ("/openclaw", "/v1")
    for method, action, handler, may_raise in (
        ("POST", "generate", post_pairing_code, (RateLimited,)),
        ("GET", "list", get_pairing_users, ()),
        ("POST", "unpair", post_pairing_unpair, (NotFound, Conflict)),
        ("POST", "block", post_pairing_block, (NotFound,)),
        ("POST", "unblock", post_pairing_unblock, (NotFound, Conflict)),
        ("POST", "approve", post_pairing_approve, (NotFound, Conflict)),
        ("POST", "deny", post_pairing_deny, (NotFound, Conflict)),
    )
)
