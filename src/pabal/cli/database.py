"""`pabal db url|shell`: the database of the running hub."""

import os
import shutil
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import cyclopts

from pabal.cli import screen
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.cli.roads import running
from pabal.core.errors import Failed
from pabal.settings import read

app = cyclopts.App(name="db", help="Reach the database of the running hub.")


@app.command
def url(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Print the connection address, password included."""
    roads = running(read(data_dir=data_dir, database_url=database_url)).roads
    if json:
        screen.as_json({"url": roads.work, "direct_url": roads.direct or roads.work})
    else:
        screen.say(roads.work)


@app.command
def shell(*, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Open psql on it."""
    roads = running(read(data_dir=data_dir, database_url=database_url)).roads
    psql = shutil.which("psql")
    if psql is None:
        raise Failed("psql is not installed; `pabal db url` gives the address for any other client")
    address, password = without_password(roads.work)
    known = {} if password is None else {"PGPASSWORD": password}
    os.execve(psql, [psql, address], os.environ | known)  # noqa: S606 it becomes psql


def without_password(url: str) -> tuple[str, str | None]:
    """Take the password out of an address: arguments are read by everybody's `ps`."""
    where = urlsplit(url)
    who, at, place = where.netloc.rpartition("@")
    asked = parse_qsl(where.query, keep_blank_values=True)
    others = urlencode([(name, value) for name, value in asked if name != "password"])
    plain = where._replace(netloc=who.partition(":")[0] + at + place, query=others).geturl()
    password = where.password if where.password is None else unquote(where.password)
    return plain, password or dict(asked).get("password")
