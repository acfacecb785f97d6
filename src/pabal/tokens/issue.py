"""Issue: a service shows who it is and gets an access token, and what to refresh it with."""

from uuid import UUID

from pabal.core.actor import Actor
from pabal.core.errors import InvalidClient
from pabal.core.ids import new_id
from pabal.db.bells import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.tokens.clients import OAuthClient
from pabal.tokens.mint import TOKEN_FAMILY_LIFETIME, TokenIssuer, TokenPair

Q = load_queries(__file__)


async def issue_tokens(
    tx: Tx,
    issuer: TokenIssuer,
    client: OAuthClient,
    permissions: tuple[str, ...],
    actor: Actor,
    *,
    refreshable: bool = True,
    issued_by: UUID | None = None,
) -> TokenPair:
    """Found a family with its first tokens. `permissions` are granted already."""
    family, now = new_id(), client.now
    until = now + TOKEN_FAMILY_LIFETIME
    access = issuer.create_access_token(client.service, permissions, family, now=now, latest_expiry=until)
    refresh = issuer.create_refresh_token(now=now, latest_expiry=until) if refreshable else None
    done = await tx.value(
        Q.issue_tokens,
        service=client.service,
        permissions=permissions,
        family=family,
        family_ends=until if refreshable else access.expires_at,
        access_id=access.id,
        access=access.envelope,
        access_hash=access.token_hash,
        access_ends=access.expires_at,
        refresh_id=refresh and refresh.id,
        refresh=refresh and refresh.envelope,
        refresh_hash=refresh and refresh.token_hash,
        refresh_ends=refresh and refresh.expires_at,
        event=new_id(),
        issued_by=issued_by,
        actor=actor.name,
        client_ip=actor.client_ip,
        user_agent=actor.user_agent,
        request_id=actor.request_id,
    )
    if done is None:
        raise InvalidClient
    tx.notify(Channel.EVENTS)
    return TokenPair(family, access.token, refresh and refresh.token, permissions, access.expires_at - now)
