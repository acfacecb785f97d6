"""`pabal token issue|refresh|verify|revoke|list`."""

import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import cyclopts
from cyclopts import Parameter

from pabal.cli.access.services import require_service
from pabal.cli.access.token_output import (
    inspection_json,
    parse_token_cursor,
    print_inspection,
    print_token_pair,
    token_json,
)
from pabal.cli.context import cli_actor, run_query, run_transaction, with_hub
from pabal.cli.examples import examples
from pabal.cli.id_argument import IdOption, resolve_id
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Cursor, Json, Limit, UsageError, flag, repeatable
from pabal.cli.output import local_time, print_json, print_json_items, print_table, print_text
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, InvalidGrant, NotFound
from pabal.db.tx import Tx
from pabal.tokens.explain import TokenInspection, inspect_token
from pabal.tokens.id_lookup import match_access_token_ids, match_family_ids
from pabal.tokens.issue import OAuthClient, issue_tokens
from pabal.tokens.issuer import TokenPair
from pabal.tokens.permission import grant_permissions
from pabal.tokens.refresh import refresh_tokens
from pabal.tokens.revoke import REVOKED_ON_REQUEST, revoke_access_token, revoke_family, revoke_service_tokens
from pabal.tokens.services import Service
from pabal.tokens.verify import TokenState, find_token_state, is_refresh_token, list_access_tokens

if TYPE_CHECKING:
    from pabal.hub import Hub

app = cyclopts.App(
    name="token",
    help="Issue, verify and revoke access tokens.\n\nServices use them to call the API.",
    help_epilogue=examples("token issue shop", "token list --service shop"),
)

MAX_TOKEN_BYTES = 65536
STANDARD_INPUT = "-"
STDIN_HINT = "`-` reads it from standard input; arguments are visible in `ps`."
TokenArgument = Annotated[str, Parameter(name="TOKEN", allow_leading_hyphen=True, help=f"The token. {STDIN_HINT}")]


def require_one_revocation(arguments: cyclopts.ArgumentCollection) -> None:
    if len(arguments.filter_by(value_set=True)) != 1:
        raise ValueError("Use exactly one of TOKEN, --id, --family and --service.")


REVOKE_GROUP = cyclopts.Group("What to revoke", validator=require_one_revocation)


@dataclass(frozen=True, slots=True)
class RevocationResult:
    """The token, family or service that was named, and how many tokens or families were revoked."""

    token: UUID | None = None
    family: UUID | None = None
    service: str | None = None
    revoked: int = 0

    @property
    def label(self) -> str:
        return f"access token {self.token}" if self.token else f"family {self.family}"


@app.command(
    name="issue", help_epilogue=examples("token issue shop", "token issue shop --scope events:publish --no-refresh")
)
def token_issue(
    service: Annotated[str, Parameter(name="SERVICE", help="The service the token is for.")],
    /,
    *,
    scope: Annotated[list[str] | None, repeatable("Only this permission. Default: all of the service's.")] = None,
    no_refresh: Annotated[bool, flag("Issue no refresh token.")] = False,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Issue an access token for an hour and a refresh token, without the service's secret."""

    async def issue(hub: "Hub") -> TokenPair:
        async with hub.transaction() as tx:
            holder = await require_active_service(tx, service)
            client = OAuthClient(holder.name, tuple(holder.permissions), holder.now)
            permissions = grant_permissions(scope or (), client.allowed)
            return await issue_tokens(
                tx, hub.token_issuer, client, permissions, cli_actor(), refreshable=not no_refresh
            )

    print_token_pair(with_hub(connection, issue), json=json)


@app.command(name="refresh", help_epilogue=examples("token refresh -", "token refresh - --json"))
def token_refresh(token: TokenArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """Exchange a refresh token for a new pair. A refresh token that was used before revokes its family."""
    token = read_token(token)
    if not is_refresh_token(token):
        raise UsageError("TOKEN is not a refresh token; those begin with pbr_")

    async def refresh(hub: "Hub") -> TokenPair | InvalidGrant:
        async with hub.transaction() as tx:
            state = await find_token_state(tx, token)
            if state is None:
                return InvalidGrant("unknown refresh token")
            await require_active_service(tx, state.service)
            return await refresh_tokens(tx, hub.token_issuer, state.service, token, requested=(), actor=cli_actor())

    pair = with_hub(connection, refresh)
    if isinstance(pair, InvalidGrant):
        raise InvalidGrant(f"{pair}: start again with `pabal token issue`")
    print_token_pair(pair, json=json)


@app.command(name="verify", help_epilogue=examples("token verify -", "token verify - --json"))
def token_verify(token: TokenArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """Check whether an access or refresh token is valid, and why not. Exits with 1 if it is invalid."""
    token = read_token(token)

    async def inspect(hub: "Hub") -> TokenInspection:
        async with hub.autocommit() as tx:
            return await inspect_token(tx, hub.token_issuer, token)

    inspection = with_hub(connection, inspect)
    kind = "refresh" if is_refresh_token(token) else "access"
    if json:
        print_json(inspection_json(inspection, kind))
    else:
        print_inspection(inspection, kind)
    if not inspection.is_valid:
        sys.exit(1)


@app.command(name="revoke", help_epilogue=examples("token revoke --id 01a1e213…ea569f", "token revoke --service shop"))
def token_revoke(
    token: Annotated[
        str | None,
        Parameter(
            name="TOKEN",
            group=REVOKE_GROUP,
            allow_leading_hyphen=True,
            help=f"An access token, or a refresh token with its whole family. {STDIN_HINT}",
        ),
    ] = None,
    /,
    *,
    id: Annotated[IdOption, Parameter(group=REVOKE_GROUP, help="Id of an access token.")] = None,
    family: Annotated[
        IdOption, Parameter(group=REVOKE_GROUP, help="Id of a token family: all tokens of one grant.")
    ] = None,
    service: Annotated[str | None, Parameter(group=REVOKE_GROUP, help="All tokens of a service.")] = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Revoke a token, a family or all tokens of a service. Running hubs refuse them at once."""
    token = None if token is None else read_token(token)
    actor = cli_actor()

    async def revoke(tx: Tx) -> RevocationResult:
        if token is not None:
            return await revoke_token_text(tx, token, actor)
        if id is not None:
            token_id = await resolve_id(tx, id, "access token", match_access_token_ids)
            is_revoked = await revoke_access_token(tx, token_id, actor)
            return require_revoked(RevocationResult(token=token_id, revoked=int(is_revoked)))
        if family is not None:
            family_id = await resolve_id(tx, family, "token family", match_family_ids)
            is_revoked = await revoke_family(tx, family_id, REVOKED_ON_REQUEST, actor)
            return require_revoked(RevocationResult(family=family_id, revoked=int(is_revoked)))
        assert service is not None
        await require_service(tx, service)
        return RevocationResult(service=service, revoked=await revoke_service_tokens(tx, service, actor))

    result = run_transaction(connection, revoke)
    if json:
        print_json(asdict(result))
    elif result.service:
        print_text(f"{result.revoked} token families of {service} revoked")
    else:
        print_text(f"{result.label} revoked" if result.revoked else f"{result.label} was no longer valid")


@app.command(name="list", help_epilogue=examples("token list --service shop", "token list --all --json"))
def token_list(
    *,
    service: Annotated[str | None, Parameter(help="Only tokens of this service.")] = None,
    all: Annotated[bool, flag("Include expired and revoked tokens.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """List access tokens, newest first. --json includes families and scopes."""
    after = parse_token_cursor(cursor)

    async def read(tx: Tx) -> list[TokenState]:
        if service is not None:
            await require_service(tx, service)
        return await list_access_tokens(tx, service=service, after=after, include_ended=all, limit=limit + 1)

    rows = run_query(connection, read)
    page, has_more = rows[:limit], len(rows) > limit
    next_cursor = f"{page[-1].created_at.isoformat()}/{page[-1].id}" if has_more else None
    if json:
        print_json_items(map(token_json, page), next_cursor)
        return
    print_table(
        ("id", "service", "valid", "expires"),
        [(token.id, token.service, "yes" if token.is_valid else "no", local_time(token.expires_at)) for token in page],
        empty="No tokens.",
    )
    if next_cursor:
        print_text(f"older: --cursor {next_cursor}")


def read_token(token: str) -> str:
    """Read the token from the argument or from standard input. Bytes that are not text never match a token."""
    if token.startswith("-") and token != STANDARD_INPUT:
        raise UsageError(f"TOKEN cannot begin with a hyphen, and {token!r} is not an option")
    if token == STANDARD_INPUT:
        token = sys.stdin.buffer.readline(MAX_TOKEN_BYTES).decode(errors="replace")
    token = token.encode(errors="replace").decode().strip()
    if not token:
        raise UsageError("TOKEN must not be empty")
    return token


async def require_active_service(tx: Tx, name: str) -> Service:
    service = await require_service(tx, name)
    if not service.is_active:
        raise Conflict(f"{name} is disabled. Enable it with `pabal service enable {name}`")
    return service


async def revoke_token_text(tx: Tx, token: str, actor: Actor) -> RevocationResult:
    """Revoke as the OAuth endpoint does: an access token alone, a refresh token with its family."""
    state = await find_token_state(tx, token)
    if state is None:
        raise NotFound("This token was not issued by this hub. See `pabal token verify`")
    if is_refresh_token(token):
        is_revoked = await revoke_family(tx, state.family_id, REVOKED_ON_REQUEST, actor)
        return RevocationResult(family=state.family_id, revoked=int(is_revoked))
    return RevocationResult(token=state.id, revoked=int(await revoke_access_token(tx, state.id, actor)))


def require_revoked(result: RevocationResult) -> RevocationResult:
    """Fail if nothing was revoked: the id is more likely mistyped than revoked twice."""
    if not result.revoked:
        raise NotFound(f"No valid {result.label}. See `pabal token list`")
    return result
