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

from pabal.cli import screen
from pabal.cli.errand import actor, errand
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.core.actor import Actor
from pabal.core.errors import Invalid, NotFound
from pabal.db.tx import Tx
from pabal.operators import operators, password
from pabal.operators.operators import Operator, Portrait, Role
from pabal.wiring import Hub

app = cyclopts.App(name="admin", help="The operators of the console: who may look, and who may change things.")

Name = Annotated[str, Parameter(name="NAME", help="The operator, as `pabal admin list` shows them.")]
Generate = Annotated[
    bool, Parameter(negative="", help="Make a password up and print it, this once, instead of asking for one.")
]
MOST_BYTES = 65536


@app.command
def add(
    name: Annotated[str, Parameter(name="NAME", help="What they sign in as; case does not matter.")],
    /,
    *,
    role: Annotated[Role, Parameter(help="A viewer looks, an admin also changes things.")] = Role.VIEWER,
    generate: Generate = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Add an operator. The password is asked for twice, or read from standard input when that is no terminal."""
    chosen = chosen_password(generate=generate)
    added = do_it(
        lambda tx: operators.add(tx, name, chosen, role, Actor(actor())), data_dir=data_dir, database_url=database_url
    )
    tell(added, f"{added.name} may sign in as {added.role}", chosen if generate else None, json=json)


@app.command
def passwd(
    name: Name,
    /,
    *,
    generate: Generate = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Give an operator another password. Wherever they are signed in, they must sign in again."""
    chosen = chosen_password(generate=generate)

    async def change(tx: Tx) -> Operator:
        return await operators.set_password(tx, name, await password.hashed(chosen), Actor(actor()))

    changed = do_it(change, data_dir=data_dir, database_url=database_url)
    tell(changed, f"{changed.name} has another password, and is signed out", chosen if generate else None, json=json)


@app.command
def role(
    name: Name,
    to: Annotated[Role, Parameter(name="ROLE", help="A viewer looks, an admin also changes things.")],
    /,
    *,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Make an operator a viewer or an admin, from their next page on."""
    changed = do_it(
        lambda tx: operators.set_role(tx, name, to, Actor(actor())), data_dir=data_dir, database_url=database_url
    )
    tell(changed, f"{changed.name} is {changed.role}", json=json)


@app.command(name="list")
def listing(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show the operators there are."""

    async def look(hub: Hub) -> list[Portrait]:
        async with hub.autocommit() as tx:
            return await operators.every(tx)

    every = errand(look, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json([asdict(each) for each in every])
        return
    screen.table(
        ("name", "role", "state", "last signed in"),
        [(each.name, each.role, state(each), moment(each.last_signed_in_at)) for each in every],
        empty="No operators: `pabal up` makes the first one.",
    )


@app.command
def disable(name: Name, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Keep an operator out: wherever they are signed in, they are out at once, until they are enabled again."""
    changed = do_it(
        lambda tx: operators.disable(tx, name, Actor(actor())), data_dir=data_dir, database_url=database_url
    )
    tell(changed, f"{changed.name} is out, and cannot sign in", json=json)


@app.command
def enable(name: Name, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Let a disabled operator sign in again, with the password they had."""
    changed = do_it(lambda tx: operators.enable(tx, name, Actor(actor())), data_dir=data_dir, database_url=database_url)
    tell(changed, f"{changed.name} may sign in again", json=json)


def chosen_password(*, generate: bool) -> str:
    """Made up, asked for twice without showing it, or the first line of standard input."""
    if generate:
        return password.made_up()
    if not sys.stdin.isatty():
        line = sys.stdin.buffer.readline(MOST_BYTES).decode(errors="replace").removesuffix("\n").removesuffix("\r")
        return password.allowed(line)
    chosen = password.allowed(getpass("Password: "))
    if getpass("Once more: ") != chosen:
        raise Invalid.one("password", "was not the same twice")
    return chosen


def do_it(verb: Callable[[Tx], Awaitable[Operator]], *, data_dir: Path | None, database_url: str | None) -> Operator:
    async def do(hub: Hub) -> Operator:
        async with hub.transaction() as tx:
            try:
                return await verb(tx)
            except NotFound as error:
                raise NotFound(f"{error}: `pabal admin list` shows those there are") from None

    return errand(do, data_dir=data_dir, database_url=database_url)


def tell(operator: Operator, says: str, made_up: str | None = None, *, json: bool) -> None:
    if json:
        screen.as_json(asdict(operator) | ({"password": made_up} if made_up else {}))
        return
    screen.say(says)
    if made_up:
        screen.say(f"password  {made_up}")
        screen.say("It is shown this once: the hub keeps only its hash.")


def state(operator: Portrait) -> str:
    return f"disabled since {moment(operator.disabled_at)}" if operator.disabled_at else "active"


def moment(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S %Z}" if at else "never"
