"""Verify access tokens.

A signature is checked once and cached until the keys change. The state of the token is read from the table and cached
for at most five seconds; a revocation clears the cache through the doorbell. Without the database, no token is valid.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from pabal.core.errors import InvalidToken
from pabal.core.secrets import hash_token
from pabal.db.doorbell.doorbell import Listener
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.tokens.issuer import REFRESH_PREFIX, TokenIssuer, decode_access_token
from pabal.tokens.permission import Permission, expand_permissions

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class TokenState:
    """An issued token, and whether it is valid now. `now` is the database's time.

    `permissions` are those of the grant, `service_permissions` those that the service has now.
    """

    id: UUID
    family_id: UUID
    service: str
    permissions: Sequence[str]
    service_permissions: Sequence[str]
    may_publish: Sequence[str] | None
    created_at: datetime
    expires_at: datetime
    is_valid: bool
    now: datetime = field(repr=False)

    @property
    def effective_permissions(self) -> frozenset[Permission]:
        """The permissions of the grant, without those that the service has lost since."""
        return expand_permissions(self.permissions) & expand_permissions(self.service_permissions)


def is_refresh_token(token: str) -> bool:
    """Tell refresh tokens from access tokens, which are JWTs."""
    return token.startswith(REFRESH_PREFIX)


async def find_token_state(tx: Tx, token: str) -> TokenState | None:
    """The state of a token; None if it is unknown or was purged."""
    return await tx.maybe(
        TokenState,
        Q.find_refresh_token_state if is_refresh_token(token) else Q.find_access_token_state,
        hash=hash_token(token).hex(),
    )


async def list_access_tokens(
    tx: Tx,
    *,
    service: str | None = None,
    after: tuple[datetime, UUID] | None = None,
    include_ended: bool = False,
    limit: int = 50,
) -> list[TokenState]:
    """Access tokens, newest first. Expired and revoked ones only with `include_ended`."""
    created_at, row_id = after or (None, None)
    return await tx.all(
        TokenState,
        Q.list_access_tokens,
        service=service,
        after=created_at,
        after_id=row_id,
        include_ended=include_ended,
        limit=limit,
    )


CACHE_LIFETIME = timedelta(seconds=5)
MAX_CACHED_TOKENS = 20_000
"""When the cache is full, the oldest token is dropped and verified again at its next use."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class AuthenticatedService:
    """A service that authenticated with a valid access token.

    `may_publish` are the patterns of the event types that it may publish; None means all but the hub's.
    """

    service: str
    permissions: frozenset[Permission]
    token_id: UUID
    family_id: UUID
    may_publish: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class CachedService:
    service: AuthenticatedService
    valid_until: float


class TokenVerifier:
    """Verifies and caches access tokens with the rights of their services.

    `listener` receives a wakeup when a token is revoked or the rights of a service change.
    """

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
        """Return the service of a valid token; raises InvalidToken otherwise."""
        if self._listener.take_wakeup():
            self.invalidate()
        digest = hash_token(token).hex()
        cached = self._verified.get(digest)
        if cached is not None and time.monotonic() < cached.valid_until:
            return cached.service
        keys = self._issuer.key_ring.keys
        if keys is not self._checked_keys:  # a signing key may have been removed
            self._checked_keys = keys
            self._signatures.clear()
        if digest not in self._signatures:
            decode_access_token(self._issuer.key_ring, token, self._issuer.audience)
            put_bounded(self._signatures, digest, None)
        verified = await asyncio.shield(self._shared_lookup(token, digest))
        if verified is None:
            raise InvalidToken("the access token has expired or was revoked")
        return verified.service

    def invalidate(self) -> None:
        """Drop the cached states, so that every token is looked up again."""
        self._generation += 1
        self._verified.clear()
        self._lookups.clear()

    def _shared_lookup(self, token: str, digest: str) -> asyncio.Task[CachedService | None]:
        """Look a token up once for all concurrent requests that present it."""
        task = self._lookups.get(digest)
        if task is None:
            task = self._lookups[digest] = asyncio.create_task(self._look_up(token, digest, self._generation))
            task.add_done_callback(lambda done: self._finish_lookup(digest, done))
        return task

    async def _look_up(self, token: str, digest: str, generation: int) -> CachedService | None:
        started = time.monotonic()
        async with self._db.autocommit() as tx:
            state = await find_token_state(tx, token)
        if state is None or not state.is_valid:
            self._verified.pop(digest, None)
            return None
        service = AuthenticatedService(
            state.service,
            state.effective_permissions,
            state.id,
            state.family_id,
            None if state.may_publish is None else tuple(state.may_publish),
        )
        lifetime = min(self._cache_seconds, (state.expires_at - state.now).total_seconds())
        verified = CachedService(service, started + lifetime)
        if generation == self._generation:  # otherwise the state may be older than a revocation: do not cache it
            put_bounded(self._verified, digest, verified)
        return verified

    def _finish_lookup(self, digest: str, task: "asyncio.Task[CachedService | None]") -> None:
        if self._lookups.get(digest) is task:
            del self._lookups[digest]
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the waiting requests raise it


def put_bounded(cache: dict[str, Value], digest: str, value: Value) -> None:
    cache[digest] = value
    if len(cache) > MAX_CACHED_TOKENS:
        del cache[next(iter(cache))]
