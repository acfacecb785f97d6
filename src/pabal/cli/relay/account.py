"""`pabal account add|list|show|set|disable|enable|rotate-token|remove`."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated
from uuid import UUID

import cyclopts
from cyclopts import Parameter
from cyclopts.validators import Number

from pabal.cli.context import cli_actor, run_query, run_transaction
from pabal.cli.examples import examples
from pabal.cli.id_argument import resolve_id
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json, UsageError, flag, nothing_to_change
from pabal.cli.output import (
    local_time,
    print_fields,
    print_json,
    print_rows,
    print_text,
    read_all_pages,
    replace_unprintable,
    state_since,
)
from pabal.core.errors import NotFound
from pabal.core.short_id import parse_id_pattern
from pabal.db.tx import Tx
from pabal.relay.accounts import (
    MAX_RATE_LIMIT,
    Account,
    AccountDetails,
    AnswerMode,
    create_account,
    delete_account,
    disable_account,
    enable_account,
    find_account,
    find_account_details,
    list_accounts,
    rename_account,
    rotate_relay_token,
    set_account_answer_mode,
    set_account_rate_limit,
)
from pabal.relay.id_lookup import match_account_ids

app = cyclopts.App(
    name="account",
    help="Manage the chat relay's accounts and relay tokens.\n\nAn account is the owner of a bot.",
    help_epilogue=examples("account add mina", "account list"),
)

RateLimitNumber = Annotated[int, Parameter(validator=Number(gte=1, lte=MAX_RATE_LIMIT))]
RATE_LIMIT_HELP = "Polls and replies allowed per minute. Replies above it wait."
ANSWER_MODE_HELP = (
    "How users get answers: in the webhook's response, by Kakao's callback, by a button, or chosen per message."
)
AccountArgument = Annotated[str, Parameter(name="ACCOUNT", help="Name or id of the account.")]

PAGE_SIZE = 500
COLUMNS = ("id", "name", "state", "relay token", "per minute", "created")
TOKEN_SHOWN_ONCE = "The relay token is shown only once; the hub stores its hash."  # noqa: S105


@app.command(name="add", help_epilogue=examples("account add mina", "account add mina --rate-limit 120 --json"))
def account_add(
    name: Annotated[str, Parameter(name="NAME", help="Name of the account, unique in this hub.")],
    /,
    *,
    rate_limit: Annotated[
        RateLimitNumber | None, Parameter(help=f"{RATE_LIMIT_HELP} [PABAL_ACCOUNT_RATE_LIMIT]")
    ] = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Add an account and print its relay token, which is shown only once."""
    limit = load_rate_limit(connection) if rate_limit is None else rate_limit

    async def add(tx: Tx) -> tuple[Account, str]:
        return await create_account(tx, name, cli_actor(), rate_limit=limit)

    account, token = run_transaction(connection, add)
    if json:
        print_json(asdict(account) | {"relay_token": token})
        return
    print_text(f"account      {account.id}")
    print_relay_token(token)


def load_rate_limit(connection: Connection) -> int:
    """The limit of new accounts in the settings."""
    from pabal.settings import load_settings

    return load_settings(data_dir=connection.data_dir, database_url=connection.database_url).account_rate_limit


@app.command(
    name="set",
    help_epilogue=examples(
        "account set 01a1e213…ea569f --name mina",
        "account set mina --rate-limit 1200 --answer-mode synchronous --json",
    ),
)
def account_set(
    account_ref: AccountArgument,
    /,
    *,
    name: Annotated[str | None, Parameter(help="New name, unique in this hub. Users see it in `/status`.")] = None,
    rate_limit: Annotated[RateLimitNumber | None, Parameter(help=RATE_LIMIT_HELP)] = None,
    answer_mode: Annotated[AnswerMode | None, Parameter(help=ANSWER_MODE_HELP)] = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Change the settings of an account. Accounts that a session created can be changed as well."""
    if name is None and rate_limit is None and answer_mode is None:
        raise nothing_to_change("--name", "--rate-limit", "--answer-mode")

    async def change(tx: Tx) -> Account:
        account_id = await resolve_account_id(tx, account_ref)
        if name is not None:
            await rename_account(tx, account_id, name, cli_actor())
        if rate_limit is not None:
            await set_account_rate_limit(tx, account_id, rate_limit, cli_actor())
        if answer_mode is not None:
            await set_account_answer_mode(tx, account_id, answer_mode, cli_actor())
        return await find_account(tx, account_id)

    account = run_transaction(connection, change)
    if json:
        print_json(asdict(account))
        return
    current_name = replace_unprintable(account.openclaw_user_id)
    if name is not None:
        print_text(f"{account.id} is named {current_name}")
    if rate_limit is not None:
        print_text(f"{current_name} may send {account.rate_limit_per_minute} polls and replies per minute")
    if answer_mode is not None:
        print_text(f"{current_name} answers in the mode {account.answer_mode}")


@app.command(name="list", help_epilogue=examples("account list", "account list --json"))
def account_list(*, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """List accounts, oldest first."""

    async def read(tx: Tx) -> list[Account]:
        return await read_all_pages(lambda after: list_accounts(tx, after=after, limit=PAGE_SIZE))

    print_rows(run_query(connection, read), COLUMNS, account_cells, empty="No accounts.", json=json)


@app.command(name="show", help_epilogue=examples("account show mina", "account show 01a1e213…ea569f --json"))
def account_show(
    account_ref: AccountArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Show an account with its users, sessions and open messages."""

    async def read(tx: Tx) -> AccountDetails:
        return await find_account_details(tx, await resolve_account_id(tx, account_ref))

    details = run_query(connection, read)
    account, counts = details.account, details.counts
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
                "yes" if account.has_token else f"none: create one with `pabal account rotate-token {account.id}`",
            ),
            ("per minute", account.rate_limit_per_minute),
            ("answer mode", account.answer_mode),
            ("created", local_time(account.created_at)),
            ("users", f"{counts.paired} paired, {counts.pending} pending, {counts.blocked} blocked"),
            ("pairing codes", counts.live_codes),
            ("sessions", counts.sessions),
            ("open messages", counts.open_messages),
        ]
    )


@app.command(name="disable", help_epilogue=examples("account disable mina", "account disable mina --json"))
def account_disable(
    account_ref: AccountArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Disable an account. Its tokens are refused at once, its queued messages and pairing codes are cancelled."""
    actor = cli_actor()
    change_account(connection, account_ref, lambda tx, account: disable_account(tx, account, actor), json=json)


@app.command(name="enable", help_epilogue=examples("account enable mina", "account enable mina --json"))
def account_enable(
    account_ref: AccountArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Enable a disabled account. Its tokens and users are unchanged."""
    actor = cli_actor()
    change_account(connection, account_ref, lambda tx, account: enable_account(tx, account, actor), json=json)


@app.command(
    name="rotate-token", help_epilogue=examples("account rotate-token mina", "account rotate-token mina --sessions")
)
def account_rotate_token(
    account_ref: AccountArgument,
    /,
    *,
    sessions: Annotated[bool, flag("Revoke the session tokens as well.")] = False,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Print a new relay token, which is shown only once. The old one stops working at once."""

    async def rotate(tx: Tx) -> tuple[UUID, str]:
        account = await resolve_account_id(tx, account_ref)
        return account, await rotate_relay_token(tx, account, cli_actor(), revoke_sessions=sessions)

    account, token = run_transaction(connection, rotate)
    if json:
        print_json({"id": account, "relay_token": token})
        return
    print_relay_token(token)


@app.command(name="remove", help_epilogue=examples("account remove mina --yes", "account remove mina --yes --json"))
def account_remove(
    account_ref: AccountArgument,
    /,
    *,
    yes: Annotated[bool, flag("Confirm that its messages are deleted.")] = False,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Remove an account with its messages, pairing codes and sessions. Its users are unpaired."""
    if not yes:
        raise UsageError("This deletes the account's messages. Confirm with --yes, or disable the account instead")

    async def remove(tx: Tx) -> Account:
        return await delete_account(tx, await resolve_account_id(tx, account_ref), cli_actor())

    account = run_transaction(connection, remove)
    if json:
        print_json({"removed": account.id})
    else:
        print_text(f"{replace_unprintable(account.openclaw_user_id)} removed")


app.command(account_add, name="create", show=False)  # the verbs of 0.1, kept for one version
app.command(account_remove, name="delete", show=False)


async def resolve_account_id(tx: Tx, account_ref: str) -> UUID:
    """Return the id of the account with this id, short id or name. A name wins over a prefix that looks like an id."""
    pattern = parse_id_pattern(account_ref)
    is_full = pattern is not None and pattern.low == pattern.high
    try:
        return (await find_account(tx, pattern.low if pattern is not None and is_full else account_ref)).id
    except NotFound as error:
        if pattern is None or is_full:
            raise NotFound(f"{error}. See `pabal account list`") from None
    return await resolve_id(tx, pattern, "account", match_account_ids)


def change_account(
    connection: Connection, account_ref: str, change: Callable[[Tx, UUID], Awaitable[Account]], *, json: bool
) -> None:
    async def apply(tx: Tx) -> Account:
        return await change(tx, await resolve_account_id(tx, account_ref))

    account = run_transaction(connection, apply)
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
    return state_since("disabled", account.disabled_at)
