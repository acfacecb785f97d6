"""How a command comes to a database: the external one it was told of, the running embedded one, or one it starts."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from pabal.core.errors import Failed
from pabal.db import embedded
from pabal.db.embedded.cluster import clusters
from pabal.settings import Settings
from pabal.wiring import Roads


@dataclass(slots=True)
class Ground:
    """The roads, and the embedded server if it is ours to keep alive."""

    roads: Roads
    login: str | None
    server: embedded.Server | None = None


def external(settings: Settings) -> Ground | None:
    if settings.database_url is None:
        return None
    direct = settings.database_direct_url
    url = settings.database_url.get_secret_value()
    return Ground(Roads(url, direct.get_secret_value() if direct else None), login_of(url))


def inside(endpoint: embedded.Endpoint) -> Ground:
    return Ground(Roads(endpoint.hub_url, endpoint.owner_url), login_of(endpoint.hub_url))


def running(settings: Settings) -> Ground:
    """The database of the hub that runs now."""
    if found := external(settings):
        return found
    endpoint = embedded.attach(settings.data_dir)
    if endpoint is None:
        raise Failed(f"no hub is running on {settings.data_dir}: start one with `pabal up`, or set PABAL_DATABASE_URL")
    return inside(endpoint)


@contextmanager
def started(settings: Settings) -> Generator[Ground]:
    """The external database, or an embedded one that lives as long as this."""
    if found := external(settings):
        yield found
        return
    ground = inside_server(settings)
    try:
        yield ground
    finally:
        if ground.server:
            ground.server.stop()


def begun(settings: Settings) -> None:
    """Insist that there is a database already: only to be told that it is empty, nobody needs a new one."""
    home = settings.data_dir.absolute()
    hidden = os.access(home, os.F_OK) and not os.access(home, os.R_OK)  # whoever would open it says why it cannot
    if settings.database_url is None and not hidden and not clusters(home):
        raise Failed(f"no hub has run on {settings.data_dir} yet: start one with `pabal up`, or set PABAL_DATABASE_URL")


@contextmanager
def at_hand(settings: Settings) -> Generator[Ground]:
    """Whichever there is: external, running, or started for this one command."""
    endpoint = None if settings.database_url else embedded.attach(settings.data_dir)
    if endpoint is not None:
        yield inside(endpoint)
        return
    with started(settings) as ground:
        yield ground


def inside_server(settings: Settings) -> Ground:
    server = embedded.start(settings.data_dir, pg_bin=settings.pg_bin)
    ground = inside(server.endpoint)
    ground.server = server
    return ground


def login_of(url: str) -> str | None:
    name = urlsplit(url).username
    return unquote(name) if name else None
