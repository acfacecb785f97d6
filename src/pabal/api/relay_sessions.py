"""Session endpoints: get a token with a pairing code, and poll whether a user has redeemed the code."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from msgspec import Meta

from pabal.core.errors import AccountDisabled, NotFound, RateLimited, Unavailable
from pabal.hub import Hub
from pabal.limits import consume_rate_limit, rate_limit_address
from pabal.relay.pairing.sessions import (
    NEW_SESSION_LIMIT,
    SESSION_CODE_LIFETIME,
    RelaySessionState,
    create_relay_session,
    find_relay_session_status,
)
from pabal.web.request import RequestContext
from pabal.web.route import ErrorFormat, ResponseBody, Route

SessionToken = Annotated[str, Meta(max_length=255, extra_json_schema={"pattern": "^[0-9a-f]{64}$"})]
"""The form of our tokens. Anything else is not found."""


class RelaySessionView(ResponseBody, frozen=True, rename="camel"):
    """A new session. The token is shown only here. The code expires after `expiresIn` seconds."""

    session_token: str
    pairing_code: str
    expires_in: int
    status: RelaySessionState

    def __repr__(self) -> str:
        return "RelaySessionView(…)"


class RelaySessionStatusView(ResponseBody, frozen=True, rename="camel", omit_defaults=True):
    """The status of a session and its user."""

    status: RelaySessionState
    paired_at: datetime | None = None
    kakao_user_id: str | None = None
    account_id: UUID | None = None


async def post_relay_session(hub: Hub, context: RequestContext) -> RelaySessionView:
    """Create a session. A user connects by sending its code in the chat within five minutes. Needs no body."""
    address = context.actor("").client_ip
    async with hub.autocommit() as tx:
        await consume_rate_limit(tx, NEW_SESSION_LIMIT, rate_limit_address(address or "unknown"))
        session = await create_relay_session(tx, address)
    hub.relay.metrics.pairing_codes_created.add(1)
    return RelaySessionView(session.token, session.code, int(SESSION_CODE_LIFETIME.total_seconds()), "pending_pairing")


async def get_relay_session_status(hub: Hub, token: SessionToken) -> RelaySessionStatusView:
    """Get the status of a session: pending, paired, expired, or disconnected after its last user left."""
    async with hub.autocommit() as tx:
        status = await find_relay_session_status(tx, token)
    return RelaySessionStatusView(status.state, status.paired_at, status.user_key, status.account_id)


ROUTES = (
    Route(
        "POST",
        "/v1/sessions/create",
        post_relay_session,
        may_raise=(RateLimited, Unavailable),
        error_format=ErrorFormat.RELAY,
        tag="relay",
    ),
    Route(
        "GET",
        "/v1/sessions/{token}/status",
        get_relay_session_status,
        may_raise=(NotFound, AccountDisabled, Unavailable),
        hide_path=True,
        error_format=ErrorFormat.RELAY,
        tag="relay",
    ),
)
