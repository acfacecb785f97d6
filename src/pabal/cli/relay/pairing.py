"""`pabal pairing add`."""

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from pabal.cli.context import cli_actor, run_transaction
from pabal.cli.examples import examples
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json, UsageError, parse_duration_option
from pabal.cli.output import local_time, print_json, print_text
from pabal.cli.relay.account import AccountArgument, resolve_account_id
from pabal.core.duration import format_duration
from pabal.db.tx import Tx
from pabal.relay.pairing.codes import DEFAULT_CODE_LIFETIME, MAX_CODE_LIFETIME, PairingCode, create_pairing_code

app = cyclopts.App(
    name="pairing",
    help="Create pairing codes.\n\nA code connects one chat user to an account.",
    help_epilogue=examples("pairing add mina", "pairing add mina --expires 10m"),
)


@app.command(name="add", help_epilogue=examples("pairing add mina", "pairing add mina --expires 10m --json"))
def pairing_add(
    account_ref: AccountArgument,
    /,
    *,
    expires: Annotated[
        timedelta,
        Parameter(
            metavar="DURATION",
            converter=parse_duration_option,
            show_default=format_duration,
            help=f"Lifetime of the code, at most {format_duration(MAX_CODE_LIFETIME)}.",
        ),
    ] = DEFAULT_CODE_LIFETIME,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Create a pairing code. One user connects to the account by sending it in the chat."""
    if not timedelta() < expires <= MAX_CODE_LIFETIME:
        raise UsageError(f"--expires must be positive and at most {format_duration(MAX_CODE_LIFETIME)}")

    async def create(tx: Tx) -> PairingCode:
        account = await resolve_account_id(tx, account_ref)
        return await create_pairing_code(tx, account, cli_actor(), lifetime=expires)

    prefix = "" if json else load_command_prefix(connection)  # before the code exists: invalid settings end the command
    code = run_transaction(connection, create)
    if json:
        print_json(asdict(code))
        return
    print_text(f"{prefix}pair {code.code}")
    print_text(f"Valid until {local_time(code.expires_at)}, for one user.")


def load_command_prefix(connection: Connection) -> str:
    from pabal.settings import load_settings

    return load_settings(data_dir=connection.data_dir, database_url=connection.database_url).command_prefix
