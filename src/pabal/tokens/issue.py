"""Issue tokens to a service that authenticates with its secret."""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import InvalidClient, RateLimited
from pabal.core.ids import new_id
from pabal.core.secrets import hash_token
from pabal.db.doorbell.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.limits import RateLimit, consume_rate_limit, rate_limit_address, read_rate_limits
from pabal.tokens.issuer import TOKEN_FAMILY_LIFETIME, TokenIssuer, TokenPair
from pabal.tokens.permission import Permission, expand_permissions
from pabal.tokens.services import SERVICE_NAME

Q = load_queries(__file__)

FAILURES_PER_ADDRESS = RateLimit("failed authentications from this address", 20, timedelta(minutes=5))
FAILURES_PER_SERVICE = RateLimit("failed authentications of this service", 100, timedelta(minutes=5))
FAILURE_AUDIT_ENTRIES = RateLimit("audit entries of failed authentications", 1, timedelta(minutes=1))


@dataclass(frozen=True, slots=True)
class StoredCredentials:
    """The stored credentials of a service; all fields are empty for an unknown name."""

    name: str | None
    permissions: Sequence[str] | None
    is_active: bool | None
    now: datetime
    secret_hashes: Sequence[str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """An authenticated service and its permissions. `now` is the database's time of the authentication."""

    service: str
    allowed: tuple[str, ...]
    now: datetime = field(repr=False)

    @property
    def permissions(self) -> frozenset[Permission]:
        return expand_permissions(self.allowed)


async def authenticate_client(tx: Tx, name: str, secret: str, actor: Actor) -> OAuthClient:
    """Verify a service's secret. Call it in autocommit mode: failures are counted although it raises."""
    address = rate_limit_address(actor.client_ip or "nowhere")
    name = name if SERVICE_NAME.fullmatch(name) else "?"  # not a valid name: all such calls share one counter
    address_usage, service_usage = await read_rate_limits(
        tx, (FAILURES_PER_ADDRESS, address), (FAILURES_PER_SERVICE, name)
    )
    if address_usage.retry_after:
        raise RateLimited(FAILURES_PER_ADDRESS.name, address_usage.retry_after)
    if service_usage.retry_after and address_usage.is_used:
        raise RateLimited(FAILURES_PER_SERVICE.name, service_usage.retry_after)
    stored = await tx.one(StoredCredentials, Q.find_service_credentials, service=name)
    if not matches_any_hash(secret, stored.secret_hashes) or not stored.is_active or stored.name is None:
        await _record_failed_authentication(tx, name, address, actor, service_exists=stored.name is not None)
        raise InvalidClient
    return OAuthClient(stored.name, tuple(stored.permissions or ()), stored.now)


def matches_any_hash(secret: str, hashes: Sequence[str]) -> bool:
    """Compare with both secrets, in the same time whether the service has none, one or two."""
    digest = hash_token(secret).hex()
    padded = (*hashes, "", "")[: max(2, len(hashes))]
    return sum(hmac.compare_digest(digest, stored) for stored in padded) > 0


async def _record_failed_authentication(tx: Tx, name: str, address: str, actor: Actor, *, service_exists: bool) -> None:
    """Count a failure, and write an audit entry at most once a minute per service; unknown names share one."""
    subject = name if service_exists else "unknown"
    try:
        await consume_rate_limit(tx, FAILURE_AUDIT_ENTRIES, f"{subject}:{address}")
    except RateLimited:
        pass
    else:
        await record_action(tx, actor, "authentication.failed", subject)
    await consume_rate_limit(tx, FAILURES_PER_ADDRESS, address)
    await consume_rate_limit(tx, FAILURES_PER_SERVICE, name)


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
    """Create a family with its first tokens. The caller has checked `permissions`."""
    family_id, now = new_id(), client.now
    latest_expiry = now + TOKEN_FAMILY_LIFETIME
    access = issuer.create_access_token(client.service, permissions, family_id, now=now, latest_expiry=latest_expiry)
    refresh = issuer.create_refresh_token(now=now, latest_expiry=latest_expiry) if refreshable else None
    token_id = await tx.value(
        Q.issue_tokens,
        service=client.service,
        permissions=permissions,
        family=family_id,
        family_ends=latest_expiry if refreshable else access.expires_at,
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
    if token_id is None:
        raise InvalidClient
    tx.notify(Channel.EVENTS)
    return TokenPair(family_id, access.token, refresh and refresh.token, permissions, access.expires_at - now)
