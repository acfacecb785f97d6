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

from pabal.api.oauth import told
from pabal.cli import screen
from pabal.cli.errand import actor, errand
from pabal.cli.options import Cursor, DatabaseUrl, DataDir, Json, Limit
from pabal.cli.services import moment, named
from pabal.core.actor import Actor
from pabal.core.errors import BadGrant, Conflict, Invalid, NotFound
from pabal.db.tx import Tx
from pabal.tokens import permission, standing
from pabal.tokens import revoke as end
from pabal.tokens.clients import Client
from pabal.tokens.explain import Explanation, explain
from pabal.tokens.issue import issue as found
from pabal.tokens.mint import Pair
from pabal.tokens.refresh import refresh as spend
from pabal.tokens.services import Service
from pabal.tokens.standing import Standing, is_refresh
from pabal.wiring import Hub

app = cyclopts.App(name="token", help="Issue, refresh, verify, revoke and list the tokens of services.")

MOST_BYTES = 65536
STANDARD_INPUT = "-"
SEEN = "`-` reads it from standard input; an argument is seen by everybody who runs `ps`."
Given = Annotated[str, Parameter(name="TOKEN", allow_leading_hyphen=True, help=f"The token. {SEEN}")]


def exactly_one(said: cyclopts.ArgumentCollection) -> None:
    if len(said.filter_by(value_set=True)) != 1:
        raise ValueError("Say one of TOKEN, --id, --family and --service.")


ONE_OF = cyclopts.Group("What to revoke", validator=exactly_one)


@dataclass(frozen=True, slots=True)
class Ended:
    """What was asked to end, by the one name it has, and how many tokens or families did."""

    token: UUID | None = None
    family: UUID | None = None
    service: str | None = None
    revoked: int = 0

    @property
    def what(self) -> str:
        return f"access token {self.token}" if self.token else f"family {self.family}"


@app.command
def issue(
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

    async def do(hub: Hub) -> Pair:
        async with hub.transaction() as tx:
            holder = await active(tx, service)
            client = Client(holder.name, tuple(holder.permissions), holder.now)
            permissions = permission.granted(scope or (), client.allowed)
            return await found(tx, hub.mint, client, permissions, Actor(actor()), refreshable=not no_refresh)

    hand_out(errand(do, data_dir=data_dir, database_url=database_url), json=json)


@app.command
def refresh(token: Given, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Spend a refresh token for a new pair. One that was spent before ends its family, here as at the door."""
    token = brought(token)
    if not is_refresh(token):
        raise Invalid.one("token", "is not a refresh token: those begin with pbr_")

    async def do(hub: Hub) -> Pair | BadGrant:
        async with hub.transaction() as tx:
            held = await standing.standing(tx, token)
            if held is None:
                return BadGrant("the refresh token is not known")
            await active(tx, held.service)
            return await spend(tx, hub.mint, held.service, token, asked=(), by=Actor(actor()))

    pair = errand(do, data_dir=data_dir, database_url=database_url)
    if isinstance(pair, BadGrant):
        raise BadGrant(f"{pair}: `pabal token issue` begins anew")
    hand_out(pair, json=json)


@app.command
def verify(token: Given, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Say whether a token, access or refresh, is good now, and if not, why not. Exits with 1 if it is not."""
    token = brought(token)

    async def look(hub: Hub) -> Explanation:
        async with hub.autocommit() as tx:
            return await explain(tx, hub.mint, token)

    explained = errand(look, data_dir=data_dir, database_url=database_url)
    kind = "refresh" if is_refresh(token) else "access"
    if json:
        screen.as_json(account(explained, kind))
    else:
        tell(explained, kind)
    if not explained.good:
        sys.exit(1)


@app.command
def revoke(
    token: Annotated[
        str | None,
        Parameter(
            name="TOKEN",
            group=ONE_OF,
            allow_leading_hyphen=True,
            help=f"An access token, alone; or a refresh token with all its family. {SEEN}",
        ),
    ] = None,
    /,
    *,
    id: Annotated[UUID | None, Parameter(group=ONE_OF, help="An access token, as `pabal token list` shows it.")] = None,  # noqa: A002 the option's name
    family: Annotated[UUID | None, Parameter(group=ONE_OF, help="All tokens that came of one grant.")] = None,
    service: Annotated[str | None, Parameter(group=ONE_OF, help="All tokens of a service.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Revoke tokens by one of four names. Running hubs refuse them at once."""
    token = None if token is None else brought(token)
    by = Actor(actor())

    async def do(hub: Hub) -> Ended:
        async with hub.transaction() as tx:
            if token is not None:
                return await revoke_token(tx, token, by)
            if id is not None:
                return live(Ended(token=id, revoked=int(await end.access(tx, id, by))))
            if family is not None:
                return live(Ended(family=family, revoked=int(await end.family(tx, family, end.ASKED, by))))
            assert service is not None
            await named(tx, service)
            return Ended(service=service, revoked=await end.service(tx, service, by))

    ended = errand(do, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(asdict(ended))
    elif ended.service:
        screen.say(f"{ended.revoked} families of {service} are revoked")
    else:
        screen.say(f"{ended.what} is revoked" if ended.revoked else f"{ended.what} had ended already")


@app.command(name="list")
def listing(
    *,
    service: Annotated[str | None, Parameter(help="Only those of this service.")] = None,
    all: Annotated[bool, Parameter(negative="", help="Those that have ended too.")] = False,  # noqa: A002 the option's name
    limit: Limit = 50,
    cursor: Cursor = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show access tokens by their ids, the newest first. With --json their families and scopes too."""
    after = place(cursor)

    async def look(hub: Hub) -> list[Standing]:
        async with hub.autocommit() as tx:
            if service is not None:
                await named(tx, service)
            return await standing.every(tx, service=service, after=after, ended=all, limit=limit + 1)

    every = errand(look, data_dir=data_dir, database_url=database_url)
    page, more = every[:limit], len(every) > limit
    following = f"{page[-1].created_at.isoformat()}/{page[-1].id}" if more else None
    if json:
        screen.as_json({"items": [view(each) for each in page], "cursor": following})
        return
    screen.table(
        ("id", "service", "good", "ends"),
        [(each.id, each.service, "yes" if each.good else "no", moment(each.ends)) for each in page],
        empty="No tokens.",
    )
    if following:
        screen.say(f"older: --cursor {following}")


def brought(token: str) -> str:
    """The token from the argument or from standard input; bytes that are no text are no token of ours either way."""
    if token.startswith("-") and token != STANDARD_INPUT:
        raise Invalid.one("token", f"does not begin with a hyphen; {token!r} is not an option either")
    if token == STANDARD_INPUT:
        token = sys.stdin.buffer.readline(MOST_BYTES).decode(errors="replace")
    token = token.encode(errors="replace").decode().strip()
    if not token:
        raise Invalid.one("token", "is empty")
    return token


async def active(tx: Tx, name: str) -> Service:
    service = await named(tx, name)
    if not service.is_active:
        raise Conflict(f"{name} is disabled: `pabal service enable {name}` lets it in again")
    return service


async def revoke_token(tx: Tx, token: str, by: Actor) -> Ended:
    """As at the door: an access token ends alone, a refresh token takes its family with it."""
    known = await standing.standing(tx, token)
    if known is None:
        raise NotFound("this is not a token of this hub: `pabal token verify` says more")
    if is_refresh(token):
        return Ended(family=known.family_id, revoked=int(await end.family(tx, known.family_id, end.ASKED, by)))
    return Ended(token=known.id, revoked=int(await end.access(tx, known.id, by)))


def live(ended: Ended) -> Ended:
    """An id that names nothing live is more likely mistyped than revoked twice."""
    if not ended.revoked:
        raise NotFound(f"there is no live {ended.what}: `pabal token list` shows those there are")
    return ended


def hand_out(pair: Pair, *, json: bool) -> None:
    answer: dict[str, Any] = msgspec.to_builtins(told(pair)) | {"family": pair.family}
    if json:
        screen.as_json(answer)
        return
    for name, value in answer.items():
        screen.say(f"{name:<15}{value}")
    screen.say("The tokens are shown this once: the hub keeps them encrypted.")


def account(explained: Explanation, kind: str) -> dict[str, Any]:
    token = explained.issued
    known = (
        None
        if token is None
        else {
            "id": token.id,
            "family": token.family_id,
            "service": token.service,
            "scope": permission.scope(token.permissions),
            "created_at": token.created_at,
            "expires_at": token.ends,
        }
    )
    return {"good": explained.good, "why": explained.why, "kind": kind, "token": known, "claims": explained.claims}


def tell(explained: Explanation, kind: str) -> None:
    if explained.good:
        screen.out.print(Text("good", "green"))
    for why in explained.why:
        screen.out.print(Text.assemble(("not good", "red"), f": {why}"))
    if token := explained.issued:
        screen.table(
            ("token", kind),
            [
                ("service", token.service),
                ("scope", permission.scope(token.permissions)),
                ("id", token.id),
                ("family", token.family_id),
                ("issued", moment(token.created_at)),
                ("ends", moment(token.ends)),
            ],
        )
    if explained.claims:
        screen.table(("claim", ""), [*msgspec.structs.asdict(explained.claims).items()])


def view(token: Standing) -> dict[str, Any]:
    return {
        "id": token.id,
        "family": token.family_id,
        "service": token.service,
        "scope": permission.scope(token.permissions),
        "good": token.good,
        "created_at": token.created_at,
        "expires_at": token.ends,
    }


def place(cursor: str | None) -> tuple[datetime, UUID] | None:
    """Read a cursor: when the last token of the page before was issued, and which it was."""
    if cursor is None:
        return None
    at, _, row = cursor.partition("/")
    try:
        return datetime.fromisoformat(at), UUID(row)
    except ValueError:
        raise Invalid.one("cursor", "is not one of ours") from None
