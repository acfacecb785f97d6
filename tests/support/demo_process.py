"""`pabal demo` as a process of its own, and what its spectators do."""

import re
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from support.pabal_process import PABAL, PATIENCE, environment

SECRET = "not for a play"
ELSEWHERE = {
    "PABAL_DATABASE_URL": "postgresql://nobody:nothing@127.0.0.1:1/nowhere",
    "PABAL_WEBHOOK_SECRET": SECRET,
    "PABAL_ADMIN_PASSWORD": SECRET,
    "PABAL_DISCORD_TOKEN": SECRET,
    "PABAL_PORT": "0",
}
"""What a real hub was told in the same shell."""


class Demo:
    """A demo from the moment it has said where it is."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.log = folder / "log"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [PABAL, "demo", *words],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env=environment(TMPDIR=str(folder), **ELSEWHERE),
            )
        said = dict(self._greeting())
        assert "Stop" in said, self.log.read_text()
        self.chat, self.console = (re.findall(r"http://127\.0\.0\.1:\d+", said[who])[0] for who in ("Chat", "Console"))
        [self.password] = re.findall(r"with the password (\S.*)\)", said["Console"])
        self.person = said.get("Person", "").split(" ")[0]

    def _greeting(self) -> Generator[tuple[str, str]]:
        """Who is where, up to how to stop it."""
        assert self.process.stdout
        for line in self.process.stdout:
            who, _, where = line.strip().partition(" ")
            yield who, where.strip()
            if who == "Stop":
                return

    def end(self, by: signal.Signals = signal.SIGINT) -> None:
        self.process.send_signal(by)
        self.process.wait(PATIENCE)


@contextmanager
def started(folder: Path, *words: str) -> Generator[Demo]:
    demo = Demo(folder, *words)
    try:
        yield demo
    finally:
        if demo.process.poll() is None:
            demo.end(signal.SIGTERM)
        assert demo.process.stdout
        demo.process.stdout.close()


def events(chat: str, *, until: str) -> str:
    """What somebody's page is told, up to the first sight of `until`."""
    told = ""
    with httpx2.stream("GET", f"{chat}/chats/somebody-1", timeout=PATIENCE) as stream:
        for chunk in stream.iter_text():
            told += chunk
            if re.search(until, told):
                return told
    raise AssertionError(told)


def say(chat: str, text: str) -> None:
    answer = httpx2.post(f"{chat}/chats/somebody-1", json={"text": text, "language": "en"}, timeout=PATIENCE)
    assert answer.status_code == 204


def enter(address: str, password: str) -> int:
    with httpx2.Client(base_url=address) as web:
        form = re.search(r'name="csrf_token" value="([^"]+)"', web.get("/console/login").text)
        assert form
        fields = {"csrf_token": form[1], "name": "admin", "password": password}
        return web.post("/console/login", data=fields).status_code
