"""`pabal address list|enable`."""

from typing import Annotated

import cyclopts
from cyclopts import Parameter

from pabal.cli.context import cli_actor, run_query, run_transaction
from pabal.cli.examples import examples
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json, Limit
from pabal.cli.output import local_time, print_json, print_rows, print_text
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.dispatch.addresses import UnhealthyAddress, list_unhealthy_addresses, unblock_address
from pabal.notifications.states import RecipientType

app = cyclopts.App(
    name="address",
    help="Manage blocked notification addresses.\n\nThey are Discord users and channels that refuse our messages.",
    help_epilogue=examples("address list", "address enable user_dm 80351110224678912"),
)

COLUMNS = ("channel", "recipient", "blocked since", "reason")


@app.command(name="list", help_epilogue=examples("address list", "address list --limit 10 --json"))
def address_list(*, limit: Limit = 50, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """List blocked addresses, most recent first."""
    addresses = run_query(connection, lambda tx: list_unhealthy_addresses(tx, limit))
    print_rows(addresses, COLUMNS, address_cells, empty="No blocked addresses.", json=json)


@app.command(
    name="enable",
    help_epilogue=examples(
        "address enable user_dm 80351110224678912", "address enable guild_audit_channel 41771983423143937 --json"
    ),
)
def address_enable(
    channel: Annotated[RecipientType, Parameter(name="CHANNEL", help="Kind of address.")],
    recipient: Annotated[str, Parameter(name="RECIPIENT", help="The blocked Discord user or channel.")],
    /,
    *,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Mark a blocked address as working. The next notification is sent to it again."""
    run_transaction(connection, lambda tx: unblock_address(tx, NotificationChannel(channel), recipient, cli_actor()))
    if json:
        print_json({"healed": {"recipient_type": channel, "recipient_id": recipient}})
    else:
        print_text(f"{channel} {recipient} enabled")


def address_cells(address: UnhealthyAddress) -> tuple[object, ...]:
    return address.recipient_type, address.recipient_id, local_time(address.unhealthy_since), address.reason
