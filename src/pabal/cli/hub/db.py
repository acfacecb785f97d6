"""`pabal db url|shell`."""

import os
import shutil

import cyclopts

from pabal.cli.database_settings import load_database_settings
from pabal.cli.examples import examples
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json
from pabal.cli.output import print_json, print_text
from pabal.cli.target import running_target
from pabal.core.database_url import split_password
from pabal.core.errors import SetupError

app = cyclopts.App(
    name="db",
    help="Connect to the hub's database.\n\nThe hub must be running, or PABAL_DATABASE_URL be set.",
    help_epilogue=examples("db shell", "db url"),
)


@app.command(name="url", help_epilogue=examples("db url", "db url --json"))
def db_url(*, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """Print the database URL, including the password."""
    target = running_target(load_database_settings(connection))
    if json:
        print_json({"url": target.urls.main, "direct_url": target.direct_url})
    else:
        print_text(target.urls.main)


@app.command(name="shell", help_epilogue=examples("db shell", "db shell --data-dir ./data"))
def db_shell(*, connection: Connection = DEFAULT_CONNECTION) -> None:
    """Open psql on the database."""
    target = running_target(load_database_settings(connection))
    psql = shutil.which("psql")
    if psql is None:
        raise SetupError("psql is not installed; use another client with the address from `pabal db url`")
    url, password = split_password(target.urls.main)
    variables = {} if password is None else {"PGPASSWORD": password}
    os.execve(psql, [psql, url], os.environ | variables)  # noqa: S606 this process becomes psql
