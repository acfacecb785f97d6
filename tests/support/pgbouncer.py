"""PgBouncer as a transaction pooler in front of a PostgreSQL, if this machine has it: `apt install pgbouncer`."""

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

PROGRAM = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
CONFIGURATION = """
[databases]
* = host={host} port={server_port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 20
server_login_retry = 1
max_client_conn = 200
"""


@dataclass(slots=True)
class PgBouncer:
    """A running pooler. `url` leads through it."""

    configuration: Path
    url: str
    process: "subprocess.Popen[bytes]"

    def restart(self) -> None:
        """Kill it, and start it again on its port."""
        self.stop()
        self.process = start_process(self.configuration)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def start_pgbouncer(folder: Path, url: str) -> PgBouncer:
    """Start a pooler in front of the server of `url`. Its files are in `folder`."""
    parts = urlsplit(url)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(
        CONFIGURATION.format(
            host=parts.hostname, server_port=parts.port, user=parts.username, password=parts.password, port=port
        )
    )
    configuration.chmod(0o644)
    through = parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}")
    return PgBouncer(configuration, urlunsplit(through), start_process(configuration))


def start_process(configuration: Path) -> "subprocess.Popen[bytes]":
    assert PROGRAM
    user = "daemon" if os.geteuid() == 0 else None  # it does not run as root
    return subprocess.Popen([PROGRAM, "-q", configuration], user=user, stderr=subprocess.DEVNULL)
