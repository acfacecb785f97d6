"""Start the server of a data directory, or attach to the one that another process owns."""

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
from pabal.db.embedded.os_user import SERVER_USERS, OsUser, find_server_user
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
from pabal.db.embedded.takeover import can_take_over, take_over_data_dir

START_TIMEOUT = 120.0  # recovery of a gigabyte of write-ahead log takes this long
SERVER_LOG_FILE = "postgres.log"
MAX_LOG_BYTES = 10 * 1024 * 1024
LOG_TAIL_BYTES = 64 * 1024
SHARED_USER_ADVICE = f"create the user with `useradd --system {SERVER_USERS[0]}`, or set PABAL_PG_USER"
MIN_FREE_DISK_BYTES = 16 * 1024 * 1024  # one segment of the write-ahead log


class ServerExited(Exception):
    """The server ended before it was ready. `output` shows whether to try again."""

    def __init__(self, output: str) -> None:
        self.output = output
        super().__init__(output)


@dataclass(frozen=True, slots=True)
class LaunchedServer:
    """A child process that is ready on its port."""

    child: "subprocess.Popen[bytes]"
    port: int


def launch_server(cluster: Cluster, environment: ServerEnvironment, requested_port: int | None) -> LaunchedServer:
    port = choose_port(cluster.data_root, requested_port)
    arguments = environment.command_line_arguments(
        cluster.data_dir, listen_addresses=LOOPBACK_HOST, port=str(port), unix_socket_directories=""
    )
    log = open_server_log(cluster.data_root)
    with os.fdopen(log, "ab") as output:
        log_offset = output.tell()
        child = environment.user.spawn((environment.binaries.postgres, *arguments), output)
    try:
        wait_until_ready(child, cluster, log_offset)
        if requested_port is None:
            write_file_atomically(cluster.data_root / "postgres.port", str(port))
    except BaseException:
        stop_process(child.pid, lambda: child.poll() is None)
        raise
    return LaunchedServer(child, port)


def wait_until_ready(child: "subprocess.Popen[bytes]", cluster: Cluster, log_offset: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while child.poll() is None:
        pid_file = read_pid_file(cluster.data_dir)
        if pid_file is not None and pid_file.pid == child.pid and pid_file.is_ready:
            return
        if time.monotonic() > deadline:
            raise EmbeddedServerError(
                f"the server is not ready after {START_TIMEOUT:.0f} s; see {cluster.data_root / SERVER_LOG_FILE}"
            )
        time.sleep(postmaster.STATUS_POLL_SECONDS)
    output = read_log_since(cluster.data_root / SERVER_LOG_FILE, log_offset)
    if not ERROR_LINE.search(output) and is_disk_full(cluster.data_root):
        output = DISK_FULL_TEXT  # the disk had no space for the error message either
    raise ServerExited(output)


def choose_port(data_root: Path, requested_port: int | None) -> int:
    """Use the requested port, else the last one, so that noted URLs stay valid, else any free port."""
    if requested_port is not None:
        if not is_port_free(requested_port):
            raise EmbeddedServerError(f"port {requested_port} on {LOOPBACK_HOST} is in use")
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
            return True  # this process may not bind it, but perhaps the server may
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
    """A running server and the lock of its data directory."""

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
        """Stop the server and release the data directory. Idempotent."""
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
    data_dir: Path,
    *,
    pg_bin: Path | None = None,
    options: Mapping[str, str] | None = None,
    port: int | None = None,
    user: OsUser | None = None,
) -> EmbeddedServer:
    """Run PostgreSQL on `data_dir`; creates the cluster if there is none.

    A server that outlived its killed owner is adopted. `options` are PostgreSQL settings. `user` is one that exists
    already, unless `ensure_server_user` has created it.
    """
    data_root = data_dir.absolute()
    try:
        user = user or find_server_user()
        if user.is_shared:
            warn_of_shared_user(user)
        ensure_data_dir(data_root, user)
        lock = lock_data_dir(data_root)
        try:
            environment = ServerEnvironment(find_binaries(pg_bin), user, options or {})
            cluster = choose_cluster(data_root, environment)
            take_over_cluster(cluster, user)
            return start_or_adopt_server(cluster, environment, port, lock)
        except BaseException:
            lock.release()
            raise
    except OSError as error:
        raise data_dir_error(data_root, error) from error


def warn_of_shared_user(user: OsUser) -> None:
    from pabal.core.log import get_logger  # a command on a running server does not need it

    get_logger().warning("embedded server runs as a shared user", user=user.name, advice=SHARED_USER_ADVICE)


def take_over_cluster(cluster: Cluster, user: OsUser) -> None:
    """Stop a server that still runs as `nobody` and give its data to `user`."""
    if not cluster.is_initialized or not can_take_over(cluster.data_dir.stat().st_uid, user):
        return
    orphan = find_running_server(cluster.data_dir)
    if orphan is not None:
        stop_orphan_server(cluster, orphan)
    take_over_data_dir(cluster.data_dir, user)


def attach_embedded_server(data_dir: Path) -> ServerAddress | None:
    """Find the running server of another process; None if there is none or it is not ready."""
    try:
        for cluster in list_clusters(data_dir.absolute()):
            running, passwords = find_running_server(cluster.data_dir), cluster.read_passwords()
            if running is not None and running.is_ready and running.port is not None and passwords is not None:
                return ServerAddress.for_port(running.port, passwords)
    except OSError as error:
        raise data_dir_error(data_dir, error) from error
    return None


def start_or_adopt_server(
    cluster: Cluster, environment: ServerEnvironment, port: int | None, lock: DataDirLock
) -> EmbeddedServer:
    """Adopt a running server or start one; tries again while processes of a killed server still end."""
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
            launched = launch_server(cluster, usable, port)
        except ServerExited as exited:
            # The port was taken after the check, a killed server still ends, or an orphan started first: try again.
            is_temporary = (
                PORT_UNAVAILABLE_TEXT in exited.output and port is None
            ) or SHARED_MEMORY_IN_USE_TEXT in exited.output
            if time.monotonic() > deadline or not (is_temporary or find_running_server(cluster.data_dir)):
                reason = extract_error(exited.output)
                raise EmbeddedServerError(f"PostgreSQL did not start in {cluster.data_dir}: {reason}") from exited
            time.sleep(10 * postmaster.STATUS_POLL_SECONDS)
        else:
            address = ServerAddress.for_port(launched.port, passwords)
            return EmbeddedServer(address, launched.child.pid, cluster, lock, launched.child)


def wait_for_stable_server(cluster: Cluster, deadline: float) -> Postmaster | None:
    """Wait until a running server is ready; one that is stopping is stopped."""
    while (running := find_running_server(cluster.data_dir)) is not None and not running.is_ready:
        if running.status == "stopping":  # a smart shutdown would wait for all clients to disconnect
            stop_orphan_server(cluster, running)
            continue
        if time.monotonic() > deadline:
            raise EmbeddedServerError(
                f"the server of {cluster.data_dir} (pid {running.pid}) is still {running.status}: stop it by hand"
            )
        time.sleep(postmaster.STATUS_POLL_SECONDS)
    return running


def adopt_server(cluster: Cluster, orphan: Postmaster, port: int | None, lock: DataDirLock) -> EmbeddedServer | None:
    """Take over the server of a killed owner. If its password or port does not fit, stop it."""
    passwords = cluster.read_passwords()
    if passwords is not None and orphan.port is not None and port in (None, orphan.port):
        return EmbeddedServer(ServerAddress.for_port(orphan.port, passwords), orphan.pid, cluster, lock)
    stop_orphan_server(cluster, orphan)
    return None


def stop_orphan_server(cluster: Cluster, orphan: Postmaster) -> None:
    stop_process(orphan.pid, lambda: is_server_of(orphan.pid, cluster.data_dir))
