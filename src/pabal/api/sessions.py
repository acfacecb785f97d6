"""Sessions: a client asks for a token and a code, and whether somebody has typed the code."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from msgspec import Meta

from pabal.api.door import Answer, Door, Shape
from pabal.api.visit import Visit
from pabal.core.errors import AccountDisabled, NotFound, TooMany, Unavailable
from pabal.limits import take, whose
from pabal.relay import sessions
from pabal.relay.sessions import LIFE, PER_ADDRESS, State
from pabal.wiring import Hub

Token = Annotated[str, Meta(extra_json_schema={"pattern": "^[0-9a-f]{64}$"})]
"""As we make them; anything else is nobody's, and not found."""


class SessionView(Answer, frozen=True, rename="camel"):
    """A new session; token and code are shown this once. `expiresIn` is how many seconds the code is good for."""

    session_token: str
    pairing_code: str
    expires_in: int
    status: State

    def __repr__(self) -> str:
        return "SessionView(…)"


class SessionStatus(Answer, frozen=True, rename="camel", omit_defaults=True):
    """How a session stands, and with whom."""

    status: State
    paired_at: datetime | None = None
    kakao_user_id: str | None = None
    account_id: UUID | None = None


async def create_session(hub: Hub, visit: Visit) -> SessionView:
    """Begin a session. A user connects it by typing its code in the chat, within five minutes. A body is not needed."""
    address = visit.by("").client_ip
    async with hub.autocommit() as tx:
        await take(tx, PER_ADDRESS, whose(address or "nowhere"))
        made = await sessions.create(tx, address)
    hub.relay.figures.created.add(1)
    return SessionView(made.token, made.code, int(LIFE.total_seconds()), "pending_pairing")


async def show_session(hub: Hub, token: Token) -> SessionStatus:
    """How a session stands: pending, paired, expired, or disconnected after its last user left."""
    async with hub.autocommit() as tx:
        found = await sessions.status(tx, token)
    return SessionStatus(found.state, found.paired_at, found.user, found.account)


DOORS = (
    Door(
        "POST",
        "/v1/sessions/create",
        create_session,
        may_raise=(TooMany, Unavailable),
        shape=Shape.RELAY,
        tag="relay",
    ),
    Door(
        "GET",
        "/v1/sessions/{token}/status",
        show_session,
        may_raise=(NotFound, AccountDisabled, Unavailable),
        discreet=True,
        shape=Shape.RELAY,
        tag="relay",
    ),
)
