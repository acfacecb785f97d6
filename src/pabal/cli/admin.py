"""`pabal admin add|passwd|role|list|disable|enable`."""

import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import datetime
from getpass import getpass
from pathlib import Path
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from pabal.cli.context import cli_actor, with_hub
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.cli.output import print_json, print_table, print_text
from pabal.core.actor import Actor
from pabal.core.errors import Invalid, NotFound
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.operators.operators import (
    Operator,
    OperatorSummary,
    Role,
    add_operator,
    disable_operator,
    enable_operator,
    list_operators,
    set_operator_password,
    set_operator_role,
)
from pabal.operators.password import check_password_length, generate_password, hash_password

app = cyclopts.App(name="admin", help="The operators of the console: who may look, and who may change things.")

OperatorArgument = Annotated[str, Parameter(name="NAME", help="The operator, as `pabal admin list` shows them.")]
GenerateOption = Annotated[
    bool, Parameter(negative="", help="Make a password up and print it, this once, instead of asking for one.")
]
MAX_PASSWORD_BYTES = 65536


@app.command(name="add")
def admin_add(
    name: Annotated[str, Parameter(name="NAME", help="What they sign in as; case does not matter.")],
    /,
    *,
    role: Annotated[Role, Parameter(help="A viewer looks, an admin also changes things.")] = Role.VIEWER,
    generate: GenerateOption = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Add an operator. The password is asked for twice, or read from standard input when that is no terminal."""
    chosen = read_password(generate=generate)
    added = change_operator(
        lambda tx: add_operator(tx, name, chosen, role, Actor(cli_actor())),
        data_dir=data_dir,
        database_url=database_url,
    )
    print_operator(added, f"{added.name} may sign in as {added.role}", chosen if generate else None, json=json)


@app.command(name="passwd")
def admin_passwd(
    name: OperatorArgument,
    /,
    *,
    generate: GenerateOption = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Give an operator another password. Wherever they are signed in, they must sign in again."""
    chosen = read_password(generate=generate)

    async def change(tx: Tx) -> Operator:
        return await set_operator_password(tx, name, await hash_password(chosen), Actor(cli_actor()))

    changed = change_operator(change, data_dir=data_dir, database_url=database_url)
    print_operator(
        changed, f"{changed.name} has another password, and is signed out", chosen if generate else None, json=json
    )


@app.command(name="role")
def admin_role(
    name: OperatorArgument,
    to: Annotated[Role, Parameter(name="ROLE", help="A viewer looks, an admin also changes things.")],
    /,
    *,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Make an operator a viewer or an admin, from their next page on."""
    changed = change_operator(
        lambda tx: set_operator_role(tx, name, to, Actor(cli_actor())),
        data_dir=data_dir,
        database_url=database_url,
    )
    print_operator(changed, f"{changed.name} is {changed.role}", json=json)


@app.command(name="list")
def admin_list(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show the operators there are."""

    async def look(hub: Hub) -> list[OperatorSummary]:
        async with hub.autocommit() as tx:
            return await list_operators(tx)

    every = with_hub(look, data_dir=data_dir, database_url=database_url)
    if json:
        print_json([asdict(each) for each in every])
        return
    print_table(
        ("name", "role", "state", "last signed in"),
        [(each.name, each.role, operator_state(each), sign_in_time(each.last_signed_in_at)) for each in every],
        empty="No operators: `pabal up` makes the first one.",
    )


@app.command(name="disable")
def admin_disable(
    name: OperatorArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Keep an operator out: wherever they are signed in, they are out at once, until they are enabled again."""
    changed = change_operator(
        lambda tx: disable_operator(tx, name, Actor(cli_actor())),
        data_dir=data_dir,
        database_url=database_url,
    )
    print_operator(changed, f"{changed.name} is out, and cannot sign in", json=json)


@app.command(name="enable")
def admin_enable(
    name: OperatorArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Let a disabled operator sign in again, with the password they had."""
    changed = change_operator(
        lambda tx: enable_operator(tx, name, Actor(cli_actor())), data_dir=data_dir, database_url=database_url
    )
    print_operator(changed, f"{changed.name} may sign in again", json=json)


def read_password(*, generate: bool) -> str:
    """Made up, asked for twice without showing it, or the first line of standard input."""
    if generate:
        return generate_password()
    if not sys.stdin.isatty():
        line = (
            sys.stdin.buffer.readline(MAX_PASSWORD_BYTES).decode(errors="replace").removesuffix("\n").removesuffix("\r")
        )
        return check_password_length(line)
    chosen = check_password_length(getpass("Password: "))
    if getpass("Once more: ") != chosen:
        raise Invalid.of_field("password", "was not the same twice")
    return chosen


def change_operator(
    action: Callable[[Tx], Awaitable[Operator]], *, data_dir: Path | None, database_url: str | None
) -> Operator:
    async def do(hub: Hub) -> Operator:
        async with hub.transaction() as tx:
            try:
                return await action(tx)
            except NotFound as error:
                raise NotFound(f"{error}: `pabal admin list` shows those there are") from None

    return with_hub(do, data_dir=data_dir, database_url=database_url)


def print_operator(operator: Operator, message: str, generated: str | None = None, *, json: bool) -> None:
    if json:
        print_json(asdict(operator) | ({"password": generated} if generated else {}))
        return
    print_text(message)
    if generated:
        print_text(f"password  {generated}")
        print_text("It is shown this once: the hub keeps only its hash.")


def operator_state(operator: OperatorSummary) -> str:
    return f"disabled since {sign_in_time(operator.disabled_at)}" if operator.disabled_at else "active"


def sign_in_time(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S %Z}" if at else "never"
