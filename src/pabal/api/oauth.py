"""The OAuth doors: a service gets, refreshes, checks and gives back its tokens (RFC 6749, 7009, 7662, 8414, 7517)."""

import math
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.responses import Response

from pabal.core.errors import (
    InsufficientScope,
    Invalid,
    InvalidClient,
    InvalidGrant,
    InvalidScope,
    RateLimited,
    Unavailable,
    UnsupportedGrantType,
)
from pabal.hub import Hub
from pabal.tokens import permission, revoke
from pabal.tokens.access import TokenPair, build_jwks, epoch_seconds
from pabal.tokens.issue import OAuthClient, authenticate_client, issue_tokens
from pabal.tokens.permission import Permission, check_permission_names, format_scope, grant_permissions
from pabal.tokens.refresh import refresh_tokens
from pabal.tokens.revoke import revoke_access_token, revoke_family
from pabal.tokens.verify import AuthenticatedService, TokenState, find_token_state, is_refresh_token
from pabal.web.auth import basic_credentials, bearer_token
from pabal.web.request import RequestContext
from pabal.web.route import ErrorFormat, RequestForm, ResponseBody, Route

CLIENT_CREDENTIALS, REFRESH_TOKEN = "client_credentials", "refresh_token"
CACHE_ONE_HOUR = "public, max-age=3600"


def schema_enum(*values: str) -> Meta:
    """Tell the words a field takes, and leave the refusal of others to the handler: the RFC has names for it."""
    return Meta(extra_json_schema={"enum": [*values]})


class ClientAuthForm(RequestForm, frozen=True):
    """What any of these doors may carry in its body instead of an Authorization header."""

    client_id: str = ""
    client_secret: str = ""


class TokenGrantForm(ClientAuthForm, frozen=True, kw_only=True):
    """`scope` asks for permissions, separated by spaces; `refresh=false` asks for no refresh token."""

    grant_type: Annotated[str, schema_enum(CLIENT_CREDENTIALS, REFRESH_TOKEN)]
    scope: str = ""
    refresh: Annotated[str, schema_enum("true", "false")] = "true"
    refresh_token: str = ""


class TokenLookupForm(ClientAuthForm, frozen=True, kw_only=True):
    """A token, and perhaps what kind of token it is."""

    token: Annotated[str, Meta(min_length=1)]
    token_type_hint: str = ""


class TokenPairView(ResponseBody, frozen=True, omit_defaults=True):
    """A pair of tokens; `expires_in` is in seconds."""

    access_token: str
    expires_in: int
    scope: str
    token_type: str = msgspec.field(default_factory=lambda: "Bearer")
    refresh_token: str | None = None

    def __repr__(self) -> str:
        return f"TokenPairView(scope={self.scope!r}, expires_in={self.expires_in})"


class IntrospectionView(ResponseBody, frozen=True, omit_defaults=True):
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


async def post_oauth_token(hub: Hub, context: RequestContext, form: TokenGrantForm) -> TokenPairView:
    """Issue tokens to a service that shows its secret, or refresh them.

    A refresh token is used once; its answer may be asked for again within 30 s if it was lost, and only if nobody has
    used what it brought. Used again after that, it ends every token that came from the same grant.
    """
    client = await client_from_request(hub, context, form)
    wanted = form.scope.split()
    match form.grant_type:
        case "client_credentials":
            if form.refresh not in {"true", "false"}:
                raise Invalid.of_field("refresh", "is true or false")
            permissions = grant_permissions(wanted, client.allowed)
            async with hub.autocommit() as tx:
                pair = await issue_tokens(
                    tx,
                    hub.token_issuer,
                    client,
                    permissions,
                    context.actor(client.service),
                    refreshable=form.refresh == "true",
                )
        case "refresh_token":
            if not form.refresh_token:
                raise Invalid.of_field("refresh_token", "is missing")
            check_permission_names(wanted)
            async with hub.transaction() as tx:
                pair = await refresh_tokens(
                    tx,
                    hub.token_issuer,
                    client.service,
                    form.refresh_token,
                    requested=wanted,
                    actor=context.actor(client.service),
                )
            if isinstance(pair, InvalidGrant):
                raise pair
        case _:
            raise UnsupportedGrantType(f"grant_type is {CLIENT_CREDENTIALS} or {REFRESH_TOKEN}")
    return token_pair_view(pair)


async def post_oauth_revoke(hub: Hub, context: RequestContext, form: TokenLookupForm) -> None:
    """Revoke a token of one's own, or any with `tokens:admin`. A refresh token takes everything of its grant with it.

    A token nobody knows, or somebody else's, is answered alike: there is nothing (left) to revoke.
    """
    who = await caller_from_request(hub, context, form)
    async with hub.transaction() as tx:
        found = await find_token_state(tx, form.token)
        if found is None or not (found.service == who.service or Permission.MANAGE_TOKENS in who.permissions):
            return
        if is_refresh_token(form.token):
            await revoke_family(tx, found.family_id, revoke.REVOKED_ON_REQUEST, context.actor(who.service))
        else:
            await revoke_access_token(tx, found.id, context.actor(who.service))


async def post_oauth_introspect(hub: Hub, context: RequestContext, form: TokenLookupForm) -> IntrospectionView:
    """Say whether a token is good and what it carries, asked of the table and never of a cache.

    The caller shows a service's secret, or an access token with `tokens:introspect`.
    """
    who = await caller_from_request(hub, context, form)
    if isinstance(who, AuthenticatedService) and Permission.INTROSPECT not in who.permissions:
        raise InsufficientScope(Permission.INTROSPECT)
    async with hub.autocommit() as tx:
        found = await find_token_state(tx, form.token)
    return (
        IntrospectionView(active=False)
        if found is None or not found.is_valid
        else active_introspection(hub, form.token, found)
    )


async def get_oauth_metadata(hub: Hub) -> Response:
    """Where the OAuth doors are and what they take (RFC 8414)."""
    issuer = hub.token_issuer.issuer_url
    methods = ["client_secret_basic", "client_secret_post"]
    return cacheable_json_response(
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
            "scopes_supported": [*permission.PERMISSION_NAMES],
            "service_documentation": f"{issuer}/docs",
        }
    )


async def get_jwks(hub: Hub) -> Response:
    """The public keys that access tokens are checked with, the coming one included (RFC 7517)."""
    hub.key_ring.reload()
    return cacheable_json_response(build_jwks(hub.key_ring), "public, max-age=300")


def cacheable_json_response(document: dict[str, Any], cache_control: str = CACHE_ONE_HOUR) -> Response:
    return Response(
        msgspec.json.encode(document), media_type="application/json", headers={"cache-control": cache_control}
    )


async def client_from_request(hub: Hub, context: RequestContext, form: ClientAuthForm) -> OAuthClient:
    """The service that shows its secret, in the header or in the body but not in both."""
    shown = basic_credentials(context.request.headers.get("authorization"))
    if shown and (form.client_secret or form.client_id not in {"", shown[0]}):
        raise Invalid.of_field("client_secret", "is given in the header and in the body")
    name, secret = shown or (form.client_id, form.client_secret)
    if not name or not secret:
        raise InvalidClient
    async with hub.autocommit() as tx:
        return await authenticate_client(tx, name, secret, context.actor("nobody"))


async def caller_from_request(
    hub: Hub, context: RequestContext, form: ClientAuthForm
) -> "OAuthClient | AuthenticatedService":
    """Whoever comes: with a service's secret, or with an access token."""
    shown = context.request.headers.get("authorization")
    if shown and shown[:7].lower() == "bearer ":
        if form.client_secret:
            raise Invalid.of_field("client_secret", "is given in the body, and a token in the header")
        return await hub.token_verifier.verify(bearer_token(shown))
    return await client_from_request(hub, context, form)


def token_pair_view(pair: TokenPair) -> TokenPairView:
    return TokenPairView(
        access_token=pair.access_token,
        expires_in=math.ceil(pair.expires_in.total_seconds()),  # the whole hour between `iat` and `exp`
        scope=format_scope(pair.permissions),
        refresh_token=pair.refresh_token,
    )


def active_introspection(hub: Hub, token: str, state: TokenState) -> IntrospectionView:
    begun = epoch_seconds(state.created_at)
    return IntrospectionView(
        active=True,
        scope=format_scope(state.permissions),
        client_id=state.service,
        sub=state.service,
        token_type=REFRESH_TOKEN if is_refresh_token(token) else "Bearer",
        iat=begun,
        nbf=begun,
        exp=epoch_seconds(state.expires_at),
        iss=hub.token_issuer.issuer_url,
        aud=hub.token_issuer.audience,
        jti=str(state.id),
        family=str(state.family_id),
    )


COMMON_ERRORS = (InvalidClient, RateLimited, Unavailable)
ROUTES = (
    Route(
        "POST",
        "/oauth/token",
        post_oauth_token,
        error_format=ErrorFormat.OAUTH,
        may_raise=(*COMMON_ERRORS, InvalidGrant, InvalidScope, UnsupportedGrantType),
        tag="tokens",
    ),
    Route(
        "POST",
        "/oauth/revoke",
        post_oauth_revoke,
        error_format=ErrorFormat.OAUTH,
        may_raise=COMMON_ERRORS,
        tag="tokens",
    ),
    Route(
        "POST",
        "/oauth/introspect",
        post_oauth_introspect,
        error_format=ErrorFormat.OAUTH,
        may_raise=(*COMMON_ERRORS, InsufficientScope),
        tag="tokens",
    ),
    Route("GET", "/.well-known/oauth-authorization-server", get_oauth_metadata, response=dict[str, Any], tag="tokens"),
    Route("GET", "/.well-known/jwks.json", get_jwks, response=dict[str, Any], tag="tokens"),
)
