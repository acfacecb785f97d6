"""What the tests here share: owners in other processes, unprivileged ones too, and questions to a server."""

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

# Where this process found us and what we need, however it was started.
PATHS = os.pathsep.join(str(Path(str(module.__file__)).parent.parent) for module in (pabal, asyncpg))


@dataclass(frozen=True, slots=True)
class Owner:
    """Another process that owns a server, or tries to."""

    process: "subprocess.Popen[str]"

    def go(self) -> dict[str, Any]:
        self.send_off()
        return self.hear()

    def send_off(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def leave(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.hear()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)

    def end(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def hire(home: Path, *, unprivileged: bool = False, umask: int = 0o022, pg_bin: Path | None = None) -> Owner:
    wish = {"home": str(home), "umask": umask, "pg_bin": str(pg_bin) if pg_bin else None}
    dropped = unprivileged and ROOT
    nobody = pwd.getpwnam("nobody")
    process = subprocess.Popen(
        [common_python() if dropped else sys.executable, Path(__file__).with_name("own.py"), json.dumps(wish)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": PATHS, "PYTHONDONTWRITEBYTECODE": "1", "A_SECRET": "hush"},
        process_group=0,
        user=nobody.pw_uid if dropped else None,
        group=nobody.pw_gid if dropped else None,
        extra_groups=[] if dropped else None,
    )
    return Owner(process)


def common_python() -> str:
    """Find a Python everybody may run; ours may lie under root's home."""
    found = shutil.which(f"python{sys.version_info.major}.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")
    assert found is not None, "no Python that another user may run"
    return found


def ask(url: str, question: str) -> Any:
    """Put one question to the server and return its one value."""

    async def put() -> Any:
        conn = await asyncpg.connect(url)
        try:
            return await conn.fetchval(question)
        finally:
            await conn.close()

    return asyncio.run(put())


def keep(url: str) -> int:
    """Commit something new and return it."""
    ask(url, "create table if not exists kept (answer bigint)")
    return ask(url, "insert into kept values (random() * 1e15) returning answer")


def kept(url: str, answer: int) -> bool:
    return ask(url, f"select count(*) from kept where answer = {answer}") == 1


def forge(data: Path, text: str) -> None:
    """Leave a pid file as a server of that folder would."""
    file = data / "postmaster.pid"
    file.write_text(text)
    file.chmod(0o600)
    os.chown(file, data.stat().st_uid, data.stat().st_gid)


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.001)
