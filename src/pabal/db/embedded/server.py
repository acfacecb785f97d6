"""Own the server of a data folder, or visit the one another process owns."""

import os
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from pabal.core.errors import EmbeddedServerError
from pabal.db.embedded import postmaster
from pabal.db.embedded.binaries import ensure_runnable, find_binaries
from pabal.db.embedded.cluster import (
    LOOPBACK_HOST,
    Cluster,
    ServerAddress,
    choose_cluster,
    create_cluster,
    list_clusters,
    reset_passwords,
)
from pabal.db.embedded.data_dir import (
    DataDirLock,
    data_dir_error,
    ensure_data_dir,
    lock_data_dir,
    remove_temporary_files,
    write_file_atomically,
)
from pabal.db.embedded.environment import ServerEnvironment
from pabal.db.embedded.os_user import find_server_user
from pabal.db.embedded.postmaster import (
    DISK_FULL_TEXT,
    ERROR_LINE,
    PORT_UNAVAILABLE_TEXT,
    SHARED_MEMORY_IN_USE_TEXT,
    Postmaster,
    clear_stale_pid_file,
    extract_error,
    find_running_server,
    is_server_of,
    read_pid_file,
    stop_process,
)

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
            write_file_atomically(cluster.data_root / "postgres.port", str(port))
    except BaseException:
        stop_process(child.pid, lambda: child.poll() is None)
        raise
    return LaunchedServer(child, port)


def wait_until_ready(child: "subprocess.Popen[bytes]", cluster: Cluster, log_offset: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while child.poll() is None:
        said = read_pid_file(cluster.data_dir)
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


class EmbeddedServer:
    """A running server, and the right to stop it: whoever holds this owns the data folder."""

    def __init__(
        self,
        address: ServerAddress,
        pid: int,
        cluster: Cluster,
        lock: DataDirLock,
        child: "subprocess.Popen[bytes] | None" = None,
    ) -> None:
        self.address = address
        self.pid = pid
        self.is_adopted = child is None
        self._cluster = cluster
        self._lock: DataDirLock | None = lock
        self._child = child

    def is_alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return is_server_of(self.pid, self._cluster.data_dir)

    def stop(self) -> None:
        """Shut the server down and give up the folder; again does nothing."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            stop_process(self.pid, self.is_alive)
        finally:
            lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start_embedded_server(
    data_dir: Path, *, pg_bin: Path | None = None, options: Mapping[str, str] | None = None, port: int | None = None
) -> EmbeddedServer:
    """Run PostgreSQL on `data_dir`, making the data first where there is none.

    A server that outlived its killed owner is adopted, never doubled. `options` are settings of PostgreSQL's.
    """
    home = data_dir.absolute()
    try:
        who = find_server_user()
        ensure_data_dir(home, who)
        lock = lock_data_dir(home)
        try:
            means = ServerEnvironment(find_binaries(pg_bin), who, options or {})
            return start_or_adopt_server(choose_cluster(home, means), means, port, lock)
        except BaseException:
            lock.release()
            raise
    except OSError as error:
        raise data_dir_error(home, error) from error


def attach_embedded_server(data_dir: Path) -> ServerAddress | None:
    """Find the running server of another process; None when there is none that is ready."""
    try:
        for cluster in list_clusters(data_dir.absolute()):
            found, passwords = find_running_server(cluster.data_dir), cluster.read_passwords()
            if found is not None and found.is_ready and found.port is not None and passwords is not None:
                return ServerAddress.for_port(found.port, passwords)
    except OSError as error:
        raise data_dir_error(data_dir, error) from error
    return None


def start_or_adopt_server(
    cluster: Cluster, environment: ServerEnvironment, port: int | None, lock: DataDirLock
) -> EmbeddedServer:
    """Adopt what runs or start anew, again while a killed server's remains are still leaving."""
    remove_temporary_files(cluster.data_root)
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        orphan = wait_for_stable_server(cluster, deadline)
        if orphan is not None and (server := adopt_server(cluster, orphan, port, lock)) is not None:
            return server
        clear_stale_pid_file(cluster.data_dir)
        usable = replace(
            environment, binaries=ensure_runnable(environment.binaries, environment.user, cluster.data_root)
        )
        passwords = cluster.read_passwords() if cluster.is_initialized else create_cluster(cluster, usable)
        if passwords is None:
            passwords = reset_passwords(cluster, usable)
        try:
            up = launch_server(cluster, usable, port)
        except ServerExited as died:
            # Freed between looking and binding, still leaving, or a racing orphan was first: all pass.
            passing = (
                PORT_UNAVAILABLE_TEXT in died.output and port is None
            ) or SHARED_MEMORY_IN_USE_TEXT in died.output
            if time.monotonic() > deadline or not (passing or find_running_server(cluster.data_dir)):
                why = extract_error(died.output)
                raise EmbeddedServerError(f"PostgreSQL would not start in {cluster.data_dir}: {why}") from died
            time.sleep(10 * postmaster.STATUS_POLL_SECONDS)
        else:
            return EmbeddedServer(ServerAddress.for_port(up.port, passwords), up.child.pid, cluster, lock, up.child)


def wait_for_stable_server(cluster: Cluster, deadline: float) -> Postmaster | None:
    """Wait until a server found running is ready, or gone if it was on its way out."""
    while (found := find_running_server(cluster.data_dir)) is not None and not found.is_ready:
        if found.status == "stopping":  # perhaps politely, for as long as somebody is connected
            stop_orphan_server(cluster, found)
            continue
        if time.monotonic() > deadline:
            raise EmbeddedServerError(
                f"the server of {cluster.data_dir} (pid {found.pid}) stays {found.status}: end it by hand"
            )
        time.sleep(postmaster.STATUS_POLL_SECONDS)
    return found


def adopt_server(cluster: Cluster, orphan: Postmaster, port: int | None, lock: DataDirLock) -> EmbeddedServer | None:
    """Take over the server a killed owner left; one that cannot serve us is stopped."""
    passwords = cluster.read_passwords()
    if passwords is not None and orphan.port is not None and port in (None, orphan.port):
        return EmbeddedServer(ServerAddress.for_port(orphan.port, passwords), orphan.pid, cluster, lock)
    stop_orphan_server(cluster, orphan)
    return None


def stop_orphan_server(cluster: Cluster, orphan: Postmaster) -> None:
    stop_process(orphan.pid, lambda: is_server_of(orphan.pid, cluster.data_dir))
