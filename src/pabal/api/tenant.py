"""Who comes to a door of the relay: the one account, or the waiting session, that a token is for."""

from starlette.requests import Request

from pabal.api.credentials import bearer
from pabal.api.visit import Visit
from pabal.db.tx import Tx
from pabal.relay.bearer import Bearer, Owner, bearer_of, digest, hold, still
from pabal.wiring import Hub


async def tenant(request: Request, hub: Hub) -> Bearer:
    """Find whoever shows a session's token or a relay token in the Authorization header."""
    token = bearer(request.headers.get("authorization"))
    async with hub.autocommit() as tx:
        return await bearer_of(tx, token)


async def stays(tx: Tx, visit: Visit, owner: Owner) -> None:
    """See in a deed's own transaction that the token its owner came with is good until it ends."""
    await hold(tx, owner)
    await still(tx, owner, digest(bearer(visit.request.headers.get("authorization"))))
