"""`pabal db url|shell`: the database of the running hub."""

import os
import shutil
from urllib.parse import urlsplit

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
    where = urlsplit(roads.work)
    plain = where._replace(netloc=f"{where.username}@{where.hostname}:{where.port or 5432}").geturl()
    os.execve(psql, [psql, plain], os.environ | {"PGPASSWORD": where.password or ""})  # noqa: S606 it becomes psql
