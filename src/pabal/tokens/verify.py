"""Verify: whose access token is this, and what may they do.

A signature is checked once and remembered until the keys change. Whether the token still stands is asked of the table
and believed for at most five seconds; the doorbell makes it at once. When the table cannot be asked, nobody comes in.
"""

import asyncio
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from pabal.core.errors import BadToken
from pabal.db.doorbell import Ear
from pabal.db.pool import Database
from pabal.tokens import jwt
from pabal.tokens.digest import hashed
from pabal.tokens.mint import Mint
from pabal.tokens.permission import Permission, expanded
from pabal.tokens.standing import standing

BELIEVED = timedelta(seconds=5)
MOST = 20_000
"""Tokens remembered; the oldest makes room. A forgotten one costs a signature and a question again."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Caller:
    """A service that came with a good access token."""

    service: str
    permissions: frozenset[Permission]
    token_id: UUID
    family_id: UUID


@dataclass(frozen=True, slots=True)
class Believed:
    caller: Caller
    until: float


class Verifier:
    """The access tokens this process knows. `ear` hears when any token anywhere was revoked."""

    def __init__(self, db: Database, mint: Mint, ear: Ear, believed: timedelta = BELIEVED) -> None:
        self._db = db
        self._mint = mint
        self._ear = ear
        self._believed = believed.total_seconds()
        self._good: dict[str, Believed] = {}
        self._keys = mint.ring.keys
        self._signed: dict[str, None] = {}
        self._asking: dict[str, asyncio.Task[Believed | None]] = {}
        self._doubts = 0

    async def verify(self, token: str) -> Caller:
        """The caller, or BadToken."""
        if self._ear.heard():
            self.doubt()
        digest = hashed(token)
        known = self._good.get(digest)
        if known is not None and time.monotonic() < known.until:
            return known.caller
        if (keys := self._mint.ring.keys) is not self._keys:  # one may be retired, and with it what it signed
            self._keys = keys
            self._signed.clear()
        if digest not in self._signed:
            jwt.read(self._mint.ring, token, self._mint.audience)
            remember(self._signed, digest, None)
        found = await asyncio.shield(self._asked(token, digest))
        if found is None:
            raise BadToken("the access token has expired or was revoked")
        return found.caller

    def doubt(self) -> None:
        """Believe nothing any more without asking again."""
        self._doubts += 1
        self._good.clear()
        self._asking.clear()

    def _asked(self, token: str, digest: str) -> asyncio.Task[Believed | None]:
        """Ask the table once for everybody who waits for the same answer."""
        task = self._asking.get(digest)
        if task is None:
            task = self._asking[digest] = asyncio.create_task(self._ask(token, digest, self._doubts))
            task.add_done_callback(lambda done: self._answered(digest, done))
        return task

    async def _ask(self, token: str, digest: str, doubts: int) -> Believed | None:
        began = time.monotonic()
        async with self._db.autocommit() as tx:
            found = await standing(tx, token)
        if found is None or not found.good:
            self._good.pop(digest, None)
            return None
        caller = Caller(found.service, expanded(found.permissions), found.id, found.family_id)
        life = min(self._believed, (found.ends - found.now).total_seconds())
        answer = Believed(caller, began + life)
        if doubts == self._doubts:  # a revocation rung while we asked may not be in the answer: it is good only once
            remember(self._good, digest, answer)
        return answer

    def _answered(self, digest: str, done: "asyncio.Task[Believed | None]") -> None:
        if self._asking.get(digest) is done:
            del self._asking[digest]
        if not done.cancelled():
            done.exception()  # seen by whoever still waits; nobody else needs to hear of it


def remember(known: dict[str, Value], digest: str, value: Value) -> None:
    known[digest] = value
    if len(known) > MOST:
        del known[next(iter(known))]
