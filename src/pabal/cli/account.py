"""`pabal account create|list|show|disable|enable|rotate-token|delete`."""

from dataclasses import asdict
from typing import Annotated
from uuid import UUID

import cyclopts
from cyclopts import Parameter
from cyclopts.validators import Number

from pabal.cli import lists, screen, wide
from pabal.cli.errand import actor, errand, in_transaction
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.core.actor import Actor
from pabal.core.errors import Failed, NotFound
from pabal.db.tx import Tx
from pabal.relay import accounts
from pabal.relay.accounts import MOST_RATE, RATE_LIMIT, Account, Portrait
from pabal.wiring import Hub

app = cyclopts.App(name="account", help="The bot owners of the chat relay, and their relay tokens.")

Which = Annotated[str, Parameter(name="ACCOUNT", help="Its name or its id, as `pabal account list` shows them.")]

PAGE = 500
COLUMNS = ("id", "name", "state", "relay token", "a minute", "created")
ONCE = "The relay token is shown this once: the hub keeps only its hash."


@app.command
def create(
    name: Annotated[str, Parameter(name="NAME", help="What it is called, among the accounts of this hub.")],
    /,
    *,
    rate_limit: Annotated[
        int, Parameter(validator=Number(gte=1, lte=MOST_RATE), help="Polls and replies it may make a minute.")
    ] = RATE_LIMIT,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Make an account for a bot's owner and print its relay token, this once."""

    async def do(tx: Tx) -> tuple[Account, str]:
        return await accounts.create(tx, name, Actor(actor()), rate_limit=rate_limit)

    account, token = in_transaction(do, data_dir, database_url)
    if json:
        screen.as_json(asdict(account) | {"relay_token": token})
        return
    screen.say(f"account      {account.id}")
    hand_out(token)


@app.command(name="list")
def listing(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show the accounts there are, the oldest first."""

    async def look(hub: Hub) -> list[Account]:
        async with hub.autocommit() as tx:
            return await lists.to_the_end(lambda after: accounts.every(tx, after=after, limit=PAGE))

    every = errand(look, data_dir=data_dir, database_url=database_url)
    lists.whole(every, COLUMNS, cells, empty="No accounts.", json=json)


@app.command
def show(which: Which, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show one account: who is connected to it, and what waits for it."""

    async def look(tx: Tx) -> Portrait:
        return await accounts.show(tx, await row_of(tx, which))

    found = in_transaction(look, data_dir, database_url)
    account, counts = found.account, found.counts
    if json:
        screen.as_json(asdict(account) | asdict(counts))
        return
    wide.facts(
        [
            ("account", account.id),
            ("name", account.openclaw_user_id),
            ("state", state(account)),
            (
                "relay token",
                "yes" if account.has_token else f"none: `pabal account rotate-token {account.id}` makes one",
            ),
            ("a minute", account.rate_limit_per_minute),
            ("created", wide.local(account.created_at)),
            ("users", f"{counts.paired} paired, {counts.pending} pending, {counts.blocked} blocked"),
            ("live codes", counts.live_codes),
            ("sessions", counts.sessions),
            ("open messages", counts.open_messages),
        ]
    )


@app.command
def disable(which: Which, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Refuse an account's tokens at once, everywhere. What waits for it is cancelled, and its codes are gone."""

    async def do(tx: Tx) -> Account:
        return await accounts.disable(tx, await row_of(tx, which), Actor(actor()))

    print_changed(in_transaction(do, data_dir, database_url), json=json)


@app.command
def enable(which: Which, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Let a disabled account in again, with the tokens and the users it has."""

    async def do(tx: Tx) -> Account:
        return await accounts.enable(tx, await row_of(tx, which), Actor(actor()))

    print_changed(in_transaction(do, data_dir, database_url), json=json)


@app.command
def rotate_token(
    which: Which,
    /,
    *,
    sessions: Annotated[bool, Parameter(negative="", help="End the tokens of its sessions too.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Print a new relay token, this once. The one before is dead at once, and whoever is connected by it is told."""

    async def do(tx: Tx) -> tuple[UUID, str]:
        row = await row_of(tx, which)
        return row, await accounts.rotate_token(tx, row, Actor(actor()), sessions=sessions)

    row, token = in_transaction(do, data_dir, database_url)
    if json:
        screen.as_json({"id": row, "relay_token": token})
        return
    hand_out(token)


@app.command
def delete(
    which: Which,
    /,
    *,
    yes: Annotated[bool, Parameter(negative="", help="Yes, with all its messages.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Forget an account with its messages, codes and sessions. Its users are unpaired."""
    if not yes:
        raise Failed("its messages go with it; say --yes to delete it, or disable it instead")

    async def do(tx: Tx) -> Account:
        return await accounts.delete(tx, await row_of(tx, which), Actor(actor()))

    gone = in_transaction(do, data_dir, database_url)
    if json:
        screen.as_json({"deleted": gone.id})
    else:
        screen.say(f"{screen.printable(gone.openclaw_user_id)} is gone")


async def row_of(tx: Tx, which: str) -> UUID:
    """The account somebody means: by its id, or by its name."""
    try:
        asked: UUID | str = UUID(which)
    except ValueError:
        asked = which
    try:
        return (await accounts.find(tx, asked)).id
    except NotFound as error:
        raise NotFound(f"{error}: `pabal account list` shows those there are") from None


def print_changed(account: Account, *, json: bool) -> None:
    if json:
        screen.as_json(asdict(account))
    else:
        screen.say(f"{screen.printable(account.openclaw_user_id)} is {state(account)}")


def hand_out(token: str) -> None:
    screen.say(f"relay token  {token}")
    screen.say(ONCE)


def cells(account: Account) -> tuple[object, ...]:
    return (
        account.id,
        account.openclaw_user_id,
        state(account),
        "yes" if account.has_token else "none",
        account.rate_limit_per_minute,
        wide.local(account.created_at),
    )


def state(account: Account) -> str:
    return f"disabled since {wide.local(account.disabled_at)}" if account.disabled_at else "active"
