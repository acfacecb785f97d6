"""Issue: a service shows who it is and gets an access token, and what to refresh it with."""

from uuid import UUID

from pabal.core.actor import Actor
from pabal.core.errors import UnknownClient
from pabal.core.ids import new_id
from pabal.db.bells import Bell
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.tokens.clients import Client
from pabal.tokens.mint import FAMILY_LIFE, Mint, Pair

Q = beside(__file__)


async def issue(
    tx: Tx,
    mint: Mint,
    client: Client,
    permissions: tuple[str, ...],
    by: Actor,
    *,
    refreshable: bool = True,
    issued_by: UUID | None = None,
) -> Pair:
    """Found a family with its first tokens. `permissions` are granted already."""
    family, now = new_id(), client.now
    until = now + FAMILY_LIFE
    access = mint.access(client.service, permissions, family, now=now, until=until)
    refresh = mint.refresh(now=now, until=until) if refreshable else None
    done = await tx.value(
        Q.issue,
        service=client.service,
        permissions=permissions,
        family=family,
        family_ends=until if refreshable else access.expires_at,
        access_id=access.id,
        access=access.envelope,
        access_hash=access.hash,
        access_ends=access.expires_at,
        refresh_id=refresh and refresh.id,
        refresh=refresh and refresh.envelope,
        refresh_hash=refresh and refresh.hash,
        refresh_ends=refresh and refresh.expires_at,
        event=new_id(),
        issued_by=issued_by,
        actor=by.name,
        client_ip=by.client_ip,
        user_agent=by.user_agent,
        request_id=by.request_id,
    )
    if done is None:
        raise UnknownClient
    tx.ring(Bell.EVENTS)
    return Pair(family, access.token, refresh and refresh.token, permissions, access.expires_at - now)
