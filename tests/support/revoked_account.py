"""An account with one user, whose token is revoked while an action waits for a lock."""

from typing import Literal
from uuid import UUID

from pabal.core.actor import Actor
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.relay.accounts import disable_account, measure_deletion_impact, rotate_relay_token
from relay.people import Owning, an_owner, pair
from support.relay_log import Talk

End = Literal["rotated", "disabled"]

MINA = "mina-plusfriend-1"
OPERATOR = Actor("operator:jun")
SET_STATE = "update conversation_mappings set state = $1, blocked_by = case when $1 = 'BLOCKED' then 'owner' end"


async def an_owner_of_mina(hub: Hub) -> Owning:
    owner = await an_owner(hub, "mine")
    await pair(hub, MINA, owner.account)
    return owner


async def stand(talk: Talk, state: str) -> None:
    """Set the state of the account's user: paired, blocked or pending."""
    await talk.db.execute(SET_STATE, state)


async def end(tx: Tx, account: UUID, how: End) -> str | None:
    """Revoke the token as the console does for an operator; returns the new token, if any."""
    await measure_deletion_impact(tx, account)
    if how == "rotated":
        return await rotate_relay_token(tx, account, OPERATOR)
    await disable_account(tx, account, OPERATOR)
    return None


async def unused_codes(talk: Talk) -> int:
    return await talk.count("pairing_codes where used_at is null")
