"""`pabal token issue|refresh|verify|revoke|list`."""

import sys
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import cyclopts
import msgspec
from cyclopts import Parameter
from rich.text import Text

from pabal.api.oauth import token_pair_view
from pabal.cli.context import cli_actor, with_hub
from pabal.cli.options import Cursor, DatabaseUrl, DataDir, Json, Limit
from pabal.cli.output import print_json, print_table, print_text, stdout_console
from pabal.cli.services import format_timestamp, require_service
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, InvalidGrant, NotFound
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.tokens import revoke
from pabal.tokens.access import TokenPair
from pabal.tokens.inspect import TokenInspection, inspect_token
from pabal.tokens.issue import OAuthClient
from pabal.tokens.issue import issue_tokens as found
from pabal.tokens.permission import format_scope, grant_permissions
from pabal.tokens.refresh import refresh_tokens as spend
from pabal.tokens.revoke import revoke_access_token, revoke_family, revoke_service_tokens
from pabal.tokens.services import Service
from pabal.tokens.verify import TokenState, find_token_state, is_refresh_token, list_access_tokens

app = cyclopts.App(name="token", help="Issue, refresh, verify, revoke and list the tokens of services.")

MAX_TOKEN_BYTES = 65536
STANDARD_INPUT = "-"
STDIN_HINT = "`-` reads it from standard input; an argument is seen by everybody who runs `ps`."
TokenArgument = Annotated[str, Parameter(name="TOKEN", allow_leading_hyphen=True, help=f"The token. {STDIN_HINT}")]


def require_one_revocation(arguments: cyclopts.ArgumentCollection) -> None:
    if len(arguments.filter_by(value_set=True)) != 1:
        raise ValueError("Say one of TOKEN, --id, --family and --service.")


REVOKE_GROUP = cyclopts.Group("What to revoke", validator=require_one_revocation)


@dataclass(frozen=True, slots=True)
class RevocationResult:
    """What was asked to end, by the one name it has, and how many tokens or families did."""

    token: UUID | None = None
    family: UUID | None = None
    service: str | None = None
    revoked: int = 0

    @property
    def label(self) -> str:
        return f"access token {self.token}" if self.token else f"family {self.family}"


@app.command(name="issue")
def token_issue(
    service: Annotated[str, Parameter(name="SERVICE", help="Whose token it will be.")],
    /,
    *,
    scope: Annotated[
        list[str] | None,
        Parameter(negative="", consume_multiple=True, help="Only these permissions. Default: all the service may."),
    ] = None,
    no_refresh: Annotated[bool, Parameter(negative="", help="Without a refresh token.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Issue an access token, for an hour, and what to refresh it with, in a service's name and without its secret."""

    async def do(hub: Hub) -> TokenPair:
        async with hub.transaction() as tx:
            holder = await require_active_service(tx, service)
            client = OAuthClient(holder.name, tuple(holder.permissions), holder.now)
            permissions = grant_permissions(scope or (), client.allowed)
            return await found(
                tx, hub.token_issuer, client, permissions, Actor(cli_actor()), refreshable=not no_refresh
            )

    print_token_pair(with_hub(do, data_dir=data_dir, database_url=database_url), json=json)


@app.command(name="refresh")
def token_refresh(
    token: TokenArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Spend a refresh token for a new pair. One that was spent before ends its family, here as at the door."""
    token = read_token(token)
    if not is_refresh_token(token):
        raise Invalid.of_field("token", "is not a refresh token: those begin with pbr_")

    async def do(hub: Hub) -> TokenPair | InvalidGrant:
        async with hub.transaction() as tx:
            held = await find_token_state(tx, token)
            if held is None:
                return InvalidGrant("unknown refresh token")
            await require_active_service(tx, held.service)
            return await spend(tx, hub.token_issuer, held.service, token, requested=(), actor=Actor(cli_actor()))

    pair = with_hub(do, data_dir=data_dir, database_url=database_url)
    if isinstance(pair, InvalidGrant):
        raise InvalidGrant(f"{pair}: `pabal token issue` begins anew")
    print_token_pair(pair, json=json)


@app.command(name="verify")
def token_verify(
    token: TokenArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Say whether a token, access or refresh, is good now, and if not, why not. Exits with 1 if it is not."""
    token = read_token(token)

    async def look(hub: Hub) -> TokenInspection:
        async with hub.autocommit() as tx:
            return await inspect_token(tx, hub.token_issuer, token)

    explained = with_hub(look, data_dir=data_dir, database_url=database_url)
    kind = "refresh" if is_refresh_token(token) else "access"
    if json:
        print_json(explanation_json(explained, kind))
    else:
        print_explanation(explained, kind)
    if not explained.is_valid:
        sys.exit(1)


@app.command(name="revoke")
def token_revoke(
    token: Annotated[
        str | None,
        Parameter(
            name="TOKEN",
            group=REVOKE_GROUP,
            allow_leading_hyphen=True,
            help=f"An access token, alone; or a refresh token with all its family. {STDIN_HINT}",
        ),
    ] = None,
    /,
    *,
    id: Annotated[
        UUID | None, Parameter(group=REVOKE_GROUP, help="An access token, as `pabal token list` shows it.")
    ] = None,
    family: Annotated[UUID | None, Parameter(group=REVOKE_GROUP, help="All tokens that came of one grant.")] = None,
    service: Annotated[str | None, Parameter(group=REVOKE_GROUP, help="All tokens of a service.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Revoke tokens by one of four names. Running hubs refuse them at once."""
    token = None if token is None else read_token(token)
    by = Actor(cli_actor())

    async def do(hub: Hub) -> RevocationResult:
        async with hub.transaction() as tx:
            if token is not None:
                return await revoke_given_token(tx, token, by)
            if id is not None:
                return require_revoked(RevocationResult(token=id, revoked=int(await revoke_access_token(tx, id, by))))
            if family is not None:
                return require_revoked(
                    RevocationResult(
                        family=family, revoked=int(await revoke_family(tx, family, revoke.REVOKED_ON_REQUEST, by))
                    )
                )
            assert service is not None
            await require_service(tx, service)
            return RevocationResult(service=service, revoked=await revoke_service_tokens(tx, service, by))

    ended = with_hub(do, data_dir=data_dir, database_url=database_url)
    if json:
        print_json(asdict(ended))
    elif ended.service:
        print_text(f"{ended.revoked} families of {service} are revoked")
    else:
        print_text(f"{ended.label} is revoked" if ended.revoked else f"{ended.label} had ended already")


@app.command(name="list")
def token_list(
    *,
    service: Annotated[str | None, Parameter(help="Only those of this service.")] = None,
    all: Annotated[bool, Parameter(negative="", help="Those that have ended too.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show access tokens by their ids, the newest first. With --json their families and scopes too."""
    after = parse_token_cursor(cursor)

    async def look(hub: Hub) -> list[TokenState]:
        async with hub.autocommit() as tx:
            if service is not None:
                await require_service(tx, service)
            return await list_access_tokens(tx, service=service, after=after, include_ended=all, limit=limit + 1)

    every = with_hub(look, data_dir=data_dir, database_url=database_url)
    page, more = every[:limit], len(every) > limit
    following = f"{page[-1].created_at.isoformat()}/{page[-1].id}" if more else None
    if json:
        print_json({"items": [token_json(each) for each in page], "cursor": following})
        return
    print_table(
        ("id", "service", "good", "ends"),
        [(each.id, each.service, "yes" if each.is_valid else "no", format_timestamp(each.expires_at)) for each in page],
        empty="No tokens.",
    )
    if following:
        print_text(f"older: --cursor {following}")


def read_token(token: str) -> str:
    """The token from the argument or from standard input; bytes that are no text are no token of ours either way."""
    if token.startswith("-") and token != STANDARD_INPUT:
        raise Invalid.of_field("token", f"does not begin with a hyphen; {token!r} is not an option either")
    if token == STANDARD_INPUT:
        token = sys.stdin.buffer.readline(MAX_TOKEN_BYTES).decode(errors="replace")
    token = token.encode(errors="replace").decode().strip()
    if not token:
        raise Invalid.of_field("token", "is empty")
    return token


async def require_active_service(tx: Tx, name: str) -> Service:
    service = await require_service(tx, name)
    if not service.is_active:
        raise Conflict(f"{name} is disabled: `pabal service enable {name}` lets it in again")
    return service


async def revoke_given_token(tx: Tx, token: str, actor: Actor) -> RevocationResult:
    """As at the door: an access token ends alone, a refresh token takes its family with it."""
    known = await find_token_state(tx, token)
    if known is None:
        raise NotFound("this is not a token of this hub: `pabal token verify` says more")
    if is_refresh_token(token):
        return RevocationResult(
            family=known.family_id,
            revoked=int(await revoke_family(tx, known.family_id, revoke.REVOKED_ON_REQUEST, actor)),
        )
    return RevocationResult(token=known.id, revoked=int(await revoke_access_token(tx, known.id, actor)))


def require_revoked(result: RevocationResult) -> RevocationResult:
    """An id that names nothing live is more likely mistyped than revoked twice."""
    if not result.revoked:
        raise NotFound(f"there is no live {result.label}: `pabal token list` shows those there are")
    return result


def print_token_pair(pair: TokenPair, *, json: bool) -> None:
    answer: dict[str, Any] = msgspec.to_builtins(token_pair_view(pair)) | {"family": pair.family_id}
    if json:
        print_json(answer)
        return
    for name, value in answer.items():
        print_text(f"{name:<15}{value}")
    print_text("The tokens are shown this once: the hub keeps them encrypted.")


def explanation_json(explanation: TokenInspection, kind: str) -> dict[str, Any]:
    token = explanation.token
    known = (
        None
        if token is None
        else {
            "id": token.id,
            "family": token.family_id,
            "service": token.service,
            "scope": format_scope(token.permissions),
            "created_at": token.created_at,
            "expires_at": token.effective_expiry,
        }
    )
    return {
        "good": explanation.is_valid,
        "why": explanation.problems,
        "kind": kind,
        "token": known,
        "claims": explanation.claims,
    }


def print_explanation(explanation: TokenInspection, kind: str) -> None:
    if explanation.is_valid:
        stdout_console.print(Text("good", "green"))
    for why in explanation.problems:
        stdout_console.print(Text.assemble(("not good", "red"), f": {why}"))
    if token := explanation.token:
        print_table(
            ("token", kind),
            [
                ("service", token.service),
                ("scope", format_scope(token.permissions)),
                ("id", token.id),
                ("family", token.family_id),
                ("issued", format_timestamp(token.created_at)),
                ("ends", format_timestamp(token.effective_expiry)),
            ],
        )
    if explanation.claims:
        print_table(("claim", ""), [*msgspec.structs.asdict(explanation.claims).items()])


def token_json(token: TokenState) -> dict[str, Any]:
    return {
        "id": token.id,
        "family": token.family_id,
        "service": token.service,
        "scope": format_scope(token.permissions),
        "good": token.is_valid,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
    }


def parse_token_cursor(cursor: str | None) -> tuple[datetime, UUID] | None:
    """Read a cursor: when the last token of the page before was issued, and which it was."""
    if cursor is None:
        return None
    at, _, row = cursor.partition("/")
    try:
        return datetime.fromisoformat(at), UUID(row)
    except ValueError:
        raise Invalid.of_field("cursor", "is not one of ours") from None
