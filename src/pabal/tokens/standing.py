"""How a token stands, asked of the table and of nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.tokens.digest import hash_secret
from pabal.tokens.mint import REFRESH_PREFIX

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class TokenState:
    """A token that was issued once, and whether it is good now. `now` is the database's time."""

    id: UUID
    family_id: UUID
    service: str
    permissions: Sequence[str]
    created_at: datetime
    expires_at: datetime
    is_valid: bool
    now: datetime = field(repr=False)


def is_refresh_token(token: str) -> bool:
    """Our two kinds cannot be taken for each other."""
    return token.startswith(REFRESH_PREFIX)


async def find_token_state(tx: Tx, token: str) -> TokenState | None:
    """How this token stands; None when it was never one of ours, or so long ago that nobody remembers."""
    return await tx.maybe(
        TokenState,
        Q.find_refresh_token_state if is_refresh_token(token) else Q.find_access_token_state,
        hash=hash_secret(token),
    )


async def list_access_tokens(
    tx: Tx,
    *,
    service: str | None = None,
    after: tuple[datetime, UUID] | None = None,
    include_ended: bool = False,
    limit: int = 50,
) -> list[TokenState]:
    """Access tokens, the newest first; those that ended only when asked for."""
    at, row = after or (None, None)
    return await tx.all(
        TokenState, Q.list_access_tokens, service=service, after=at, after_id=row, all=include_ended, limit=limit
    )
