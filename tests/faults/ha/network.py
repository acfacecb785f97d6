"""Three machines as network namespaces on one bridge. Needs root."""

import os
import signal
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SUBNET = "10.231.7"
BRIDGE = "pabal-ha"
OUTSIDE = f"{SUBNET}.254"
"""The address of this machine on the bridge: clients, HAProxy and the fake Kakao are here."""
STOP_TIMEOUT = 30.0


@dataclass(slots=True)
class Node:
    """A machine: a namespace with one link, and the processes that were started in it."""

    number: int
    folder: Path
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict[str, "subprocess.Popen[bytes]"])

    @property
    def name(self) -> str:
        return f"db{self.number}"

    @property
    def namespace(self) -> str:
        return f"{BRIDGE}-{self.number}"

    @property
    def address(self) -> str:
        return f"{SUBNET}.{self.number}"

    def start(
        self, name: str, *command: object, variables: Mapping[str, str], user: str | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a program in the namespace. Its output is appended to `NAME.log` in the node's folder."""
        switch = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--") if user else ()
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(word) for word in ("ip", "netns", "exec", self.namespace, *switch, *command)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=dict(variables),
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def pids(self) -> list[int]:
        """All processes in the namespace."""
        listing = subprocess.run(["ip", "netns", "pids", self.namespace], check=True, capture_output=True, text=True)
        return [int(pid) for pid in listing.stdout.split()]

    def send_signal(self, by: signal.Signals, *, spared: str) -> None:
        """Send a signal to all processes in the namespace, except one that was started by this name."""
        pids = self.pids()
        for pid in pids:
            if spared not in self.processes or pid != self.processes[spared].pid:
                try:
                    os.kill(pid, by)
                except ProcessLookupError:
                    continue
        if by is signal.SIGKILL:
            for name in [name for name in self.processes if name != spared]:
                self.processes.pop(name).wait(STOP_TIMEOUT)

    def read_log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def stop(self, name: str) -> None:
        """Stop a program, at once."""
        process = self.processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait(STOP_TIMEOUT)

    def set_link(self, state: str) -> None:
        """Set the link of the machine `up` or `down`. Connections are not closed, as if a cable was pulled."""
        run_ip("link", "set", f"{BRIDGE}-{self.number}", state)


def run_ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def open_network(folder: Path, count: int = 3) -> Generator[list[Node]]:
    """Create the namespaces. At the end, all of their processes are killed."""
    nodes = [Node(number, folder / f"db{number}") for number in range(1, count + 1)]
    remove_network(nodes)  # what a killed run left behind
    run_ip("link", "add", BRIDGE, "type", "bridge")
    try:
        run_ip("addr", "add", f"{OUTSIDE}/24", "dev", BRIDGE)
        run_ip("link", "set", BRIDGE, "up")
        for node in nodes:
            node.folder.mkdir()
            run_ip("netns", "add", node.namespace)
            run_ip("link", "add", f"{BRIDGE}-{node.number}", "type", "veth", "peer", "eth0", "netns", node.namespace)
            run_ip("link", "set", f"{BRIDGE}-{node.number}", "master", BRIDGE, "up")
            run_ip("-n", node.namespace, "addr", "add", f"{node.address}/24", "dev", "eth0")
            run_ip("-n", node.namespace, "link", "set", "eth0", "up")
            run_ip("-n", node.namespace, "link", "set", "lo", "up")
        yield nodes
    finally:
        remove_network(nodes)


def remove_network(nodes: list[Node]) -> None:
    for node in nodes:
        if Path(f"/run/netns/{node.namespace}").exists():
            node.send_signal(signal.SIGKILL, spared="")
            run_ip("netns", "del", node.namespace)
        if Path(f"/sys/class/net/{BRIDGE}-{node.number}").exists():  # closing connections keep the namespace
            run_ip("link", "del", f"{BRIDGE}-{node.number}")
    if Path(f"/sys/class/net/{BRIDGE}").exists():
        run_ip("link", "del", BRIDGE)
