"""Run `pabal` as its users do: commands to their end, and hubs in the background."""

import json
import os
import re
import resource
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

from support.images import memory_directory
from support.pabal_command import run_in_thread

PABAL = Path(sys.executable).with_name("pabal")
PROCESS_TIMEOUT = 60.0
NEEDS_PROCESS = frozenset({("up",), ("serve",), ("work",), ("demo",), ("db", "shell")})
"""Commands that handle signals or replace their process."""


SERVER_USER = {"PABAL_PG_USER": "daemon"} if os.geteuid() == 0 else {}
"""A user that every machine has: the tests create none."""


def environment(**variables: str) -> dict[str, str]:
    """The environment of this process without its PABAL_* variables. Bytecode is written, as on a user's machine."""
    outer = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    clean = {name: value for name, value in outer.items() if not name.startswith("PABAL_")}
    return clean | {"PABAL_LOG_FORMAT": "json"} | SERVER_USER | variables


def restore_interrupt() -> None:
    """Let Ctrl-C end the child also where the test run ignores it, as under `nohup`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start_pabal(*args: str, folder: Path, open_files: int | None = None, **options: Any) -> "subprocess.Popen[str]":
    """Start a command in a process of its own, in `folder`; with `open_files` as the hard limit of open files."""

    def prepare() -> None:
        restore_interrupt()
        if open_files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

    return subprocess.Popen([PABAL, *args], text=True, cwd=folder, preexec_fn=prepare, **options)  # noqa: PLW1509


def pabal(
    *args: str, folder: Path, code: int = 0, feed: str = "", **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end in `folder`, which is its working directory and holds its data."""
    if args[:1] in NEEDS_PROCESS or args[:2] in NEEDS_PROCESS:
        return pabal_process(*args, folder=folder, code=code, feed=feed, **variables)
    result = run_in_thread(args, folder, environment(PABAL_DATA_DIR=str(folder / "data"), **variables), feed)
    assert result.returncode == code, result.stdout + result.stderr
    return result


def pabal_process(
    *args: str, folder: Path, code: int = 0, feed: str = "", **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command as `pabal` does, in a process of its own."""
    result = subprocess.run(
        [PABAL, *args],
        check=False,
        capture_output=True,
        text=True,
        input=feed,
        cwd=folder,
        env=environment(PABAL_DATA_DIR=str(folder / "data"), **variables),
        timeout=PROCESS_TIMEOUT,
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result


def pabal_json(*args: str, folder: Path, code: int = 0, **variables: str) -> Any:
    """Run a command with --json: its output is one document and nothing else."""
    return json.loads(pabal(*args, "--json", folder=folder, code=code, **variables).stdout)


class RunningHub:
    """`pabal up` or `serve`, with options, from the moment it prints its address."""

    def __init__(self, folder: Path, command: str, open_files: int | None = None, /, **variables: str) -> None:
        self.log = folder / "log"
        with self.log.open("a") as log:
            self.process = start_pabal(
                *command.split(),
                folder=folder,
                open_files=open_files,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(PABAL_DATA_DIR=str(folder / "data"), **{"PABAL_PORT": "0"} | variables),
            )
        assert self.process.stdout
        greeting = self.process.stdout.readline()
        assert greeting.startswith("Pabal is at "), greeting + self.log.read_text()
        self.address = greeting.removeprefix("Pabal is at ").strip()
        self.how = self.process.stdout.readline().strip()
        generated = re.search(r"with the password (\S+) +\(shown only once\)", self.how)
        self.password = generated[1] if generated else None

    def end(self, by: signal.Signals = signal.SIGINT) -> float:
        """Send the signal and return the seconds until the process ended."""
        started = time.monotonic()
        self.process.send_signal(by)
        self.process.wait(PROCESS_TIMEOUT)
        return time.monotonic() - started


@contextmanager
def run_hub(
    folder: Path, command: str = "up", open_files: int | None = None, /, **variables: str
) -> Generator[RunningHub]:
    hub = RunningHub(folder, command, open_files, **variables)
    try:
        yield hub
    finally:
        if hub.process.poll() is None:
            hub.end(signal.SIGTERM)
        assert hub.process.stdout
        hub.process.stdout.close()


@contextmanager
def fresh_folder() -> Generator[Path]:
    """Yield a directory that an unprivileged server can enter. Servers that still run on it are stopped at the end."""
    folder = Path(tempfile.mkdtemp(prefix="pabal-cli-", dir=memory_directory()))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        for pid in server_pids(folder):
            os.kill(pid, signal.SIGQUIT)
        shutil.rmtree(folder, ignore_errors=True)


def server_pids(folder: Path) -> list[int]:
    """The pids of the database servers that run on this directory, from their pid files."""
    pids = [int(file.read_text().split("\n")[0]) for file in folder.glob("data/*/postmaster.pid")]
    pids += [int(file.read_text().split("\n")[0]) for file in folder.glob("data/*/*/postmaster.pid")]
    return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists() and b"postgres" in cmdline(pid)]


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def remaining_processes(folder: Path) -> list[bytes]:
    """The command lines of processes that name the directory."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return [line for pid in pids if bytes(folder) in (line := cmdline(pid))]
