"""`pabal db url|shell`: the database of the running hub."""

import os
import shutil
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import cyclopts

from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.cli.output import print_json, print_text
from pabal.cli.target import running_target
from pabal.core.errors import SetupError
from pabal.settings import load_settings

app = cyclopts.App(name="db", help="Reach the database of the running hub.")


@app.command(name="url")
def db_url(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Print the connection address, password included."""
    roads = running_target(load_settings(data_dir=data_dir, database_url=database_url)).urls
    if json:
        print_json({"url": roads.main, "direct_url": roads.direct or roads.main})
    else:
        print_text(roads.main)


@app.command(name="shell")
def db_shell(*, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Open psql on it."""
    roads = running_target(load_settings(data_dir=data_dir, database_url=database_url)).urls
    psql = shutil.which("psql")
    if psql is None:
        raise SetupError("psql is not installed; `pabal db url` gives the address for any other client")
    address, password = split_password(roads.main)
    known = {} if password is None else {"PGPASSWORD": password}
    os.execve(psql, [psql, address], os.environ | known)  # noqa: S606 it becomes psql


def split_password(url: str) -> tuple[str, str | None]:
    """Take the password out of an address: arguments are read by everybody's `ps`."""
    where = urlsplit(url)
    who, at, place = where.netloc.rpartition("@")
    asked = parse_qsl(where.query, keep_blank_values=True)
    others = urlencode([(name, value) for name, value in asked if name != "password"])
    plain = where._replace(netloc=who.partition(":")[0] + at + place, query=others).geturl()
    password = where.password if where.password is None else unquote(where.password)
    return plain, password or dict(asked).get("password")
