"""`pabal pair code|list|unpair|block|unblock|approve|deny`."""

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from pabal.cli.account import resolve_account_id
from pabal.cli.context import cli_actor, with_hub, with_transaction
from pabal.cli.options import DatabaseUrl, DataDir, Json, parse_duration_option
from pabal.cli.output import local_time, print_json, print_rows, print_text, read_all_pages, replace_unprintable
from pabal.core.actor import Actor
from pabal.core.errors import Invalid
from pabal.hub import Hub
from pabal.relay.conversations import (
    Conversation,
    approve_pairing,
    block_conversation,
    deny_pairing,
    list_conversations,
    unblock_conversation,
    unpair_conversation,
)
from pabal.relay.pairing.codes import DEFAULT_CODE_LIFETIME, MAX_CODE_LIFETIME, PairingCode, create_pairing_code
from pabal.settings import format_duration

app = cyclopts.App(name="pair", help="Who is connected to whose bot in the chat relay.")

ConversationKeyArgument = Annotated[str, Parameter(name="KEY", help="The conversation, as `pabal pair list` shows it.")]

PAGE_SIZE = 500
COLUMNS = ("conversation", "state", "account", "paired", "last seen")


@app.command(name="code")
def pair_code(
    account: Annotated[str, Parameter(name="ACCOUNT", help="Whose bot it connects to: a name or an id.")],
    /,
    *,
    expires: Annotated[
        timedelta,
        Parameter(
            converter=parse_duration_option,
            show_default=format_duration,
            help=f"How long it is good for, {format_duration(MAX_CODE_LIFETIME)} at most.",
        ),
    ] = DEFAULT_CODE_LIFETIME,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Print a code that connects one user to an account, by typing it in the chat."""
    if not timedelta() < expires <= MAX_CODE_LIFETIME:
        raise Invalid.of_field("expires", f"is longer than nothing and {format_duration(MAX_CODE_LIFETIME)} at most")

    async def do(hub: Hub) -> tuple[PairingCode, str]:
        async with hub.transaction() as tx:
            made = await create_pairing_code(
                tx, await resolve_account_id(tx, account), Actor(cli_actor()), lifetime=expires
            )
        return made, hub.settings.command_prefix

    made, prefix = with_hub(do, data_dir=data_dir, database_url=database_url)
    if json:
        print_json(asdict(made))
        return
    print_text(f"{prefix}pair {made.code}")
    print_text(f"Good until {local_time(made.expires_at)}, for one user.")


@app.command(name="list")
def pair_list(
    *,
    account: Annotated[str | None, Parameter(help="Only those of one account: a name or an id.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show the conversations there are, and how each stands."""

    async def look(hub: Hub) -> list[Conversation]:
        async with hub.autocommit() as tx:
            whose = await resolve_account_id(tx, account) if account else None
            return await read_all_pages(
                lambda after: list_conversations(tx, account=whose, after=after, limit=PAGE_SIZE),
                lambda conversation: conversation.conversation_key,
            )

    every = with_hub(look, data_dir=data_dir, database_url=database_url)
    print_rows(every, COLUMNS, conversation_cells, empty="No conversations.", json=json)


@app.command(name="unpair")
def pair_unpair(
    key: ConversationKeyArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Disconnect a user. What they wrote and nobody answered is cancelled."""
    by = Actor(cli_actor())
    changed = with_transaction(lambda tx: unpair_conversation(tx, key, by), data_dir, database_url)
    print_conversation_state(changed, json=json)


@app.command(name="block")
def pair_block(
    key: ConversationKeyArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Take nothing more from a user, on any account's behalf. Only an operator can undo it."""
    by = Actor(cli_actor())
    changed = with_transaction(lambda tx: block_conversation(tx, key, by), data_dir, database_url)
    print_conversation_state(changed, json=json)


@app.command(name="unblock")
def pair_unblock(
    key: ConversationKeyArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Undo a block, an owner's too. Who was connected before is connected again."""
    by = Actor(cli_actor())
    changed = with_transaction(lambda tx: unblock_conversation(tx, key, by), data_dir, database_url)
    print_conversation_state(changed, json=json)


@app.command(name="approve")
def pair_approve(
    key: ConversationKeyArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Let in a user who has redeemed a code and waits for it."""

    async def do(hub: Hub) -> Conversation:
        async with hub.transaction() as tx:
            return await approve_pairing(tx, key, Actor(cli_actor()), hub.relay.metrics)

    print_conversation_state(with_hub(do, data_dir=data_dir, database_url=database_url), json=json)


@app.command(name="deny")
def pair_deny(
    key: ConversationKeyArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Send away a user who waits for approval."""
    by = Actor(cli_actor())
    changed = with_transaction(lambda tx: deny_pairing(tx, key, by), data_dir, database_url)
    print_conversation_state(changed, json=json)


def print_conversation_state(conversation: Conversation, *, json: bool) -> None:
    if json:
        print_json(asdict(conversation))
    else:
        print_text(f"{replace_unprintable(conversation.conversation_key)} is {conversation_state(conversation)}")


def conversation_state(conversation: Conversation) -> str:
    who = f" by the {conversation.blocked_by}" if conversation.blocked_by else ""
    return conversation.state.lower() + who


def conversation_cells(conversation: Conversation) -> tuple[object, ...]:
    return (
        conversation.conversation_key,
        conversation_state(conversation),
        conversation.account_id or "",
        local_time(conversation.paired_at),
        local_time(conversation.last_seen_at),
    )
