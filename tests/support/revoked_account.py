"""An account with one user, whose token ends at the worst moment for whoever acts with it."""

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
STANDS = "update conversation_mappings set state = $1, blocked_by = case when $1 = 'BLOCKED' then 'owner' end"


async def an_owner_of_mina(hub: Hub) -> Owning:
    made = await an_owner(hub, "mine")
    await pair(hub, MINA, made.account)
    return made


async def stand(talk: Talk, state: str) -> None:
    """The account's user is paired, blocked, or waits to be let in."""
    await talk.db.execute(STANDS, state)


async def end(tx: Tx, account: UUID, how: End) -> str | None:
    """Done by an operator, as the console does it; the new token, if there is one."""
    await measure_deletion_impact(tx, account)
    if how == "rotated":
        return await rotate_relay_token(tx, account, OPERATOR)
    await disable_account(tx, account, OPERATOR)
    return None


async def unused_codes(talk: Talk) -> int:
    return await talk.count("pairing_codes where used_at is null")
