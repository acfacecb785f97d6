"""`pabal pair code|list|unpair|block|unblock|approve|deny`."""

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from pabal.cli import lists, screen, wide
from pabal.cli.account import row_of
from pabal.cli.errand import actor, errand, in_transaction
from pabal.cli.options import DatabaseUrl, DataDir, Json, span
from pabal.core.actor import Actor
from pabal.core.errors import Invalid
from pabal.relay import codes, conversations
from pabal.relay.codes import LIFE, LONGEST, Code
from pabal.relay.conversations import Conversation
from pabal.settings import in_words
from pabal.wiring import Hub

app = cyclopts.App(name="pair", help="Who is connected to whose bot in the chat relay.")

Key = Annotated[str, Parameter(name="KEY", help="The conversation, as `pabal pair list` shows it.")]

PAGE = 500
COLUMNS = ("conversation", "state", "account", "paired", "last seen")


@app.command
def code(
    account: Annotated[str, Parameter(name="ACCOUNT", help="Whose bot it connects to: a name or an id.")],
    /,
    *,
    expires: Annotated[
        timedelta,
        Parameter(converter=span, show_default=in_words, help=f"How long it is good for, {in_words(LONGEST)} at most."),
    ] = LIFE,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Print a code that connects one user to an account, by typing it in the chat."""
    if not timedelta() < expires <= LONGEST:
        raise Invalid.one("expires", f"is longer than nothing and {in_words(LONGEST)} at most")

    async def do(hub: Hub) -> tuple[Code, str]:
        async with hub.transaction() as tx:
            made = await codes.generate(tx, await row_of(tx, account), Actor(actor()), life=expires)
        return made, hub.settings.command_prefix

    made, prefix = errand(do, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(asdict(made))
        return
    screen.say(f"{prefix}pair {made.code}")
    screen.say(f"Good until {wide.local(made.expires_at)}, for one user.")


@app.command(name="list")
def listing(
    *,
    account: Annotated[str | None, Parameter(help="Only those of one account: a name or an id.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show the conversations there are, and how each stands."""

    async def look(hub: Hub) -> list[Conversation]:
        async with hub.autocommit() as tx:
            whose = await row_of(tx, account) if account else None
            return await lists.to_the_end(
                lambda after: conversations.every(tx, account=whose, after=after, limit=PAGE),
                lambda conversation: conversation.conversation_key,
            )

    every = errand(look, data_dir=data_dir, database_url=database_url)
    lists.whole(every, COLUMNS, cells, empty="No conversations.", json=json)


@app.command
def unpair(key: Key, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Disconnect a user. What they wrote and nobody answered is cancelled."""
    by = Actor(actor())
    changed = in_transaction(lambda tx: conversations.unpair(tx, key, by), data_dir, database_url)
    print_changed(changed, json=json)


@app.command
def block(key: Key, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Take nothing more from a user, on any account's behalf. Only an operator can undo it."""
    by = Actor(actor())
    changed = in_transaction(lambda tx: conversations.block(tx, key, by), data_dir, database_url)
    print_changed(changed, json=json)


@app.command
def unblock(key: Key, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Undo a block, an owner's too. Who was connected before is connected again."""
    by = Actor(actor())
    changed = in_transaction(lambda tx: conversations.unblock(tx, key, by), data_dir, database_url)
    print_changed(changed, json=json)


@app.command
def approve(key: Key, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Let in a user who has redeemed a code and waits for it."""

    async def do(hub: Hub) -> Conversation:
        async with hub.transaction() as tx:
            return await conversations.approve(tx, key, Actor(actor()), hub.relay.figures)

    print_changed(errand(do, data_dir=data_dir, database_url=database_url), json=json)


@app.command
def deny(key: Key, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Send away a user who waits for approval."""
    by = Actor(actor())
    changed = in_transaction(lambda tx: conversations.deny(tx, key, by), data_dir, database_url)
    print_changed(changed, json=json)


def print_changed(conversation: Conversation, *, json: bool) -> None:
    if json:
        screen.as_json(asdict(conversation))
    else:
        screen.say(f"{screen.printable(conversation.conversation_key)} is {state(conversation)}")


def state(conversation: Conversation) -> str:
    who = f" by the {conversation.blocked_by}" if conversation.blocked_by else ""
    return conversation.state.lower() + who


def cells(conversation: Conversation) -> tuple[object, ...]:
    return (
        conversation.conversation_key,
        state(conversation),
        conversation.account_id or "",
        wide.local(conversation.paired_at),
        wide.local(conversation.last_seen_at),
    )
