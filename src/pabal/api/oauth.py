"""The OAuth endpoints: issue, refresh, revoke and introspect tokens (RFC 6749, 7009, 7662, 8414, 7517)."""

import math
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.responses import Response

from pabal.core.actor import ANONYMOUS
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
from pabal.tokens.issue import OAuthClient, authenticate_client, issue_tokens
from pabal.tokens.issuer import TokenPair, build_jwks, epoch_seconds
from pabal.tokens.permission import Permission, check_permission_names, format_scope, grant_permissions
from pabal.tokens.refresh import refresh_tokens
from pabal.tokens.revoke import revoke_access_token, revoke_family
from pabal.tokens.verify import AuthenticatedService, TokenState, find_token_state, is_refresh_token
from pabal.web.auth import basic_credentials, bearer_token
from pabal.web.field_types import CredentialText, FilterText, WordText
from pabal.web.request import RequestContext
from pabal.web.route import ErrorFormat, HandlerAuth, RequestForm, ResponseBody, Route

CLIENT_CREDENTIALS, REFRESH_TOKEN = "client_credentials", "refresh_token"
ScopeText = Annotated[str, Meta(max_length=4096)]
CACHE_ONE_HOUR = "public, max-age=3600"


def schema_enum(*values: str) -> Meta:
    """Document the values of a field without validating them: the handler raises the error that the RFC names."""
    return Meta(extra_json_schema={"enum": [*values]})


class ClientAuthForm(RequestForm, frozen=True):
    """A service's credentials, in the body instead of the Authorization header."""

    client_id: FilterText = ""
    client_secret: CredentialText = ""


class TokenGrantForm(ClientAuthForm, frozen=True, kw_only=True):
    """`scope` lists the requested permissions, separated by spaces; `refresh=false` omits the refresh token."""

    grant_type: Annotated[WordText, schema_enum(CLIENT_CREDENTIALS, REFRESH_TOKEN)]
    scope: ScopeText = ""
    refresh: Annotated[WordText, schema_enum("true", "false")] = "true"
    refresh_token: CredentialText = ""


class TokenLookupForm(ClientAuthForm, frozen=True, kw_only=True):
    """A token, with an optional hint of its type."""

    token: Annotated[CredentialText, Meta(min_length=1)]
    token_type_hint: WordText = ""


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
    """The state of a token; for an invalid one only `active: false`."""

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
    """Issue tokens to a service, or refresh them.

    A refresh token can be used once. If the response was lost, the same request returns it again for 30 s, unless the
    new tokens have been used. Any later reuse revokes every token of the same grant.
    """
    client = await client_from_request(hub, context, form)
    scopes = form.scope.split()
    match form.grant_type:
        case "client_credentials":
            if form.refresh not in {"true", "false"}:
                raise Invalid.of_field("refresh", "must be true or false")
            permissions = grant_permissions(scopes, client.allowed)
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
            check_permission_names(scopes)
            async with hub.transaction() as tx:
                pair = await refresh_tokens(
                    tx,
                    hub.token_issuer,
                    client.service,
                    form.refresh_token,
                    requested=scopes,
                    actor=context.actor(client.service),
                )
            if isinstance(pair, InvalidGrant):
                raise pair
        case _:
            raise UnsupportedGrantType(f"grant_type must be {CLIENT_CREDENTIALS} or {REFRESH_TOKEN}")
    return token_pair_view(pair)


async def post_oauth_revoke(hub: Hub, context: RequestContext, form: TokenLookupForm) -> None:
    """Revoke one of your tokens, or any token with the permission `tokens:admin`.

    Revoking a refresh token revokes every token of its grant. An unknown token, or one of another service, returns the
    same response as a revoked one.
    """
    caller = await caller_from_request(hub, context, form)
    async with hub.transaction() as tx:
        token = await find_token_state(tx, form.token)
        if token is None or not (token.service == caller.service or Permission.MANAGE_TOKENS in caller.permissions):
            return
        if is_refresh_token(form.token):
            await revoke_family(tx, token.family_id, revoke.REVOKED_ON_REQUEST, context.actor(caller.service))
        else:
            await revoke_access_token(tx, token.id, context.actor(caller.service))


async def post_oauth_introspect(hub: Hub, context: RequestContext, form: TokenLookupForm) -> IntrospectionView:
    """Get the state of a token. Always read from the database, never from a cache.

    Requires the permission `tokens:introspect`, with an access token or with the service's secret.
    """
    caller = await caller_from_request(hub, context, form)
    if Permission.INTROSPECT not in caller.permissions:
        raise InsufficientScope(Permission.INTROSPECT)
    async with hub.autocommit() as tx:
        token = await find_token_state(tx, form.token)
    if token is None or not token.is_valid:
        return IntrospectionView(active=False)
    return active_introspection(hub, form.token, token)


async def get_oauth_metadata(hub: Hub) -> Response:
    """Get the OAuth server metadata (RFC 8414)."""
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
    """Get the public keys that verify access tokens, including the next one (RFC 7517)."""
    hub.key_ring.reload()
    return cacheable_json_response(build_jwks(hub.key_ring), "public, max-age=300")


def cacheable_json_response(document: dict[str, Any], cache_control: str = CACHE_ONE_HOUR) -> Response:
    return Response(
        msgspec.json.encode(document), media_type="application/json", headers={"cache-control": cache_control}
    )


async def client_from_request(hub: Hub, context: RequestContext, form: ClientAuthForm) -> OAuthClient:
    """The service whose credentials are in the header or in the body, but not in both."""
    credentials = basic_credentials(context.request.headers.get("authorization"))
    if credentials and (form.client_secret or form.client_id not in {"", credentials[0]}):
        raise Invalid.of_field("client_secret", "must not be in the header and in the body")
    name, secret = credentials or (form.client_id, form.client_secret)
    if not name or not secret:
        raise InvalidClient
    async with hub.autocommit() as tx:
        return await authenticate_client(tx, name, secret, context.actor(ANONYMOUS))


async def caller_from_request(
    hub: Hub, context: RequestContext, form: ClientAuthForm
) -> "OAuthClient | AuthenticatedService":
    """The service that authenticates with its secret or with an access token."""
    header = context.request.headers.get("authorization")
    if header and header[:7].lower() == "bearer ":
        if form.client_secret:
            raise Invalid.of_field("client_secret", "must not be in the body if a token is in the header")
        return await hub.token_verifier.verify(bearer_token(header))
    return await client_from_request(hub, context, form)


def token_pair_view(pair: TokenPair) -> TokenPairView:
    return TokenPairView(
        access_token=pair.access_token,
        expires_in=math.ceil(pair.expires_in.total_seconds()),  # not a second less than `exp` - `iat`
        scope=format_scope(pair.permissions),
        refresh_token=pair.refresh_token,
    )


def active_introspection(hub: Hub, token: str, state: TokenState) -> IntrospectionView:
    issued_at = epoch_seconds(state.created_at)
    return IntrospectionView(
        active=True,
        scope=format_scope(state.effective_permissions),
        client_id=state.service,
        sub=state.service,
        token_type=REFRESH_TOKEN if is_refresh_token(token) else "Bearer",
        iat=issued_at,
        nbf=issued_at,
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
        handler_auth=HandlerAuth.SECRET,
        may_raise=(*COMMON_ERRORS, InvalidGrant, InvalidScope, UnsupportedGrantType),
        tag="tokens",
    ),
    Route(
        "POST",
        "/oauth/revoke",
        post_oauth_revoke,
        error_format=ErrorFormat.OAUTH,
        handler_auth=HandlerAuth.SECRET,
        may_raise=COMMON_ERRORS,
        tag="tokens",
    ),
    Route(
        "POST",
        "/oauth/introspect",
        post_oauth_introspect,
        error_format=ErrorFormat.OAUTH,
        handler_auth=HandlerAuth.SECRET,
        may_raise=(*COMMON_ERRORS, InsufficientScope),
        tag="tokens",
    ),
    Route("GET", "/.well-known/oauth-authorization-server", get_oauth_metadata, response=dict[str, Any], tag="tokens"),
    Route("GET", "/.well-known/jwks.json", get_jwks, response=dict[str, Any], tag="tokens"),
)
