"""Issue: a service shows who it is and gets an access token, and what to refresh it with."""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import InvalidClient, RateLimited
from pabal.core.ids import new_id
from pabal.core.secrets import hash_secret
from pabal.db.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.limits import RateLimit, consume_rate_limit, rate_limit_address, read_rate_limits
from pabal.tokens.access import TOKEN_FAMILY_LIFETIME, TokenIssuer, TokenPair
from pabal.tokens.permission import Permission, expand_permissions
from pabal.tokens.services import SERVICE_NAME

Q = load_queries(__file__)

FAILURES_PER_ADDRESS = RateLimit("failed authentications from this address", 20, timedelta(minutes=5))
FAILURES_PER_SERVICE = RateLimit("failed authentications of this service", 100, timedelta(minutes=5))
FAILURE_AUDIT_ENTRIES = RateLimit("notes of failed authentications", 1, timedelta(minutes=1))


@dataclass(frozen=True, slots=True)
class StoredCredentials:
    """What is known of a service by its name; all of it empty when there is none."""

    name: str | None
    permissions: Sequence[str] | None
    is_active: bool | None
    now: datetime
    secret_hashes: Sequence[str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """A service that has shown its secret, and what it may ask for. `now` is the database's time when it did."""

    service: str
    allowed: tuple[str, ...]
    now: datetime = field(repr=False)

    @property
    def permissions(self) -> frozenset[Permission]:
        return expand_permissions(self.allowed)


async def authenticate_client(tx: Tx, name: str, secret: str, actor: Actor) -> OAuthClient:
    """See that this is the service it says it is. Give it no transaction: what it counts must outlast its refusal."""
    address = rate_limit_address(actor.client_ip or "nowhere")
    name = name if SERVICE_NAME.fullmatch(name) else "?"  # no service is called so, and all such calls count together
    here, there = await read_rate_limits(tx, (FAILURES_PER_ADDRESS, address), (FAILURES_PER_SERVICE, name))
    if here.retry_after:
        raise RateLimited(FAILURES_PER_ADDRESS.name, here.retry_after)
    if there.retry_after and here.is_used:
        raise RateLimited(FAILURES_PER_SERVICE.name, there.retry_after)
    known = await tx.one(StoredCredentials, Q.find_service_credentials, service=name)
    if not matches_any_hash(secret, known.secret_hashes) or not known.is_active or known.name is None:
        await _record_failed_authentication(tx, name, address, actor, service_exists=known.name is not None)
        raise InvalidClient
    return OAuthClient(known.name, tuple(known.permissions or ()), known.now)


def matches_any_hash(secret: str, hashes: Sequence[str]) -> bool:
    """Compare with both places, in the time that takes whether they are taken or not."""
    given = hash_secret(secret)
    places = (*hashes, "", "")[: max(2, len(hashes))]
    return sum(hmac.compare_digest(given, each) for each in places) > 0


async def _record_failed_authentication(tx: Tx, name: str, address: str, actor: Actor, *, service_exists: bool) -> None:
    """Count it, and note it once a minute: for a name we know under that name, for all others together."""
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
    """Found a family with its first tokens. `permissions` are granted already."""
    family, now = new_id(), client.now
    until = now + TOKEN_FAMILY_LIFETIME
    access = issuer.create_access_token(client.service, permissions, family, now=now, latest_expiry=until)
    refresh = issuer.create_refresh_token(now=now, latest_expiry=until) if refreshable else None
    done = await tx.value(
        Q.issue_tokens,
        service=client.service,
        permissions=permissions,
        family=family,
        family_ends=until if refreshable else access.expires_at,
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
    if done is None:
        raise InvalidClient
    tx.notify(Channel.EVENTS)
    return TokenPair(family, access.token, refresh and refresh.token, permissions, access.expires_at - now)
