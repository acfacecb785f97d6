"""Who comes to a door of the relay: the one account, or the waiting session, that a token is for."""

from starlette.requests import Request

from pabal.api.credentials import bearer_token
from pabal.api.visit import RequestContext
from pabal.db.tx import Tx
from pabal.relay.bearer import (
    AccountOwner,
    RelayPrincipal,
    authenticate_relay_token,
    hash_relay_secret,
    lock_owner_account,
    verify_owner_token,
)
from pabal.wiring import Hub


async def authenticate_relay(request: Request, hub: Hub) -> RelayPrincipal:
    """Find whoever shows a session's token or a relay token in the Authorization header."""
    token = bearer_token(request.headers.get("authorization"))
    async with hub.autocommit() as tx:
        return await authenticate_relay_token(tx, token)


async def verify_owner_in_transaction(tx: Tx, context: RequestContext, owner: AccountOwner) -> None:
    """See in a deed's own transaction that the token its owner came with is good until it ends."""
    await lock_owner_account(tx, owner)
    await verify_owner_token(tx, owner, hash_relay_secret(bearer_token(context.request.headers.get("authorization"))))
