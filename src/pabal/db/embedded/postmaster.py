"""The server's pid file: reading it, checking it against the running processes, and stopping the server."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pabal.core.errors import EmbeddedServerError

PID_FILE = "postmaster.pid"
PROC_DIR = Path("/proc")
MAX_PID = 2**31 - 1
STATUS_POLL_SECONDS = 0.01

StopSignals = Sequence[tuple[signal.Signals, float]]

# Fast shutdown, then immediate (the next start recovers), then kill; with the seconds to wait for each.
STOP_SIGNALS: StopSignals = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 8.0), (signal.SIGKILL, 2.0))

PostmasterStatus = Literal["starting", "stopping", "ready", "standby"]
POSTMASTER_STATUSES: tuple[PostmasterStatus, ...] = get_args(PostmasterStatus)


@dataclass(frozen=True, slots=True)
class Postmaster:
    """A server as described by its pid file."""

    pid: int
    port: int | None = None
    status: PostmasterStatus = "starting"

    @property
    def is_ready(self) -> bool:
        return self.status == "ready" and self.port is not None


def read_pid_file(data_dir: Path) -> Postmaster | None:
    """Read the pid file: pid, directory, start, port, socket, address, memory, status; one per line, added in steps."""
    try:
        lines = (data_dir / PID_FILE).read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    try:
        pid = abs(int(lines[0]))  # negative for a server in single-user mode
        port = int(lines[3]) if len(lines) > 3 else None  # noqa: PLR2004  # the line numbers are PostgreSQL's
    except (IndexError, ValueError):
        return None
    if not 0 < pid <= MAX_PID:
        return None
    status = lines[7].strip() if len(lines) > 7 else ""  # noqa: PLR2004
    return Postmaster(pid, port, status if status in POSTMASTER_STATUSES else "starting")


def find_running_server(data_dir: Path) -> Postmaster | None:
    """Return the server that runs on this directory, whichever process started it."""
    pid_file = read_pid_file(data_dir)
    return pid_file if pid_file is not None and is_server_of(pid_file.pid, data_dir) else None


def is_server_of(pid: int, data_dir: Path) -> bool:
    """Return whether the process is a server of this directory. The pid alone is not enough: it may be reused."""
    match read_command_line(pid):
        case [program, "-D", folder, *_] if Path(program).name == "postgres":
            try:
                return Path(folder).samefile(data_dir)
            except OSError:
                return False
        case _:
            return False


def read_command_line(pid: int) -> list[str]:
    """Read another process's command line. In a container, root can read it, but not the working directory."""
    if (PROC_DIR / "self").exists():
        try:
            return (PROC_DIR / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return []
    result = subprocess.run(  # noqa: S603  # a system without /proc
        ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    program, _, rest = result.stdout.strip().partition(" -D ")
    return [program, "-D", rest.partition(" -c ")[0]]  # the directory's name may contain spaces


def clear_stale_pid_file(data_dir: Path) -> None:
    """Make a dead server's pid file harmless. Call it only while holding the lock.

    PostgreSQL ignores a stale pid file unless its pid exists, as another process of the same user or as a zombie; then
    it refuses to start. PostgreSQL always ignores the pid of its parent, so that pid is written instead. The other
    lines stay: PostgreSQL uses them to detect surviving children of the dead server.
    """
    file = data_dir / PID_FILE
    pid_file = read_pid_file(data_dir)
    if pid_file is None:
        file.unlink(missing_ok=True)  # empty or damaged, for example by a power failure
    elif process_exists(pid_file.pid) and not is_server_of(pid_file.pid, data_dir):
        # The directory belongs to the server's user: root must not follow a symbolic link in it.
        with os.fdopen(os.open(file, os.O_RDWR | os.O_NOFOLLOW), "r+") as stale:
            rest = stale.read().partition("\n")[2]
            stale.seek(0)
            stale.truncate()
            stale.write(f"{os.getpid()}\n{rest}")


def process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # PermissionError: it exists
    return True


def stop_process(pid: int, is_running: Callable[[], bool], stop_signals: StopSignals = STOP_SIGNALS) -> None:
    """Stop a server with increasingly strong signals. `is_running` is checked first, so a reused pid gets none."""
    for stop_signal, limit in stop_signals:
        deadline = time.monotonic() + limit
        if is_running():
            with suppress(ProcessLookupError):
                os.kill(pid, stop_signal)
        while is_running():
            if time.monotonic() > deadline:
                break
            time.sleep(STATUS_POLL_SECONDS)
        else:
            return
    raise EmbeddedServerError(f"the server (pid {pid}) did not stop, not even after SIGKILL: its disk may hang")


DISK_FULL_TEXT = "No space left on device"
PORT_UNAVAILABLE_TEXT = "could not create any TCP/IP sockets"
SHARED_MEMORY_IN_USE_TEXT = "is still in use"  # by children of a killed server, until they notice

BIND_ERROR = re.compile(r"could not bind .*")
ERROR_LINE = re.compile(r"(?:FATAL|PANIC|ERROR|error|fatal):\s+(.*)")


def extract_error(output: str) -> str:
    """Return the line of the output that has the error.

    Only lines that PostgreSQL marks as errors are used: the statement it prints with them may contain a password.
    """
    if DISK_FULL_TEXT in output:
        return f"the disk is full ({DISK_FULL_TEXT})"
    if PORT_UNAVAILABLE_TEXT in output and (bind_error := BIND_ERROR.search(output)):
        return bind_error[0]
    errors = ERROR_LINE.findall(output)
    if errors:
        return errors[-1]
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
