"""Own the server of a data folder, or visit the one another process owns."""

import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from pabal.core.errors import EmbeddedFailed
from pabal.db.embedded import folder, postmaster
from pabal.db.embedded.account import account
from pabal.db.embedded.binaries import find, lend
from pabal.db.embedded.cluster import Cluster, choose, clusters, create, renew_passwords
from pabal.db.embedded.complaint import NO_PORT, STILL_DYING, complaint
from pabal.db.embedded.endpoint import Endpoint
from pabal.db.embedded.launch import PATIENCE, Died, launch
from pabal.db.embedded.means import Means
from pabal.db.embedded.postmaster import Postmaster


class Server:
    """A running server, and the right to stop it: whoever holds this owns the data folder."""

    def __init__(
        self,
        endpoint: Endpoint,
        pid: int,
        cluster: Cluster,
        lock: folder.Lock,
        child: "subprocess.Popen[bytes] | None" = None,
    ) -> None:
        self.endpoint = endpoint
        self.pid = pid
        self.adopted = child is None
        self._cluster = cluster
        self._lock: folder.Lock | None = lock
        self._child = child

    def alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return postmaster.serves(self.pid, self._cluster.data)

    def stop(self) -> None:
        """Shut the server down and give up the folder; again does nothing."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            postmaster.end(self.pid, self.alive)
        finally:
            lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(
    data_dir: Path, *, pg_bin: Path | None = None, options: Mapping[str, str] | None = None, port: int | None = None
) -> Server:
    """Run PostgreSQL on `data_dir`, making the data first where there is none.

    A server that outlived its killed owner is adopted, never doubled. `options` are settings of PostgreSQL's.
    """
    home = data_dir.absolute()
    try:
        who = account()
        folder.make(home, who)
        lock = folder.take(home)
        try:
            means = Means(find(pg_bin), who, options or {})
            return own(choose(home, means), means, port, lock)
        except BaseException:
            lock.release()
            raise
    except OSError as error:
        raise folder.refusal(home, error) from error


def attach(data_dir: Path) -> Endpoint | None:
    """Find the running server of another process; None when there is none that is ready."""
    try:
        for cluster in clusters(data_dir.absolute()):
            found, passwords = postmaster.running(cluster.data), cluster.passwords()
            if found is not None and found.ready and found.port is not None and passwords is not None:
                return Endpoint.at(found.port, passwords)
    except OSError as error:
        raise folder.refusal(data_dir, error) from error
    return None


def own(cluster: Cluster, means: Means, port: int | None, lock: folder.Lock) -> Server:
    """Adopt what runs or start anew, again while a killed server's remains are still leaving."""
    folder.sweep(cluster.home)
    deadline = time.monotonic() + PATIENCE
    while True:
        orphan = settled(cluster, deadline)
        if orphan is not None and (server := adopt(cluster, orphan, port, lock)) is not None:
            return server
        postmaster.clear(cluster.data)
        usable = replace(means, binaries=lend(means.binaries, means.account, cluster.home))
        passwords = cluster.passwords() if cluster.made else create(cluster, usable)
        if passwords is None:
            passwords = renew_passwords(cluster, usable)
        try:
            up = launch(cluster, usable, port)
        except Died as died:
            # Freed between looking and binding, still leaving, or a racing orphan was first: all pass.
            passing = (NO_PORT in died.output and port is None) or STILL_DYING in died.output
            if time.monotonic() > deadline or not (passing or postmaster.running(cluster.data)):
                why = complaint(died.output)
                raise EmbeddedFailed(f"PostgreSQL would not start in {cluster.data}: {why}") from died
            time.sleep(10 * postmaster.PAUSE)
        else:
            return Server(Endpoint.at(up.port, passwords), up.child.pid, cluster, lock, up.child)


def settled(cluster: Cluster, deadline: float) -> Postmaster | None:
    """Wait until a server found running is ready, or gone if it was on its way out."""
    while (found := postmaster.running(cluster.data)) is not None and not found.ready:
        if found.status == "stopping":  # perhaps politely, for as long as somebody is connected
            dismiss(cluster, found)
            continue
        if time.monotonic() > deadline:
            raise EmbeddedFailed(f"the server of {cluster.data} (pid {found.pid}) stays {found.status}: end it by hand")
        time.sleep(postmaster.PAUSE)
    return found


def adopt(cluster: Cluster, orphan: Postmaster, port: int | None, lock: folder.Lock) -> Server | None:
    """Take over the server a killed owner left; one that cannot serve us is stopped."""
    passwords = cluster.passwords()
    if passwords is not None and orphan.port is not None and port in (None, orphan.port):
        return Server(Endpoint.at(orphan.port, passwords), orphan.pid, cluster, lock)
    dismiss(cluster, orphan)
    return None


def dismiss(cluster: Cluster, orphan: Postmaster) -> None:
    postmaster.end(orphan.pid, lambda: postmaster.serves(orphan.pid, cluster.data))
