"""Bring a server up and wait until it answers."""

import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from pabal.core.errors import EmbeddedFailed
from pabal.db.embedded import folder, postmaster
from pabal.db.embedded.cluster import Cluster
from pabal.db.embedded.complaint import BLAME, FULL
from pabal.db.embedded.endpoint import HOST
from pabal.db.embedded.means import Means

PATIENCE = 120.0  # recovering a gigabyte of log after a power cut takes its time
LOG = "postgres.log"
LOG_LIMIT = 10 * 1024 * 1024
TAIL = 64 * 1024
SCARCE = 16 * 1024 * 1024  # one segment of the write-ahead log


class Died(Exception):
    """The server ended before it was ready; what it printed tells whether trying again helps."""

    def __init__(self, output: str) -> None:
        self.output = output
        super().__init__(output)


@dataclass(frozen=True, slots=True)
class Launched:
    """A server that answers on its port, and the child process it is."""

    child: "subprocess.Popen[bytes]"
    port: int


def launch(cluster: Cluster, means: Means, asked: int | None) -> Launched:
    port = pick(cluster.home, asked)
    words = means.words(cluster.data, listen_addresses=HOST, port=str(port), unix_socket_directories="")
    log = open_log(cluster.home)
    with os.fdopen(log, "ab") as output:
        before = output.tell()
        child = means.account.spawn((means.binaries.postgres, *words), output)
    try:
        await_ready(child, cluster, before)
        if asked is None:
            folder.write(cluster.home / "postgres.port", str(port))
    except BaseException:
        postmaster.end(child.pid, lambda: child.poll() is None)
        raise
    return Launched(child, port)


def await_ready(child: "subprocess.Popen[bytes]", cluster: Cluster, before: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while child.poll() is None:
        said = postmaster.read(cluster.data)
        if said is not None and said.pid == child.pid and said.ready:
            return
        if time.monotonic() > deadline:
            raise EmbeddedFailed(f"the server was not ready after {PATIENCE:.0f} s; see {cluster.home / LOG}")
        time.sleep(postmaster.PAUSE)
    output = said_since(cluster.home / LOG, before)
    if not BLAME.search(output) and starved(cluster.home):
        output = FULL  # the reason did not fit on the disk either
    raise Died(output)


def pick(home: Path, asked: int | None) -> int:
    """Take the port asked for, or the last one again so that addresses people noted stay true, or any free one."""
    if asked is not None:
        if not free(asked):
            raise EmbeddedFailed(f"port {asked} on {HOST} is taken")
        return asked
    try:
        last = int((home / "postgres.port").read_text())
    except (FileNotFoundError, ValueError):
        last = 0
    if last and free(last):
        return last
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as PostgreSQL does
        try:
            probe.bind((HOST, port))
        except PermissionError:
            return True  # not ours to try, perhaps the server's
        except OSError:
            return False
    return True


def open_log(home: Path) -> int:
    path = home / LOG
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    if os.fstat(log).st_size > LOG_LIMIT:
        os.ftruncate(log, 0)
    return log


def said_since(log: Path, before: int) -> str:
    with log.open("rb") as file:
        file.seek(max(before, file.seek(0, os.SEEK_END) - TAIL))
        return file.read().decode(errors="replace")


def starved(home: Path) -> bool:
    disk = os.statvfs(home)
    return disk.f_bavail * disk.f_frsize < SCARCE
