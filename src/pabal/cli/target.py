"""Find the database of a command: the external one, the running embedded one, or one that the command starts."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from pabal.cli.database_settings import DatabaseSettings
from pabal.core.database_url import parse_database_url
from pabal.core.errors import SetupError
from pabal.db import embedded
from pabal.db.embedded.cluster import list_clusters
from pabal.db.urls import DatabaseUrls


@dataclass(slots=True)
class DatabaseTarget:
    """The database's addresses, the role the hub logs in as, and the embedded server if this process runs it."""

    urls: DatabaseUrls
    login: str | None
    server: embedded.EmbeddedServer | None = None

    @property
    def direct_url(self) -> str:
        """The address that bypasses any pooler."""
        return self.urls.direct or self.urls.main


def external_target(settings: DatabaseSettings) -> DatabaseTarget | None:
    if settings.database_url is None:
        return None
    urls = DatabaseUrls(settings.database_url, settings.database_direct_url)
    return DatabaseTarget(urls, login_from_url(urls.main))


def embedded_target(address: embedded.ServerAddress) -> DatabaseTarget:
    return DatabaseTarget(DatabaseUrls(address.hub_url, address.owner_url), login_from_url(address.hub_url))


def running_target(settings: DatabaseSettings) -> DatabaseTarget:
    """Return the external database, or the embedded one of the running hub."""
    if target := external_target(settings):
        return target
    address = embedded.attach_embedded_server(settings.data_dir)
    if address is None:
        raise SetupError(
            f"No hub is running on {settings.data_dir}. Start one with `pabal up`, or set PABAL_DATABASE_URL"
        )
    return embedded_target(address)


@contextmanager
def start_target(settings: DatabaseSettings) -> Generator[DatabaseTarget]:
    """Yield the external database, or start the embedded one and stop it at the end."""
    if external := external_target(settings):
        yield external
        return
    target = start_embedded_target(settings)
    try:
        yield target
    finally:
        if target.server:
            target.server.stop()


def require_data_dir(settings: DatabaseSettings) -> None:
    """Refuse to create an empty database for a command that only reads or changes an existing one."""
    folder = settings.data_dir.absolute()
    unreadable = os.access(folder, os.F_OK) and not os.access(folder, os.R_OK)  # opening it gives a better error
    if settings.database_url is None and not unreadable and not list_clusters(folder):
        raise SetupError(
            f"No hub has run on {settings.data_dir} yet. Start one with `pabal up`, or set PABAL_DATABASE_URL"
        )


@contextmanager
def attach_or_start_target(settings: DatabaseSettings) -> Generator[DatabaseTarget]:
    """Yield the external or the running embedded database; without either, start the embedded one meanwhile."""
    address = None if settings.database_url else embedded.attach_embedded_server(settings.data_dir)
    if address is not None:
        yield embedded_target(address)
        return
    with start_target(settings) as target:
        yield target


def start_embedded_target(settings: DatabaseSettings) -> DatabaseTarget:
    from pabal.core.log import configure_logging

    configure_logging(settings.log_level, settings.log_format)  # the start may log, and never to standard output
    user = embedded.ensure_server_user(settings.pg_user)
    server = embedded.start_embedded_server(settings.data_dir, pg_bin=settings.pg_bin, user=user)
    target = embedded_target(server.address)
    target.server = server
    return target


def login_from_url(url: str) -> str | None:
    return parse_database_url(url).login
