"""What a server writes about itself into its data folder, and whether that is still true."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pabal.core.errors import EmbeddedServerError

PID_FILE = "postmaster.pid"
PROC_DIR = Path("/proc")
MAX_PID = 2**31 - 1
STATUS_POLL_SECONDS = 0.01

StopSignals = Sequence[tuple[signal.Signals, float]]

# Fast shutdown, then immediate (the next start recovers), then what ends even a frozen process: seconds for each.
STOP_SIGNALS: StopSignals = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 8.0), (signal.SIGKILL, 2.0))


@dataclass(frozen=True, slots=True)
class Postmaster:
    """A server as its pid file tells it; the status comes last, once there is one."""

    pid: int
    port: int | None = None
    status: str = "starting"

    @property
    def is_ready(self) -> bool:
        return self.status == "ready" and self.port is not None


def read_pid_file(data_dir: Path) -> Postmaster | None:
    """Read the pid file: pid, folder, start, port, socket, address, memory, status, one a line, written bit by bit."""
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
    return Postmaster(pid, port, lines[7].strip() if len(lines) > 7 else "starting")  # noqa: PLR2004


def find_running_server(data_dir: Path) -> Postmaster | None:
    """Return the server that really runs on this folder, whoever started it."""
    said = read_pid_file(data_dir)
    return said if said is not None and is_server_of(said.pid, data_dir) else None


def is_server_of(pid: int, data_dir: Path) -> bool:
    """Tell whether the process is a server of this folder: a pid alone may by now be anybody's."""
    match read_command_line(pid):
        case [program, "-D", folder, *_] if Path(program).name == "postgres":
            try:
                return Path(folder).samefile(data_dir)
            except OSError:
                return False
        case _:
            return False


def read_command_line(pid: int) -> list[str]:
    """Read another process's command line: root in a container may see that of any user, but not its folder."""
    if (PROC_DIR / "self").exists():
        try:
            return (PROC_DIR / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return []
    shown = subprocess.run(  # noqa: S603  # a system without /proc
        ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    program, _, rest = shown.stdout.strip().partition(" -D ")
    return [program, "-D", rest.partition(" -c ")[0]]  # as we start it, so that a space in the folder's name is no end


def clear_stale_pid_file(data_dir: Path) -> None:
    """Make a dead server's pid file harmless; only for the holder of the lock.

    PostgreSQL judges a stale file well unless the pid in it answers: as another process of the same user by now, or as
    a zombie nobody has buried yet. Then it refuses to start. It always ignores its parent's pid, so that takes its
    place. The rest stays: by it PostgreSQL still sees whether children of the dead server live on.
    """
    file = data_dir / PID_FILE
    said = read_pid_file(data_dir)
    if said is None:
        file.unlink(missing_ok=True)  # empty or torn: left by a power cut
    elif process_exists(said.pid) and not is_server_of(said.pid, data_dir):
        # The folder is the server's: as root we do not follow a link it may have left there.
        with os.fdopen(os.open(file, os.O_RDWR | os.O_NOFOLLOW), "r+") as stale:
            rest = stale.read().partition("\n")[2]
            stale.seek(0)
            stale.truncate()
            stale.write(f"{os.getpid()}\n{rest}")


def process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # not ours to signal, but there
    return True


def stop_process(pid: int, is_running: Callable[[], bool], stop_signals: StopSignals = STOP_SIGNALS) -> None:
    """Stop a server, ever less politely; `lives` is asked before each signal, so a recycled pid gets none."""
    for way, limit in stop_signals:
        deadline = time.monotonic() + limit
        if is_running():
            with suppress(ProcessLookupError):
                os.kill(pid, way)
        while is_running():
            if time.monotonic() > deadline:
                break
            time.sleep(STATUS_POLL_SECONDS)
        else:
            return
    raise EmbeddedServerError(f"the server (pid {pid}) would not end, not even killed: its disk may hang")


DISK_FULL_TEXT = "No space left on device"
PORT_UNAVAILABLE_TEXT = "could not create any TCP/IP sockets"
SHARED_MEMORY_IN_USE_TEXT = "is still in use"  # children of a killed server hold its shared memory until they notice

BIND_ERROR = re.compile(r"could not bind .*")
ERROR_LINE = re.compile(r"(?:FATAL|PANIC|ERROR|error|fatal):\s+(.*)")


def extract_error(output: str) -> str:
    """Return the one line of the output that says why.

    Only lines PostgreSQL marks as errors are quoted: the statement it prints beside them may hold a password.
    """
    if DISK_FULL_TEXT in output:
        return f"the disk is full ({DISK_FULL_TEXT})"
    if PORT_UNAVAILABLE_TEXT in output and (refusal := BIND_ERROR.search(output)):
        return refusal[0]
    blamed = ERROR_LINE.findall(output)
    if blamed:
        return blamed[-1]
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
