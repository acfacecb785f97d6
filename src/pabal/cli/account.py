"""`pabal account create|list|show|disable|enable|rotate-token|delete`."""

from dataclasses import asdict
from typing import Annotated
from uuid import UUID

import cyclopts
from cyclopts import Parameter
from cyclopts.validators import Number

from pabal.cli.context import cli_actor, with_hub, with_transaction
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.cli.output import (
    local_time,
    print_fields,
    print_json,
    print_rows,
    print_text,
    read_all_pages,
    replace_unprintable,
)
from pabal.core.actor import Actor
from pabal.core.errors import NotFound, SetupError
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.relay.accounts import (
    DEFAULT_RATE_LIMIT,
    MAX_RATE_LIMIT,
    Account,
    AccountDetails,
    create_account,
    delete_account,
    disable_account,
    enable_account,
    find_account,
    find_account_details,
    list_accounts,
    rotate_relay_token,
)

app = cyclopts.App(name="account", help="The bot owners of the chat relay, and their relay tokens.")

AccountArgument = Annotated[
    str, Parameter(name="ACCOUNT", help="Its name or its id, as `pabal account list` shows them.")
]

PAGE_SIZE = 500
COLUMNS = ("id", "name", "state", "relay token", "a minute", "created")
TOKEN_SHOWN_ONCE = "The relay token is shown this once: the hub keeps only its hash."  # noqa: S105


@app.command(name="create")
def account_create(
    name: Annotated[str, Parameter(name="NAME", help="What it is called, among the accounts of this hub.")],
    /,
    *,
    rate_limit: Annotated[
        int, Parameter(validator=Number(gte=1, lte=MAX_RATE_LIMIT), help="Polls and replies it may make a minute.")
    ] = DEFAULT_RATE_LIMIT,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Make an account for a bot's owner and print its relay token, this once."""

    async def do(tx: Tx) -> tuple[Account, str]:
        return await create_account(tx, name, Actor(cli_actor()), rate_limit=rate_limit)

    account, token = with_transaction(do, data_dir, database_url)
    if json:
        print_json(asdict(account) | {"relay_token": token})
        return
    print_text(f"account      {account.id}")
    print_relay_token(token)


@app.command(name="list")
def account_list(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show the accounts there are, the oldest first."""

    async def look(hub: Hub) -> list[Account]:
        async with hub.autocommit() as tx:
            return await read_all_pages(lambda after: list_accounts(tx, after=after, limit=PAGE_SIZE))

    every = with_hub(look, data_dir=data_dir, database_url=database_url)
    print_rows(every, COLUMNS, account_cells, empty="No accounts.", json=json)


@app.command(name="show")
def account_show(
    account_ref: AccountArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Show one account: who is connected to it, and what waits for it."""

    async def look(tx: Tx) -> AccountDetails:
        return await find_account_details(tx, await resolve_account_id(tx, account_ref))

    found = with_transaction(look, data_dir, database_url)
    account, counts = found.account, found.counts
    if json:
        print_json(asdict(account) | asdict(counts))
        return
    print_fields(
        [
            ("account", account.id),
            ("name", account.openclaw_user_id),
            ("state", account_state(account)),
            (
                "relay token",
                "yes" if account.has_token else f"none: `pabal account rotate-token {account.id}` makes one",
            ),
            ("a minute", account.rate_limit_per_minute),
            ("created", local_time(account.created_at)),
            ("users", f"{counts.paired} paired, {counts.pending} pending, {counts.blocked} blocked"),
            ("live codes", counts.live_codes),
            ("sessions", counts.sessions),
            ("open messages", counts.open_messages),
        ]
    )


@app.command(name="disable")
def account_disable(
    account_ref: AccountArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Refuse an account's tokens at once, everywhere. What waits for it is cancelled, and its codes are gone."""

    async def do(tx: Tx) -> Account:
        return await disable_account(tx, await resolve_account_id(tx, account_ref), Actor(cli_actor()))

    print_account_state(with_transaction(do, data_dir, database_url), json=json)


@app.command(name="enable")
def account_enable(
    account_ref: AccountArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Let a disabled account in again, with the tokens and the users it has."""

    async def do(tx: Tx) -> Account:
        return await enable_account(tx, await resolve_account_id(tx, account_ref), Actor(cli_actor()))

    print_account_state(with_transaction(do, data_dir, database_url), json=json)


@app.command(name="rotate-token")
def account_rotate_token(
    account_ref: AccountArgument,
    /,
    *,
    sessions: Annotated[bool, Parameter(negative="", help="End the tokens of its sessions too.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Print a new relay token, this once. The one before is dead at once, and whoever is connected by it is told."""

    async def do(tx: Tx) -> tuple[UUID, str]:
        row = await resolve_account_id(tx, account_ref)
        return row, await rotate_relay_token(tx, row, Actor(cli_actor()), revoke_sessions=sessions)

    row, token = with_transaction(do, data_dir, database_url)
    if json:
        print_json({"id": row, "relay_token": token})
        return
    print_relay_token(token)


@app.command(name="delete")
def account_delete(
    account_ref: AccountArgument,
    /,
    *,
    yes: Annotated[bool, Parameter(negative="", help="Yes, with all its messages.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Forget an account with its messages, codes and sessions. Its users are unpaired."""
    if not yes:
        raise SetupError("its messages go with it; say --yes to delete it, or disable it instead")

    async def do(tx: Tx) -> Account:
        return await delete_account(tx, await resolve_account_id(tx, account_ref), Actor(cli_actor()))

    gone = with_transaction(do, data_dir, database_url)
    if json:
        print_json({"deleted": gone.id})
    else:
        print_text(f"{replace_unprintable(gone.openclaw_user_id)} is gone")


async def resolve_account_id(tx: Tx, account_ref: str) -> UUID:
    """The account somebody means: by its id, or by its name."""
    try:
        asked: UUID | str = UUID(account_ref)
    except ValueError:
        asked = account_ref
    try:
        return (await find_account(tx, asked)).id
    except NotFound as error:
        raise NotFound(f"{error}: `pabal account list` shows those there are") from None


def print_account_state(account: Account, *, json: bool) -> None:
    if json:
        print_json(asdict(account))
    else:
        print_text(f"{replace_unprintable(account.openclaw_user_id)} is {account_state(account)}")


def print_relay_token(token: str) -> None:
    print_text(f"relay token  {token}")
    print_text(TOKEN_SHOWN_ONCE)


def account_cells(account: Account) -> tuple[object, ...]:
    return (
        account.id,
        account.openclaw_user_id,
        account_state(account),
        "yes" if account.has_token else "none",
        account.rate_limit_per_minute,
        local_time(account.created_at),
    )


def account_state(account: Account) -> str:
    return f"disabled since {local_time(account.disabled_at)}" if account.disabled_at else "active"
