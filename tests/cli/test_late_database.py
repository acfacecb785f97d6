"""`serve`, `work` and `up` wait for a database that is away when they start."""

import asyncio
import signal
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from pabal.hub import DatabaseUrls
from support.pabal_process import PROCESS_TIMEOUT, environment, pabal, start_pabal
from support.tcp_gate import TcpGate, free_port
from support.wait import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def gate(database_urls: DatabaseUrls) -> AsyncGenerator[TcpGate]:
    made = TcpGate(database_urls.direct or database_urls.main)
    yield made
    await made.close()


@contextmanager
def running(command: str, port: int, url: str, folder: Path) -> Generator["subprocess.Popen[str]"]:
    """A command whose output goes to the file `log`."""
    port_name = "PABAL_WORK_PORT" if command == "work" else "PABAL_PORT"
    variables = {port_name: str(port), "PABAL_DATABASE_URL": url, "PABAL_ADMIN_PASSWORD": "correct horse"}
    env = environment(PABAL_DATA_DIR=str(folder / "data"), **variables)
    with (folder / "log").open("w") as log:
        process = start_pabal(command, folder=folder, stdout=log, stderr=log, env=env)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PROCESS_TIMEOUT)


async def wait_for_status(port: int, path: str, status: int) -> None:
    """Request the path until it has this status. The gate works meanwhile."""

    async def has_status() -> bool:
        try:
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as web:
                return (await web.get(path)).status_code == status
        except httpx2.TransportError:
            return False

    await wait_until(has_status, PROCESS_TIMEOUT)


@pytest.mark.parametrize("command", ["serve", "work", "up"])
async def test_a_command_waits_for_its_database_and_says_so_once(command: str, folder: Path, gate: TcpGate) -> None:
    port = free_port()
    with running(command, port, gate.url, folder) as process:
        await wait_for_status(port, "/healthz", 200)
        refused = httpx2.post(f"http://127.0.0.1:{port}/kakao/webhook", json={})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        await wait_for_status(port, "/readyz", 503)
        waiting = (folder / "log").read_text()
        assert waiting.count('"database unavailable"') == 1
        assert waiting.count("\n") == 1 + (command == "work"), "work prints its address"

        await gate.open()
        await wait_for_status(port, "/readyz", 200)

        assert '"database available again"' in (folder / "log").read_text()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, PROCESS_TIMEOUT) == 0


@pytest.mark.parametrize("command", ["serve", "up"])
async def test_a_command_that_waits_can_be_stopped(command: str, folder: Path, gate: TcpGate) -> None:
    port = free_port()
    with running(command, port, gate.url, folder) as process:
        await wait_for_status(port, "/healthz", 200)
        process.send_signal(signal.SIGTERM)

        process.wait(3)


async def test_a_refused_login_is_an_error_at_once(folder: Path, database_urls: DatabaseUrls) -> None:
    url = (database_urls.direct or database_urls.main).replace("://pabal:", "://pabal:wrong-")

    refused = pabal("serve", "--port", "0", folder=folder, code=1, PABAL_DATABASE_URL=url)

    [line] = refused.stderr.splitlines()
    assert "password authentication failed" in line
