"""Verify: whose access token is this, and what may they do.

A signature is checked once and remembered until the keys change. Whether the token still stands is asked of the table
and believed for at most five seconds; the doorbell makes it at once. When the table cannot be asked, nobody comes in.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from pabal.core.errors import InvalidToken
from pabal.core.secrets import hash_secret
from pabal.db.doorbell import Listener
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.tokens.access import REFRESH_PREFIX, TokenIssuer, decode_access_token
from pabal.tokens.permission import Permission, expand_permissions

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


CACHE_LIFETIME = timedelta(seconds=5)
MAX_CACHED_TOKENS = 20_000
"""Tokens remembered; the oldest makes room. A forgotten one costs a signature and a question again."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class AuthenticatedService:
    """A service that came with a good access token."""

    service: str
    permissions: frozenset[Permission]
    token_id: UUID
    family_id: UUID


@dataclass(frozen=True, slots=True)
class CachedService:
    service: AuthenticatedService
    valid_until: float


class TokenVerifier:
    """The access tokens this process knows. `ear` hears when any token anywhere was revoked."""

    def __init__(
        self, db: Database, issuer: TokenIssuer, listener: Listener, cache_lifetime: timedelta = CACHE_LIFETIME
    ) -> None:
        self._db = db
        self._issuer = issuer
        self._listener = listener
        self._cache_seconds = cache_lifetime.total_seconds()
        self._verified: dict[str, CachedService] = {}
        self._checked_keys = issuer.key_ring.keys
        self._signatures: dict[str, None] = {}
        self._lookups: dict[str, asyncio.Task[CachedService | None]] = {}
        self._generation = 0

    async def verify(self, token: str) -> AuthenticatedService:
        """The caller, or BadToken."""
        if self._listener.take_wakeup():
            self.invalidate()
        digest = hash_secret(token)
        known = self._verified.get(digest)
        if known is not None and time.monotonic() < known.valid_until:
            return known.service
        if (
            keys := self._issuer.key_ring.keys
        ) is not self._checked_keys:  # one may be retired, and with it what it signed
            self._checked_keys = keys
            self._signatures.clear()
        if digest not in self._signatures:
            decode_access_token(self._issuer.key_ring, token, self._issuer.audience)
            put_bounded(self._signatures, digest, None)
        found = await asyncio.shield(self._shared_lookup(token, digest))
        if found is None:
            raise InvalidToken("the access token has expired or was revoked")
        return found.service

    def invalidate(self) -> None:
        """Believe nothing any more without asking again."""
        self._generation += 1
        self._verified.clear()
        self._lookups.clear()

    def _shared_lookup(self, token: str, digest: str) -> asyncio.Task[CachedService | None]:
        """Ask the table once for everybody who waits for the same answer."""
        task = self._lookups.get(digest)
        if task is None:
            task = self._lookups[digest] = asyncio.create_task(self._look_up(token, digest, self._generation))
            task.add_done_callback(lambda done: self._finish_lookup(digest, done))
        return task

    async def _look_up(self, token: str, digest: str, generation: int) -> CachedService | None:
        began = time.monotonic()
        async with self._db.autocommit() as tx:
            found = await find_token_state(tx, token)
        if found is None or not found.is_valid:
            self._verified.pop(digest, None)
            return None
        caller = AuthenticatedService(found.service, expand_permissions(found.permissions), found.id, found.family_id)
        life = min(self._cache_seconds, (found.expires_at - found.now).total_seconds())
        answer = CachedService(caller, began + life)
        if (
            generation == self._generation
        ):  # a revocation rung while we asked may not be in the answer: it is good only once
            put_bounded(self._verified, digest, answer)
        return answer

    def _finish_lookup(self, digest: str, task: "asyncio.Task[CachedService | None]") -> None:
        if self._lookups.get(digest) is task:
            del self._lookups[digest]
        if not task.cancelled():
            task.exception()  # seen by whoever still waits; nobody else needs to hear of it


def put_bounded(cache: dict[str, Value], digest: str, value: Value) -> None:
    cache[digest] = value
    if len(cache) > MAX_CACHED_TOKENS:
        del cache[next(iter(cache))]
