"""The OAuth doors: a service gets, refreshes, checks and gives back its tokens (RFC 6749, 7009, 7662, 8414, 7517)."""

import math
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.responses import Response

from pabal.api.credentials import basic, bearer
from pabal.api.door import Answer, Door, Form, Shape
from pabal.api.visit import Visit
from pabal.core.errors import (
    BadGrant,
    BadScope,
    Invalid,
    OtherGrant,
    OutOfScope,
    TooMany,
    Unavailable,
    UnknownClient,
)
from pabal.tokens import jwt, permission, revoke
from pabal.tokens.clients import Client, authenticate
from pabal.tokens.issue import issue
from pabal.tokens.mint import Pair
from pabal.tokens.permission import Permission
from pabal.tokens.refresh import refresh
from pabal.tokens.standing import Standing, is_refresh, standing
from pabal.tokens.verify import Caller
from pabal.wiring import Hub

CLIENT_CREDENTIALS, REFRESH_TOKEN = "client_credentials", "refresh_token"
ONE_HOUR = "public, max-age=3600"


def one_of(*words: str) -> Meta:
    """Tell the words a field takes, and leave the refusal of others to the handler: the RFC has names for it."""
    return Meta(extra_json_schema={"enum": [*words]})


class ClientForm(Form, frozen=True):
    """What any of these doors may carry in its body instead of an Authorization header."""

    client_id: str = ""
    client_secret: str = ""


class TokenRequest(ClientForm, frozen=True, kw_only=True):
    """`scope` asks for permissions, separated by spaces; `refresh=false` asks for no refresh token."""

    grant_type: Annotated[str, one_of(CLIENT_CREDENTIALS, REFRESH_TOKEN)]
    scope: str = ""
    refresh: Annotated[str, one_of("true", "false")] = "true"
    refresh_token: str = ""


class TokenQuestion(ClientForm, frozen=True, kw_only=True):
    """A token, and perhaps what kind of token it is."""

    token: Annotated[str, Meta(min_length=1)]
    token_type_hint: str = ""


class Tokens(Answer, frozen=True, omit_defaults=True):
    """A pair of tokens; `expires_in` is in seconds."""

    access_token: str
    expires_in: int
    scope: str
    token_type: str = msgspec.field(default_factory=lambda: "Bearer")
    refresh_token: str | None = None

    def __repr__(self) -> str:
        return f"Tokens(scope={self.scope!r}, expires_in={self.expires_in})"


class Introspection(Answer, frozen=True, omit_defaults=True):
    """What stands behind a token; for one that is not good, `active: false` and nothing else."""

    active: bool
    scope: str | None = None
    client_id: str | None = None
    sub: str | None = None
    token_type: str | None = None
    iat: int | None = None
    nbf: int | None = None
    exp: int | None = None
    iss: str | None = None
    aud: str | None = None
    jti: str | None = None
    family: str | None = None


async def token(hub: Hub, visit: Visit, asked: TokenRequest) -> Tokens:
    """Issue tokens to a service that shows its secret, or refresh them.

    A refresh token is used once; its answer may be asked for again within 30 s if it was lost, and only if nobody has
    used what it brought. Used again after that, it ends every token that came from the same grant.
    """
    client = await client_of(hub, visit, asked)
    wanted = asked.scope.split()
    match asked.grant_type:
        case "client_credentials":
            if asked.refresh not in {"true", "false"}:
                raise Invalid.one("refresh", "is true or false")
            permissions = permission.granted(wanted, client.allowed)
            async with hub.autocommit() as tx:
                pair = await issue(
                    tx, hub.mint, client, permissions, visit.by(client.service), refreshable=asked.refresh == "true"
                )
        case "refresh_token":
            if not asked.refresh_token:
                raise Invalid.one("refresh_token", "is missing")
            permission.known(wanted)
            async with hub.transaction() as tx:
                pair = await refresh(
                    tx, hub.mint, client.service, asked.refresh_token, asked=wanted, by=visit.by(client.service)
                )
            if isinstance(pair, BadGrant):
                raise pair
        case _:
            raise OtherGrant(f"grant_type is {CLIENT_CREDENTIALS} or {REFRESH_TOKEN}")
    return told(pair)


async def revoke_token(hub: Hub, visit: Visit, asked: TokenQuestion) -> None:
    """Revoke a token of one's own, or any with `tokens:admin`. A refresh token takes everything of its grant with it.

    A token nobody knows, or somebody else's, is answered alike: there is nothing (left) to revoke.
    """
    who = await caller_of(hub, visit, asked)
    async with hub.transaction() as tx:
        found = await standing(tx, asked.token)
        if found is None or not (found.service == who.service or Permission.TOKENS in who.permissions):
            return
        if is_refresh(asked.token):
            await revoke.family(tx, found.family_id, revoke.ASKED, visit.by(who.service))
        else:
            await revoke.access(tx, found.id, visit.by(who.service))


async def introspect(hub: Hub, visit: Visit, asked: TokenQuestion) -> Introspection:
    """Say whether a token is good and what it carries, asked of the table and never of a cache.

    The caller shows a service's secret, or an access token with `tokens:introspect`.
    """
    who = await caller_of(hub, visit, asked)
    if isinstance(who, Caller) and Permission.INTROSPECT not in who.permissions:
        raise OutOfScope(Permission.INTROSPECT)
    async with hub.autocommit() as tx:
        found = await standing(tx, asked.token)
    return Introspection(active=False) if found is None or not found.good else active(hub, asked.token, found)


async def metadata(hub: Hub) -> Response:
    """Where the OAuth doors are and what they take (RFC 8414)."""
    issuer = hub.mint.issuer
    methods = ["client_secret_basic", "client_secret_post"]
    return lasting(
        {
            "issuer": issuer,
            "token_endpoint": f"{issuer}/oauth/token",
            "token_endpoint_auth_methods_supported": methods,
            "revocation_endpoint": f"{issuer}/oauth/revoke",
            "revocation_endpoint_auth_methods_supported": methods,
            "introspection_endpoint": f"{issuer}/oauth/introspect",
            "introspection_endpoint_auth_methods_supported": methods,
            "jwks_uri": f"{issuer}/.well-known/jwks.json",
            "grant_types_supported": [CLIENT_CREDENTIALS, REFRESH_TOKEN],
            "response_types_supported": [],
            "scopes_supported": [*permission.NAMES],
            "service_documentation": f"{issuer}/docs",
        }
    )


async def jwks(hub: Hub) -> Response:
    """The public keys that access tokens are checked with, the coming one included (RFC 7517)."""
    hub.keys.refresh()
    return lasting(jwt.published(hub.keys), "public, max-age=300")


def lasting(document: dict[str, Any], cache: str = ONE_HOUR) -> Response:
    return Response(msgspec.json.encode(document), media_type="application/json", headers={"cache-control": cache})


async def client_of(hub: Hub, visit: Visit, form: ClientForm) -> Client:
    """The service that shows its secret, in the header or in the body but not in both."""
    shown = basic(visit.request.headers.get("authorization"))
    if shown and (form.client_secret or form.client_id not in {"", shown[0]}):
        raise Invalid.one("client_secret", "is given in the header and in the body")
    name, secret = shown or (form.client_id, form.client_secret)
    if not name or not secret:
        raise UnknownClient
    async with hub.autocommit() as tx:
        return await authenticate(tx, name, secret, visit.by("nobody"))


async def caller_of(hub: Hub, visit: Visit, form: ClientForm) -> "Client | Caller":
    """Whoever comes: with a service's secret, or with an access token."""
    shown = visit.request.headers.get("authorization")
    if shown and shown[:7].lower() == "bearer ":
        if form.client_secret:
            raise Invalid.one("client_secret", "is given in the body, and a token in the header")
        return await hub.tokens.verify(bearer(shown))
    return await client_of(hub, visit, form)


def told(pair: Pair) -> Tokens:
    return Tokens(
        access_token=pair.access,
        expires_in=math.ceil(pair.expires_in.total_seconds()),  # the whole hour between `iat` and `exp`
        scope=permission.scope(pair.permissions),
        refresh_token=pair.refresh,
    )


def active(hub: Hub, shown: str, found: Standing) -> Introspection:
    begun = jwt.seconds(found.created_at)
    return Introspection(
        active=True,
        scope=permission.scope(found.permissions),
        client_id=found.service,
        sub=found.service,
        token_type=REFRESH_TOKEN if is_refresh(shown) else "Bearer",
        iat=begun,
        nbf=begun,
        exp=jwt.seconds(found.ends),
        iss=hub.mint.issuer,
        aud=hub.mint.audience,
        jti=str(found.id),
        family=str(found.family_id),
    )


MAY = (UnknownClient, TooMany, Unavailable)
DOORS = (
    Door(
        "POST", "/oauth/token", token, shape=Shape.OAUTH, may_raise=(*MAY, BadGrant, BadScope, OtherGrant), tag="tokens"
    ),
    Door("POST", "/oauth/revoke", revoke_token, shape=Shape.OAUTH, may_raise=MAY, tag="tokens"),
    Door("POST", "/oauth/introspect", introspect, shape=Shape.OAUTH, may_raise=(*MAY, OutOfScope), tag="tokens"),
    Door("GET", "/.well-known/oauth-authorization-server", metadata, gives=dict[str, Any], tag="tokens"),
    Door("GET", "/.well-known/jwks.json", jwks, gives=dict[str, Any], tag="tokens"),
)
