"""Bring a server up and wait until it answers."""

import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from pabal.core.errors import EmbeddedServerError
from pabal.db.embedded import folder, postmaster
from pabal.db.embedded.cluster import Cluster
from pabal.db.embedded.complaint import DISK_FULL_TEXT, ERROR_LINE
from pabal.db.embedded.endpoint import LOOPBACK_HOST
from pabal.db.embedded.means import ServerEnvironment

START_TIMEOUT = 120.0  # recovering a gigabyte of log after a power cut takes its time
SERVER_LOG_FILE = "postgres.log"
MAX_LOG_BYTES = 10 * 1024 * 1024
LOG_TAIL_BYTES = 64 * 1024
MIN_FREE_DISK_BYTES = 16 * 1024 * 1024  # one segment of the write-ahead log


class ServerExited(Exception):
    """The server ended before it was ready; what it printed tells whether trying again helps."""

    def __init__(self, output: str) -> None:
        self.output = output
        super().__init__(output)


@dataclass(frozen=True, slots=True)
class LaunchedServer:
    """A server that answers on its port, and the child process it is."""

    child: "subprocess.Popen[bytes]"
    port: int


def launch_server(cluster: Cluster, environment: ServerEnvironment, requested_port: int | None) -> LaunchedServer:
    port = choose_port(cluster.data_root, requested_port)
    words = environment.command_line_arguments(
        cluster.data_dir, listen_addresses=LOOPBACK_HOST, port=str(port), unix_socket_directories=""
    )
    log = open_server_log(cluster.data_root)
    with os.fdopen(log, "ab") as output:
        before = output.tell()
        child = environment.user.spawn((environment.binaries.postgres, *words), output)
    try:
        wait_until_ready(child, cluster, before)
        if requested_port is None:
            folder.write_file_atomically(cluster.data_root / "postgres.port", str(port))
    except BaseException:
        postmaster.stop_process(child.pid, lambda: child.poll() is None)
        raise
    return LaunchedServer(child, port)


def wait_until_ready(child: "subprocess.Popen[bytes]", cluster: Cluster, log_offset: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while child.poll() is None:
        said = postmaster.read_pid_file(cluster.data_dir)
        if said is not None and said.pid == child.pid and said.is_ready:
            return
        if time.monotonic() > deadline:
            raise EmbeddedServerError(
                f"the server was not ready after {START_TIMEOUT:.0f} s; see {cluster.data_root / SERVER_LOG_FILE}"
            )
        time.sleep(postmaster.STATUS_POLL_SECONDS)
    output = read_log_since(cluster.data_root / SERVER_LOG_FILE, log_offset)
    if not ERROR_LINE.search(output) and is_disk_full(cluster.data_root):
        output = DISK_FULL_TEXT  # the reason did not fit on the disk either
    raise ServerExited(output)


def choose_port(data_root: Path, requested_port: int | None) -> int:
    """Take the port asked for, or the last one again so that addresses people noted stay true, or any free one."""
    if requested_port is not None:
        if not is_port_free(requested_port):
            raise EmbeddedServerError(f"port {requested_port} on {LOOPBACK_HOST} is taken")
        return requested_port
    try:
        last = int((data_root / "postgres.port").read_text())
    except (FileNotFoundError, ValueError):
        last = 0
    if last and is_port_free(last):
        return last
    with socket.socket() as probe:
        probe.bind((LOOPBACK_HOST, 0))
        return probe.getsockname()[1]


def is_port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as PostgreSQL does
        try:
            probe.bind((LOOPBACK_HOST, port))
        except PermissionError:
            return True  # not ours to try, perhaps the server's
        except OSError:
            return False
    return True


def open_server_log(data_root: Path) -> int:
    path = data_root / SERVER_LOG_FILE
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    if os.fstat(log).st_size > MAX_LOG_BYTES:
        os.ftruncate(log, 0)
    return log


def read_log_since(log: Path, offset: int) -> str:
    with log.open("rb") as file:
        file.seek(max(offset, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
        return file.read().decode(errors="replace")


def is_disk_full(data_root: Path) -> bool:
    disk = os.statvfs(data_root)
    return disk.f_bavail * disk.f_frsize < MIN_FREE_DISK_BYTES
