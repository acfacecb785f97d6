"""The mint: makes the two tokens of a grant, and what is stored of them."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.core.ids import new_id
from pabal.keys.envelope import Place, seal, unseal
from pabal.keys.ring import Ring
from pabal.tokens import jwt
from pabal.tokens.digest import hashed
from pabal.tokens.permission import scope

ACCESS_LIFE = timedelta(hours=1)
REFRESH_LIFE = timedelta(days=7)
FAMILY_LIFE = timedelta(days=30)

PREFIX = "pbr_"
"""So that whoever scans for leaked secrets knows ours when they see one."""


@dataclass(frozen=True, slots=True)
class Minted:
    """A token: itself, to be told once, and what the table holds of it."""

    id: UUID
    token: str = field(repr=False)
    envelope: str = field(repr=False)
    hash: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Pair:
    """What a client is given: an access token, and what to refresh it with."""

    family: UUID
    access: str = field(repr=False)
    refresh: str | None = field(repr=False)
    permissions: tuple[str, ...]
    expires_in: timedelta


@dataclass(frozen=True, slots=True)
class Mint:
    """Who issues, for whom, and with which keys."""

    ring: Ring
    issuer: str
    audience: str

    def access(
        self, service: str, permissions: Sequence[str], family: UUID, *, now: datetime, until: datetime
    ) -> Minted:
        """An access token for an hour, or for what is left of its family."""
        token_id, ends = new_id(), min(now + ACCESS_LIFE, until).replace(microsecond=0)
        token = jwt.sign(
            self.ring,
            jwt.Claims(
                iss=self.issuer,
                aud=self.audience,
                sub=service,
                client_id=service,
                scope=scope(permissions),
                jti=token_id,
                iat=jwt.seconds(now),
                nbf=jwt.seconds(now),
                exp=jwt.seconds(ends),
                family=family,
            ),
        )
        return Minted(token_id, token, seal(self.ring, token, access_place(token_id)), hashed(token), ends)

    def refresh(self, *, now: datetime, until: datetime) -> Minted:
        """A refresh token for a week, or for what is left of its family."""
        token_id, token = new_id(), PREFIX + secrets.token_urlsafe(32)
        ends = min(now + REFRESH_LIFE, until)
        return Minted(token_id, token, seal(self.ring, token, refresh_place(token_id)), hashed(token), ends)

    def open_access(self, token_id: UUID, envelope: str) -> str:
        return unseal(self.ring, envelope, access_place(token_id))

    def open_refresh(self, token_id: UUID, envelope: str) -> str:
        return unseal(self.ring, envelope, refresh_place(token_id))


def access_place(row: UUID) -> Place:
    return Place("service_tokens", "access_token", row)


def refresh_place(row: UUID) -> Place:
    return Place("refresh_tokens", "refresh_token", row)
