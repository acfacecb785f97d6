"""Own the server of a data folder, or visit the one another process owns."""

import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from pabal.core.errors import EmbeddedServerError
from pabal.db.embedded import folder, postmaster
from pabal.db.embedded.account import find_server_user
from pabal.db.embedded.binaries import ensure_runnable, find_binaries
from pabal.db.embedded.cluster import Cluster, choose_cluster, create_cluster, list_clusters, reset_passwords
from pabal.db.embedded.complaint import PORT_UNAVAILABLE_TEXT, SHARED_MEMORY_IN_USE_TEXT, extract_error
from pabal.db.embedded.endpoint import ServerAddress
from pabal.db.embedded.launch import START_TIMEOUT, ServerExited, launch_server
from pabal.db.embedded.means import ServerEnvironment
from pabal.db.embedded.postmaster import Postmaster


class EmbeddedServer:
    """A running server, and the right to stop it: whoever holds this owns the data folder."""

    def __init__(
        self,
        address: ServerAddress,
        pid: int,
        cluster: Cluster,
        lock: folder.DataDirLock,
        child: "subprocess.Popen[bytes] | None" = None,
    ) -> None:
        self.address = address
        self.pid = pid
        self.is_adopted = child is None
        self._cluster = cluster
        self._lock: folder.DataDirLock | None = lock
        self._child = child

    def is_alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return postmaster.is_server_of(self.pid, self._cluster.data_dir)

    def stop(self) -> None:
        """Shut the server down and give up the folder; again does nothing."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            postmaster.stop_process(self.pid, self.is_alive)
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
        folder.ensure_data_dir(home, who)
        lock = folder.lock_data_dir(home)
        try:
            means = ServerEnvironment(find_binaries(pg_bin), who, options or {})
            return start_or_adopt_server(choose_cluster(home, means), means, port, lock)
        except BaseException:
            lock.release()
            raise
    except OSError as error:
        raise folder.data_dir_error(home, error) from error


def attach_embedded_server(data_dir: Path) -> ServerAddress | None:
    """Find the running server of another process; None when there is none that is ready."""
    try:
        for cluster in list_clusters(data_dir.absolute()):
            found, passwords = postmaster.find_running_server(cluster.data_dir), cluster.read_passwords()
            if found is not None and found.is_ready and found.port is not None and passwords is not None:
                return ServerAddress.for_port(found.port, passwords)
    except OSError as error:
        raise folder.data_dir_error(data_dir, error) from error
    return None


def start_or_adopt_server(
    cluster: Cluster, environment: ServerEnvironment, port: int | None, lock: folder.DataDirLock
) -> EmbeddedServer:
    """Adopt what runs or start anew, again while a killed server's remains are still leaving."""
    folder.remove_temporary_files(cluster.data_root)
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        orphan = wait_for_stable_server(cluster, deadline)
        if orphan is not None and (server := adopt_server(cluster, orphan, port, lock)) is not None:
            return server
        postmaster.clear_stale_pid_file(cluster.data_dir)
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
            if time.monotonic() > deadline or not (passing or postmaster.find_running_server(cluster.data_dir)):
                why = extract_error(died.output)
                raise EmbeddedServerError(f"PostgreSQL would not start in {cluster.data_dir}: {why}") from died
            time.sleep(10 * postmaster.STATUS_POLL_SECONDS)
        else:
            return EmbeddedServer(ServerAddress.for_port(up.port, passwords), up.child.pid, cluster, lock, up.child)


def wait_for_stable_server(cluster: Cluster, deadline: float) -> Postmaster | None:
    """Wait until a server found running is ready, or gone if it was on its way out."""
    while (found := postmaster.find_running_server(cluster.data_dir)) is not None and not found.is_ready:
        if found.status == "stopping":  # perhaps politely, for as long as somebody is connected
            stop_orphan_server(cluster, found)
            continue
        if time.monotonic() > deadline:
            raise EmbeddedServerError(
                f"the server of {cluster.data_dir} (pid {found.pid}) stays {found.status}: end it by hand"
            )
        time.sleep(postmaster.STATUS_POLL_SECONDS)
    return found


def adopt_server(
    cluster: Cluster, orphan: Postmaster, port: int | None, lock: folder.DataDirLock
) -> EmbeddedServer | None:
    """Take over the server a killed owner left; one that cannot serve us is stopped."""
    passwords = cluster.read_passwords()
    if passwords is not None and orphan.port is not None and port in (None, orphan.port):
        return EmbeddedServer(ServerAddress.for_port(orphan.port, passwords), orphan.pid, cluster, lock)
    stop_orphan_server(cluster, orphan)
    return None


def stop_orphan_server(cluster: Cluster, orphan: Postmaster) -> None:
    postmaster.stop_process(orphan.pid, lambda: postmaster.is_server_of(orphan.pid, cluster.data_dir))
