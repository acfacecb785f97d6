"""Who comes to a door of the relay: the one account, or the waiting session, that a token is for."""

from starlette.requests import Request

from pabal.api.credentials import bearer
from pabal.relay.bearer import Bearer, bearer_of
from pabal.wiring import Hub


async def tenant(request: Request, hub: Hub) -> Bearer:
    """Find whoever shows a session's token or a relay token in the Authorization header."""
    token = bearer(request.headers.get("authorization"))
    async with hub.autocommit() as tx:
        return await bearer_of(tx, token)
