"""Helpers of these tests: owners in other processes, also unprivileged ones, and queries."""

import asyncio
import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

import pabal

FAST = {"fsync": "off"}
PG15 = Path("/usr/lib/postgresql/15/bin")
ROOT = os.geteuid() == 0
SECONDS = 20.0

# The import paths of pabal and asyncpg in this process.
PATHS = os.pathsep.join(str(Path(str(module.__file__)).parent.parent) for module in (pabal, asyncpg))


@dataclass(frozen=True, slots=True)
class Owner:
    """Another process that owns a server or tries to."""

    process: "subprocess.Popen[str]"

    def start(self) -> dict[str, Any]:
        self.send_start()
        return self.read_report()

    def send_start(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def read_report(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def stop(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.read_report()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)

    def end(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def start_owner(
    data_dir: Path,
    *,
    unprivileged: bool = False,
    umask: int = 0o022,
    pg_bin: Path | None = None,
    server_user: str | None = None,
) -> Owner:
    arguments = {
        "data_dir": str(data_dir),
        "umask": umask,
        "pg_bin": str(pg_bin) if pg_bin else None,
        "server_user": server_user,
    }
    drops_privileges = unprivileged and ROOT
    nobody = pwd.getpwnam("nobody")
    process = subprocess.Popen(
        [
            common_python() if drops_privileges else sys.executable,
            Path(__file__).with_name("owner_process.py"),
            json.dumps(arguments),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": PATHS, "PYTHONDONTWRITEBYTECODE": "1", "A_SECRET": "hush"},
        process_group=0,
        user=nobody.pw_uid if drops_privileges else None,
        group=nobody.pw_gid if drops_privileges else None,
        extra_groups=[] if drops_privileges else None,
    )
    return Owner(process)


def common_python() -> str:
    """Find a Python that every user can run; the current one may be inside root's home."""
    python = shutil.which(f"python{sys.version_info.major}.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")
    assert python is not None, "no Python that another user may run"
    return python


def query(url: str, sql: str) -> Any:
    """Run a query and return its single value."""

    async def fetch() -> Any:
        conn = await asyncpg.connect(url)
        try:
            return await conn.fetchval(sql)
        finally:
            await conn.close()

    return asyncio.run(fetch())


def insert_value(url: str) -> int:
    """Commit a new random value and return it."""
    query(url, "create table if not exists kept (value bigint)")
    return query(url, "insert into kept values (random() * 1e15) returning value")


def has_value(url: str, value: int) -> bool:
    return query(url, f"select count(*) from kept where value = {value}") == 1


def write_pid_file(data: Path, text: str) -> None:
    """Write a pid file as a server of this directory would."""
    file = data / "postmaster.pid"
    file.write_text(text)
    file.chmod(0o600)
    os.chown(file, data.stat().st_uid, data.stat().st_gid)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.001)
