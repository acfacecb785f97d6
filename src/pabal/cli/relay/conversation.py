"""`pabal conversation list|show|unpair|block|unblock|approve|deny|export|erase`."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import cyclopts
from cyclopts import Parameter

from pabal.cli.context import cli_actor, run_query, run_transaction, with_hub
from pabal.cli.examples import examples
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json, SkipConfirmation
from pabal.cli.output import (
    local_time,
    print_fields,
    print_json,
    print_rows,
    print_text,
    read_all_pages,
    replace_unprintable,
)
from pabal.cli.privacy import ExportFile, confirm_and_erase, write_export
from pabal.cli.relay.account import resolve_account_id
from pabal.cli.relay.text_cipher import host_cipher
from pabal.db.tx import Tx
from pabal.relay.conversations import (
    Conversation,
    approve_pairing,
    block_conversation,
    deny_pairing,
    list_conversations,
    lock_conversation,
    unblock_conversation,
    unpair_conversation,
)
from pabal.relay.privacy import (
    ConversationDataCounts,
    count_conversation_data,
    erase_conversation,
    export_conversation,
)

if TYPE_CHECKING:
    from pabal.hub import Hub

app = cyclopts.App(
    name="conversation",
    help="Manage conversations of the chat relay.\n\nA conversation is one chat user on one channel.",
    help_epilogue=examples("conversation list --account mina", "conversation block shop:user-7"),
)

ConversationArgument = Annotated[str, Parameter(name="KEY", help="The conversation: CHANNEL:USER.")]

PAGE_SIZE = 500
COLUMNS = ("conversation", "state", "account", "paired", "last seen")


@app.command(name="list", help_epilogue=examples("conversation list", "conversation list --account mina --json"))
def conversation_list(
    *,
    account: Annotated[str | None, Parameter(help="Only conversations of this account: a name or an id.")] = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """List conversations by key."""

    async def read(tx: Tx) -> list[Conversation]:
        account_id = await resolve_account_id(tx, account) if account else None
        return await read_all_pages(
            lambda after: list_conversations(tx, account=account_id, after=after, limit=PAGE_SIZE),
            lambda conversation: conversation.conversation_key,
        )

    print_rows(run_query(connection, read), COLUMNS, conversation_cells, empty="No conversations.", json=json)


@app.command(
    name="show", help_epilogue=examples("conversation show shop:user-7", "conversation show shop:user-7 --json")
)
def conversation_show(
    key: ConversationArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Show a conversation. For its messages, see `pabal message list --conversation`."""
    conversation = run_transaction(connection, lambda tx: lock_conversation(tx, key))
    if json:
        print_json(asdict(conversation))
        return
    print_fields(zip(COLUMNS, conversation_cells(conversation), strict=True))


@app.command(
    name="unpair", help_epilogue=examples("conversation unpair shop:user-7", "conversation unpair shop:user-7 --json")
)
def conversation_unpair(
    key: ConversationArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Unpair a user. Their unanswered messages are cancelled."""
    actor = cli_actor()
    change_conversation(connection, lambda tx: unpair_conversation(tx, key, actor), json=json)


@app.command(
    name="block", help_epilogue=examples("conversation block shop:user-7", "conversation block shop:user-7 --json")
)
def conversation_block(
    key: ConversationArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Block a user on every account. Only an operator can unblock them."""
    actor = cli_actor()
    change_conversation(connection, lambda tx: block_conversation(tx, key, actor), json=json)


@app.command(
    name="unblock",
    help_epilogue=examples("conversation unblock shop:user-7", "conversation unblock shop:user-7 --json"),
)
def conversation_unblock(
    key: ConversationArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Unblock a user, also one an account owner blocked. A former pairing is restored."""
    actor = cli_actor()
    change_conversation(connection, lambda tx: unblock_conversation(tx, key, actor), json=json)


@app.command(
    name="approve",
    help_epilogue=examples("conversation approve shop:user-7", "conversation approve shop:user-7 --json"),
)
def conversation_approve(
    key: ConversationArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Approve a user who redeemed a pairing code and waits for approval."""

    async def approve(hub: "Hub") -> Conversation:
        async with hub.transaction() as tx:
            return await approve_pairing(tx, key, cli_actor(), hub.relay.metrics)

    print_conversation_state(with_hub(connection, approve), json=json)


@app.command(
    name="deny", help_epilogue=examples("conversation deny shop:user-7", "conversation deny shop:user-7 --json")
)
def conversation_deny(
    key: ConversationArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Deny a user who waits for approval."""
    actor = cli_actor()
    change_conversation(connection, lambda tx: deny_pairing(tx, key, actor), json=json)


@app.command(
    name="export",
    help_epilogue=examples("conversation export shop:user-7", "conversation export shop:user-7 --to user-7.json"),
)
def conversation_export(
    key: ConversationArgument, /, *, to: ExportFile = None, connection: Connection = DEFAULT_CONNECTION
) -> None:
    """Export everything the hub stores about a conversation as one JSON document."""
    cipher = host_cipher(connection)
    document = run_transaction(connection, lambda tx: export_conversation(tx, key, cli_actor(), cipher))
    write_export(document, f"{len(document['messages'])} messages", to)


@app.command(
    name="erase",
    help_epilogue=examples("conversation erase shop:user-7", "conversation erase shop:user-7 --yes --json"),
)
def conversation_erase(
    key: ConversationArgument,
    /,
    *,
    yes: SkipConfirmation = False,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Erase everything the hub stores about a conversation. The user can pair again as a new user."""
    confirm_and_erase(
        connection,
        lambda tx: count_conversation_data(tx, key),
        lambda tx: erase_conversation(tx, key, cli_actor()),
        conversation_data_text,
        yes=yes,
        json=json,
    )


def change_conversation(connection: Connection, change: Callable[[Tx], Awaitable[Conversation]], *, json: bool) -> None:
    print_conversation_state(run_transaction(connection, change), json=json)


def print_conversation_state(conversation: Conversation, *, json: bool) -> None:
    if json:
        print_json(asdict(conversation))
    else:
        print_text(f"{replace_unprintable(conversation.conversation_key)} is {conversation_state(conversation)}")


def conversation_state(conversation: Conversation) -> str:
    blocker = f" by the {conversation.blocked_by}" if conversation.blocked_by else ""
    return conversation.state.lower() + blocker


def conversation_cells(conversation: Conversation) -> tuple[object, ...]:
    return (
        conversation.conversation_key,
        conversation_state(conversation),
        conversation.account_id or "",
        local_time(conversation.paired_at),
        local_time(conversation.last_seen_at),
    )


def conversation_data_text(counts: ConversationDataCounts) -> str:
    return (
        f"{counts.total} rows ({counts.messages} messages, {counts.replies} replies, {counts.events} events, "
        f"{counts.dead_letters} dead letters, {counts.others} others)"
    )
