"""Start a hub: wait for its database, and answer probes meanwhile."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar, cast

from pabal.cli.output import print_text
from pabal.core.backoff import spread
from pabal.core.errors import Unavailable
from pabal.core.finding import FindingLevel
from pabal.core.log import get_logger
from pabal.core.outage import database_outage_log
from pabal.db.errors import is_configuration_error
from pabal.db.pool import Database
from pabal.db.urls import DatabaseUrls
from pabal.doctor.settings_checks import check_trusted_proxies, check_webhook_secret
from pabal.hub import Hub, open_hub
from pabal.operators.operators import ensure_first_operator
from pabal.settings import Settings
from pabal.web.waiting import waiting_server

log = get_logger()

RETRY_INTERVAL = 1.0
"""Seconds between two attempts to reach the database at the start."""

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class StartedHub:
    """A hub on its database, and the first operator's password if it was generated now."""

    hub: Hub
    password: str | None


async def retry_until_available(action: Callable[[], Awaitable[ResultT]], listener: socket.socket | None) -> ResultT:
    """Run the action until the database is available; answer on the socket meanwhile.

    A login that the server refuses or an invalid URL is an error at once: waiting does not help.
    """
    try:
        return await action()
    except Unavailable as error:
        if is_configuration_error(error):
            raise
        outage = database_outage_log()
        outage.record_failure(error)
    async with waiting_server(listener):
        while True:
            await asyncio.sleep(spread(RETRY_INTERVAL))
            try:
                result = await action()
            except Unavailable as error:
                if is_configuration_error(error):
                    raise
                outage.record_failure(error)
            else:
                outage.end()
                return result


@asynccontextmanager
async def start_hub(
    settings: Settings,
    urls: DatabaseUrls,
    prepare: Callable[[], Awaitable[object]],
    listener: socket.socket | None = None,
) -> AsyncGenerator[StartedHub]:
    """Prepare the schema and open the hub as soon as the database is available."""

    @asynccontextmanager
    async def open_once() -> AsyncGenerator[StartedHub]:
        await prepare()
        async with open_hub(settings, urls) as hub:
            yield StartedHub(hub, await first_admin_password(hub.db, settings))

    async with AsyncExitStack() as stack:
        yield await retry_until_available(lambda: stack.enter_async_context(open_once()), listener)


async def first_admin_password(db: Database, settings: Settings) -> str | None:
    """Create the first operator if there is none. Return the password if one was generated, to be shown once."""
    async with db.transaction() as tx:
        password = settings.admin_password
        return await ensure_first_operator(tx, password.get_secret_value() if password else None)


def greet(settings: Settings, listener: socket.socket, password: str | None) -> None:
    """Print the address and log what the doctor would warn about."""
    print_welcome(settings, listener, password)
    for finding in (check_webhook_secret(settings), check_trusted_proxies(settings)):
        if finding.level is not FindingLevel.GOOD:
            log.warning(finding.what, seen=str(finding.seen), advice=str(finding.advice))


def print_welcome(settings: Settings, listener: socket.socket, password: str | None) -> None:
    print_text(f"Pabal is at {socket_url(listener)}", "bold")
    if password:
        print_text(f"  sign in as admin with the password {password}   (shown only once)")
    elif settings.admin_password:
        print_text("  sign in as admin with PABAL_ADMIN_PASSWORD, if it was set at the first start")
    else:
        print_text("  sign in as admin with the password shown at the first start")
    if settings.webhook_secret:
        print_text(
            f"  Kakao's skill needs the header {settings.webhook_header}; `pabal settings --show` prints its value"
        )


def socket_url(listener: socket.socket) -> str:
    """The address of a listening socket, as a client on this computer uses it."""
    host, port = cast("tuple[str, int]", listener.getsockname()[:2])
    display_host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 shown, not bound
    return f"http://{display_host}:{port}"
