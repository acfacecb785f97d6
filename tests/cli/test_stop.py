"""How a hub stops, and the socket that systemd keeps open for it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from pabal.cli.processes.listener import activated_listener
from pabal.core.errors import SetupError
from pabal.hub import DatabaseUrls
from support.pabal_process import PABAL, PROCESS_TIMEOUT, environment, run_hub
from support.wait import wait_until

pytestmark = pytest.mark.anyio

GET_HEALTH = b"GET /health HTTP/1.1\r\nhost: hub\r\nconnection: close\r\n\r\n"

ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.execve(sys.argv[2], sys.argv[2:], os.environ | {"LISTEN_PID": str(os.getpid())})
"""
"""Becomes a command whose file descriptor 3 is the given one."""


@pytest.fixture
def variables(database_urls: DatabaseUrls) -> dict[str, str]:
    return {"PABAL_DATABASE_URL": database_urls.direct or database_urls.main, "PABAL_ADMIN_PASSWORD": "correct horse"}


async def test_a_lame_duck_is_not_ready_but_serves_until_a_second_signal(
    folder: Path, variables: dict[str, str]
) -> None:
    with run_hub(folder, "serve", **variables, PABAL_LAME_DUCK="10m") as hub:
        assert httpx2.get(f"{hub.address}/readyz").status_code == 200
        hub.process.send_signal(signal.SIGTERM)
        await wait_until(lambda: httpx2.get(f"{hub.address}/readyz").status_code == 503)

        response = httpx2.get(f"{hub.address}/health")
        assert (response.status_code, response.headers["connection"]) == (200, "close")
        assert hub.process.poll() is None
        assert hub.end(signal.SIGTERM) < 3
    assert hub.process.returncode == 0


def start_activated(listener: socket.socket, folder: Path, variables: dict[str, str]) -> "subprocess.Popen[str]":
    """Start `pabal serve` as systemd does: the socket is file descriptor 3."""
    inherited = listener.fileno()
    env = environment(PABAL_DATA_DIR=str(folder / "data"), PABAL_PORT="1", LISTEN_FDS="1", **variables)
    command = [sys.executable, "-c", ACTIVATE, str(inherited), PABAL, "serve"]
    return subprocess.Popen(command, cwd=folder, env=env, pass_fds=(inherited,), stdout=subprocess.DEVNULL, text=True)


def test_requests_wait_in_the_socket_of_systemd_while_no_hub_runs(folder: Path, variables: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for _ in range(2):
            with socket.create_connection(listener.getsockname(), PROCESS_TIMEOUT) as client:
                client.sendall(GET_HEALTH)
                hub = start_activated(listener, folder, variables)
                try:
                    assert client.recv(12) == b"HTTP/1.1 200"
                finally:
                    hub.terminate()
                    assert hub.wait(PROCESS_TIMEOUT) == 0


def test_a_socket_of_another_process_is_not_taken() -> None:
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "hub", "HOME": "/"}

    assert activated_listener(environ, os.getpid()) is None
    assert environ == {"HOME": "/"}


def test_two_sockets_of_systemd_are_refused() -> None:
    with pytest.raises(SetupError, match="passes 2 sockets"):
        activated_listener({"LISTEN_PID": "7", "LISTEN_FDS": "2"}, 7)
