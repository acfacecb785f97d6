"""The `pabal` command as its users run it: a process of its own."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.clusters import roomy

PABAL = Path(sys.executable).with_name("pabal")
PATIENCE = 60.0


def environment(**said: str) -> dict[str, str]:
    """Ours, without what it says about Pabal, and as users have it: what was compiled once is kept."""
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    bare = {name: value for name, value in ours.items() if not name.startswith("PABAL_")}
    return bare | {"PABAL_LOG_FORMAT": "json"} | said


def pabal(*words: str, folder: Path, code: int = 0, feed: str = "", **said: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end in `folder`, which is its working folder and holds its data."""
    done = subprocess.run(
        [PABAL, *words],
        check=False,
        capture_output=True,
        text=True,
        input=feed,
        cwd=folder,
        env=environment(PABAL_DATA_DIR=str(folder / "data"), **said),
        timeout=PATIENCE,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def listing(*words: str, folder: Path, code: int = 0, **said: str) -> Any:
    """Run a command with --json: its output is one document and nothing else."""
    return json.loads(pabal(*words, "--json", folder=folder, code=code, **said).stdout)


class Running:
    """`pabal up` or `serve`, from the moment it has said where it is."""

    def __init__(self, folder: Path, command: str, **said: str) -> None:
        self.log = folder / "log"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [PABAL, command],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env=environment(PABAL_DATA_DIR=str(folder / "data"), **{"PABAL_PORT": "0"} | said),
            )
        assert self.process.stdout
        greeting = self.process.stdout.readline()
        assert greeting.startswith("Pabal is at "), greeting + self.log.read_text()
        self.address = greeting.removeprefix("Pabal is at ").strip()
        self.how = self.process.stdout.readline().strip()
        made = re.search(r"with the password (\S+) +\(shown this once\)", self.how)
        self.password = made[1] if made else None

    def end(self, by: signal.Signals = signal.SIGINT) -> float:
        """Send the signal; how many seconds it took until the process was gone."""
        started = time.monotonic()
        self.process.send_signal(by)
        self.process.wait(PATIENCE)
        return time.monotonic() - started


@contextmanager
def running(folder: Path, command: str = "up", **said: str) -> Generator[Running]:
    hub = Running(folder, command, **said)
    try:
        yield hub
    finally:
        if hub.process.poll() is None:
            hub.end(signal.SIGTERM)
        assert hub.process.stdout
        hub.process.stdout.close()


@contextmanager
def fresh_folder() -> Generator[Path]:
    """A folder an unprivileged server may walk through; whatever still serves from it at the end is stopped."""
    folder = Path(tempfile.mkdtemp(prefix="pabal-cli-", dir=roomy()))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        for pid in servers(folder):
            os.kill(pid, signal.SIGQUIT)
        shutil.rmtree(folder, ignore_errors=True)


def servers(folder: Path) -> list[int]:
    """Who still runs on this folder: the postmaster's own file says its pid."""
    pids = [int(file.read_text().split("\n")[0]) for file in folder.glob("data/*/postmaster.pid")]
    pids += [int(file.read_text().split("\n")[0]) for file in folder.glob("data/*/*/postmaster.pid")]
    return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists() and b"postgres" in cmdline(pid)]


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def leftovers(folder: Path) -> list[bytes]:
    """Every process that names the folder in its arguments."""
    everybody = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return [line for pid in everybody if bytes(folder) in (line := cmdline(pid))]
