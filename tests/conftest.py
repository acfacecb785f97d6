"""A real PostgreSQL for every test: one server per worker, and a migrated database per test."""

import gc
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from functools import cache
from itertools import count
from pathlib import Path

import asyncpg
import httpx2
import pytest
from hypothesis import settings as hypothesis_settings

from pabal.db import embedded
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.outside.http import default_tls_context
from pabal.settings import Settings
from relay.people import RelayAccount
from support.clusters import Connection, open_connection
from support.databases import DatabasePool
from support.failed_events import EventQueue, open_event_queue
from support.images import memory_directory, shared_images
from support.inbox import Inbox, open_inbox
from support.migrated_server import FAST, TEMPLATE, copy_migrated_server
from support.relay_log import MessageLog, open_message_log
from support.revoked_account import create_paired_account
from support.server import serve_hub
from support.webhook import WEBHOOK_SECRET

NUMBER = count()
SERVER_FOLDERS = frozenset({"cli", "db", "demo", "flows", "promises", "schema"})
"""Folders whose tests start servers, or `pabal` itself, in processes of their own."""
SLOW_MARKERS = ("slow", "browser")
"""Markers of slow tests."""

hypothesis_settings.load_profile("ci")  # the same examples in every run, without deadlines


def pytest_configure(config: pytest.Config) -> None:
    """Keep images for the workers of this run, or for this process if it has none."""
    if not hasattr(config, "workerinput"):
        stack = ExitStack()
        stack.enter_context(shared_images())
        config.add_cleanup(stack.close)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test as `unit` or `db`, and run the files with slow tests first, so that no worker ends much later."""
    for item in items:
        item.add_marker("db" if needs_server(item) else "unit")
    long = {item.path for item in items if any(map(item.get_closest_marker, SLOW_MARKERS))}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish() -> None:
    """Let the garbage collector skip everything that is imported, as `pabal` does after its imports."""
    gc.collect()
    gc.freeze()


def needs_server(item: pytest.Item) -> bool:
    """Whether a test uses the PostgreSQL of the run, or starts a server or a hub of its own."""
    assert isinstance(item, pytest.Function)
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    return "postgres" in item.fixturenames or hasattr(item.module, "embedded") or folder in SERVER_FOLDERS


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session")
def postgres() -> Generator[embedded.ServerAddress]:
    """The server of this worker. Not durable: tests kill processes, not the machine."""
    folder = Path(tempfile.mkdtemp(prefix="pabal-tests-", dir=memory_directory()))
    folder.chmod(0o755)
    try:
        copy_migrated_server(folder)
        with embedded.start_embedded_server(folder, options=FAST) as server:
            yield server.address
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def template_database(postgres: embedded.ServerAddress) -> str:
    """The migrated database that is copied for every test."""
    return TEMPLATE


@pytest.fixture(scope="session")
def database_pool(postgres: embedded.ServerAddress, template_database: str) -> Generator[DatabasePool]:
    pool = DatabasePool(postgres, template_database)
    yield pool
    pool.close()


@pytest.fixture
def database_urls(database_pool: DatabasePool) -> Generator[DatabaseUrls]:
    """A migrated database without rows."""
    name = database_pool.acquire()
    yield database_pool.urls(name)
    database_pool.release(name)


@cache
def base_settings() -> Settings:
    """Parsing settings costs as much as two queries; each test gets a copy with a directory of its own."""
    return Settings(
        _env_file=None,  # pyright: ignore[reportCallIssue]
        admin_password="correct horse",  # pyright: ignore[reportArgumentType]
        webhook_secret=WEBHOOK_SECRET,
    )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return base_settings().model_copy(update={"data_dir": tmp_path})


@pytest.fixture
async def hub(database_urls: DatabaseUrls, settings: Settings) -> AsyncGenerator[Hub]:
    async with open_hub(settings, database_urls) as hub:
        yield hub


@pytest.fixture
async def web(hub: Hub) -> AsyncGenerator[httpx2.AsyncClient]:
    """A client of the hub's real web server, with a timeout for a busy machine."""
    async with (
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address, verify=default_tls_context(), timeout=30) as client,
    ):
        yield client


@pytest.fixture
async def owner(database_urls: DatabaseUrls) -> AsyncGenerator[Connection]:
    """A connection as the database's owner."""
    assert database_urls.direct
    async with open_connection(database_urls.direct) as conn:
        yield conn


@pytest.fixture
async def event_queue(hub: Hub, database_urls: DatabaseUrls) -> AsyncGenerator[EventQueue]:
    async with open_event_queue(hub, database_urls) as fixture:
        yield fixture


@pytest.fixture
async def inbox(hub: Hub, database_urls: DatabaseUrls) -> AsyncGenerator[Inbox]:
    async with open_inbox(hub, database_urls) as fixture:
        yield fixture


@pytest.fixture
async def paired_account(hub: Hub) -> RelayAccount:
    """An account that Mina is connected to."""
    return await create_paired_account(hub)


@pytest.fixture
async def message_log(database_urls: DatabaseUrls) -> AsyncGenerator[MessageLog]:
    async with open_message_log(database_urls) as fixture:
        yield fixture


@pytest.fixture
def travel(database_urls: DatabaseUrls) -> Callable[[timedelta], Awaitable[None]]:
    """Move the database's clock forward for all connections."""
    offset = timedelta()

    async def advance(by: timedelta) -> None:
        nonlocal offset
        offset += by
        seconds = offset.total_seconds()
        await execute(
            database_urls.direct or database_urls.main,
            "create or replace function pabal.now() returns timestamptz language sql stable parallel safe "
            f"return now() + make_interval(secs => {seconds})",
        )

    return advance


@pytest.fixture
async def stopped_clock(database_urls: DatabaseUrls) -> None:
    """Stop the database's clock, so that rate limits do not recover during a test. `travel` starts it again."""
    await execute(
        database_urls.direct or database_urls.main,
        "do $$ begin execute format('create or replace function pabal.now() returns timestamptz language sql stable "
        "parallel safe return timestamptz %L', now()); end $$",
    )


async def execute(url: str, statement: str) -> None:
    async with connection(url) as conn:
        await conn.execute(statement)


@asynccontextmanager
async def connection(url: str) -> AsyncGenerator["asyncpg.Connection[asyncpg.Record]"]:
    conn = await asyncpg.connect(url)
    try:
        yield conn
    finally:
        conn.terminate()
