"""How a command comes to a database: the external one it was told of, the running embedded one, or one it starts."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from pabal.core.errors import SetupError
from pabal.db import embedded
from pabal.db.embedded.cluster import list_clusters
from pabal.hub import DatabaseUrls
from pabal.settings import Settings


@dataclass(slots=True)
class DatabaseTarget:
    """The roads, and the embedded server if it is ours to keep alive."""

    urls: DatabaseUrls
    login: str | None
    server: embedded.EmbeddedServer | None = None


def external_target(settings: Settings) -> DatabaseTarget | None:
    if settings.database_url is None:
        return None
    direct = settings.database_direct_url
    url = settings.database_url.get_secret_value()
    return DatabaseTarget(DatabaseUrls(url, direct.get_secret_value() if direct else None), login_from_url(url))


def embedded_target(endpoint: embedded.ServerAddress) -> DatabaseTarget:
    return DatabaseTarget(DatabaseUrls(endpoint.hub_url, endpoint.owner_url), login_from_url(endpoint.hub_url))


def running_target(settings: Settings) -> DatabaseTarget:
    """The database of the hub that runs now."""
    if found := external_target(settings):
        return found
    endpoint = embedded.attach_embedded_server(settings.data_dir)
    if endpoint is None:
        raise SetupError(
            f"no hub is running on {settings.data_dir}: start one with `pabal up`, or set PABAL_DATABASE_URL"
        )
    return embedded_target(endpoint)


@contextmanager
def start_target(settings: Settings) -> Generator[DatabaseTarget]:
    """The external database, or an embedded one that lives as long as this."""
    if found := external_target(settings):
        yield found
        return
    ground = start_embedded_target(settings)
    try:
        yield ground
    finally:
        if ground.server:
            ground.server.stop()


def require_data_dir(settings: Settings) -> None:
    """Insist that there is a database already: only to be told that it is empty, nobody needs a new one."""
    home = settings.data_dir.absolute()
    hidden = os.access(home, os.F_OK) and not os.access(home, os.R_OK)  # whoever would open it says why it cannot
    if settings.database_url is None and not hidden and not list_clusters(home):
        raise SetupError(
            f"no hub has run on {settings.data_dir} yet: start one with `pabal up`, or set PABAL_DATABASE_URL"
        )


@contextmanager
def attach_or_start_target(settings: Settings) -> Generator[DatabaseTarget]:
    """Whichever there is: external, running, or started for this one command."""
    endpoint = None if settings.database_url else embedded.attach_embedded_server(settings.data_dir)
    if endpoint is not None:
        yield embedded_target(endpoint)
        return
    with start_target(settings) as ground:
        yield ground


def start_embedded_target(settings: Settings) -> DatabaseTarget:
    server = embedded.start_embedded_server(settings.data_dir, pg_bin=settings.pg_bin)
    ground = embedded_target(server.address)
    ground.server = server
    return ground


def login_from_url(url: str) -> str | None:
    name = urlsplit(url).username
    return unquote(name) if name else None
