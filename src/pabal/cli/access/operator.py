"""`pabal operator add|list|disable|enable|remove|set-password|set-role`."""

import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from getpass import getpass
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from pabal.cli.context import cli_actor, run_query, run_transaction
from pabal.cli.examples import examples
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json, flag
from pabal.cli.output import local_time, print_json, print_rows, print_text, state_since
from pabal.core.errors import Invalid, NotFound
from pabal.db.tx import Tx
from pabal.operators.operators import (
    Operator,
    OperatorSummary,
    Role,
    add_operator,
    disable_operator,
    enable_operator,
    list_operators,
    remove_operator,
    set_operator_password,
    set_operator_role,
)
from pabal.operators.password import check_password_length, generate_password, hash_password

app = cyclopts.App(
    name="operator",
    help="Manage the console's operators.\n\nAn operator can sign in to the console.",
    help_epilogue=examples("operator add mina --role admin", "operator list"),
)

OperatorArgument = Annotated[str, Parameter(name="NAME", help="Name of the operator.")]
RoleHelp = Parameter(help="viewer (read-only) or admin.")
GenerateOption = Annotated[bool, flag("Generate a password and print it once, instead of asking for one.")]
MAX_PASSWORD_BYTES = 65536
COLUMNS = ("name", "role", "state", "last signed in")


@app.command(name="add", help_epilogue=examples("operator add mina", "operator add mina --role admin --generate"))
def operator_add(
    name: Annotated[str, Parameter(name="NAME", help="Name to sign in with; case does not matter.")],
    /,
    *,
    role: Annotated[Role, RoleHelp] = Role.VIEWER,
    generate: GenerateOption = False,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Add an operator. Asks for the password twice, or reads it from standard input if that is not a terminal."""
    password = read_password(generate=generate)

    async def add(tx: Tx) -> Operator:
        return await add_operator(tx, name, await hash_password(password), role, cli_actor())

    operator = change_operator(connection, add)
    print_operator(operator, f"{operator.name} added as {operator.role}", password if generate else None, json=json)


@app.command(
    name="set-password", help_epilogue=examples("operator set-password mina", "operator set-password mina --generate")
)
def operator_set_password(
    name: OperatorArgument,
    /,
    *,
    generate: GenerateOption = False,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Change an operator's password and end their sessions."""
    password = read_password(generate=generate)

    async def change(tx: Tx) -> Operator:
        return await set_operator_password(tx, name, await hash_password(password), cli_actor())

    operator = change_operator(connection, change)
    print_operator(
        operator, f"Password of {operator.name} changed; sessions ended", password if generate else None, json=json
    )


@app.command(name="set-role", help_epilogue=examples("operator set-role mina admin", "operator set-role mina viewer"))
def operator_set_role(
    name: OperatorArgument,
    role: Annotated[Role, Parameter(name="ROLE"), RoleHelp],
    /,
    *,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Change an operator's role, from their next request on."""
    operator = change_operator(connection, lambda tx: set_operator_role(tx, name, role, cli_actor()))
    print_operator(operator, f"{operator.name} is now {operator.role}", json=json)


@app.command(name="list", help_epilogue=examples("operator list", "operator list --json"))
def operator_list(*, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """List operators."""
    operators = run_query(connection, list_operators)
    empty = "No operators. `pabal up` creates the first one."
    print_rows(operators, COLUMNS, operator_cells, empty=empty, json=json)


@app.command(name="disable", help_epilogue=examples("operator disable mina", "operator disable mina --json"))
def operator_disable(
    name: OperatorArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Disable an operator and end their sessions at once."""
    operator = change_operator(connection, lambda tx: disable_operator(tx, name, cli_actor()))
    print_operator(operator, f"{operator.name} disabled; sessions ended", json=json)


@app.command(name="enable", help_epilogue=examples("operator enable mina", "operator enable mina --json"))
def operator_enable(
    name: OperatorArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Enable a disabled operator. The password is unchanged."""
    operator = change_operator(connection, lambda tx: enable_operator(tx, name, cli_actor()))
    print_operator(operator, f"{operator.name} enabled", json=json)


@app.command(name="remove", help_epilogue=examples("operator remove mina", "operator remove mina --json"))
def operator_remove(
    name: OperatorArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Remove an operator and end their sessions at once. The audit log keeps the name."""
    operator = change_operator(connection, lambda tx: remove_operator(tx, name, cli_actor()))
    print_operator(operator, f"{operator.name} removed; sessions ended", json=json)


def read_password(*, generate: bool) -> str:
    """Generate a password, ask for it twice without echo, or read the first line of standard input."""
    if generate:
        return generate_password()
    if not sys.stdin.isatty():
        line = sys.stdin.buffer.readline(MAX_PASSWORD_BYTES).decode(errors="replace")
        return check_password_length(line.removesuffix("\n").removesuffix("\r"))
    password = check_password_length(getpass("Password: "))
    if getpass("Repeat password: ") != password:
        raise Invalid.of_field("password", "the two entries differ")
    return password


def change_operator(connection: Connection, change: Callable[[Tx], Awaitable[Operator]]) -> Operator:
    async def apply(tx: Tx) -> Operator:
        try:
            return await change(tx)
        except NotFound as error:
            raise NotFound(f"{error}. See `pabal operator list`") from None

    return run_transaction(connection, apply)


def print_operator(operator: Operator, message: str, password: str | None = None, *, json: bool) -> None:
    if json:
        print_json(asdict(operator) | ({"password": password} if password else {}))
        return
    print_text(message)
    if password:
        print_text(f"password  {password}")
        print_text("The password is shown only once; the hub stores its hash.")


def operator_cells(operator: OperatorSummary) -> tuple[object, ...]:
    return (
        operator.name,
        operator.role,
        state_since("disabled", operator.disabled_at),
        local_time(operator.last_signed_in_at) or "never",
    )
