"""An account with one user, whose token is revoked while an action waits for a lock."""

from typing import Literal
from uuid import UUID

from pabal.core.actor import Actor
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.relay.accounts import disable_account, measure_deletion_impact, rotate_relay_token
from relay.people import RelayAccount, add_account, pair_user
from support.relay_log import MessageLog

Revocation = Literal["rotated", "disabled"]

MINA = "mina-plusfriend-1"
OPERATOR = Actor("operator:jun")
SET_STATE = "update conversation_mappings set state = $1, blocked_by = case when $1 = 'BLOCKED' then 'owner' end"


async def create_paired_account(hub: Hub) -> RelayAccount:
    owner = await add_account(hub, "mine")
    await pair_user(hub, MINA, owner.account)
    return owner


async def set_conversation_state(message_log: MessageLog, state: str) -> None:
    """Set the state of the account's user: paired, blocked or pending."""
    await message_log.db.execute(SET_STATE, state)


async def revoke_relay_token(tx: Tx, account: UUID, how: Revocation) -> str | None:
    """Revoke the token as the console does for an operator; returns the new token, if any."""
    await measure_deletion_impact(tx, account)
    if how == "rotated":
        return await rotate_relay_token(tx, account, OPERATOR)
    await disable_account(tx, account, OPERATOR)
    return None


async def unused_codes(message_log: MessageLog) -> int:
    return await message_log.count("pairing_codes where used_at is null")
