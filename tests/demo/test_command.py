"""`pabal demo` as people start it: three lines, a chat, a console, and nothing left behind."""

import re
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from running import PABAL, PATIENCE, environment, fresh_folder, leftovers, pabal

SECRET = "not for a play"
ELSEWHERE = {
    "PABAL_DATABASE_URL": "postgresql://nobody:nothing@127.0.0.1:1/nowhere",
    "PABAL_WEBHOOK_SECRET": SECRET,
    "PABAL_ADMIN_PASSWORD": SECRET,
    "PABAL_PORT": "0",
}
"""What a real hub was told in the same shell."""


@pytest.fixture
def folder() -> Generator[Path]:
    with fresh_folder() as made:
        yield made


class Started:
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
        assert self.process.stdout
        self.lines = [self.process.stdout.readline().strip() for _ in range(3)]
        assert self.lines[2].startswith("Stop"), self.log.read_text()
        self.chat, self.console = (re.findall(r"http://127\.0\.0\.1:\d+", line)[0] for line in self.lines[:2])
        [self.password] = re.findall(r"with the password (\S.*)\)", self.lines[1])

    def end(self, by: signal.Signals = signal.SIGINT) -> None:
        self.process.send_signal(by)
        self.process.wait(PATIENCE)


@contextmanager
def started(folder: Path, *words: str) -> Generator[Started]:
    demo = Started(folder, *words)
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
        form = re.search(r'name="form" value="([^"]+)"', web.get("/console/login").text)
        assert form
        return web.post("/console/login", data={"form": form[1], "name": "admin", "password": password}).status_code


def test_the_whole_loop_and_nothing_is_left(folder: Path) -> None:
    with started(folder, "--language", "en") as demo:
        assert enter(demo.console, demo.password) == 303
        code = re.findall(r'"code":"([A-Z2-9-]{9})"', events(demo.chat, until='"code":"'))[0]
        say(demo.chat, f"/pair {code}")
        events(demo.chat, until="Connected!")
        say(demo.chat, "hello")
        events(demo.chat, until="Echo: hello")

        demo.end()
        assert demo.process.returncode == 0
        assert demo.process.stdout
        assert demo.process.stdout.read() == ""
    assert demo.log.read_text() == ""
    assert leftovers(folder) == []
    assert [path.name for path in folder.iterdir()] == ["log"]


def test_a_folder_of_ones_own_is_kept(folder: Path) -> None:
    kept = folder / "kept"
    for attempt in range(2):
        with started(folder, "--data-dir", str(kept), "--no-bot") as demo:
            page = httpx2.get(demo.chat, headers={"accept-language": "en"}).text
            assert demo.console in page
            assert '"code":null' in events(demo.chat, until='"code":')
            assert (demo.password == "of the first start") == (attempt == 1)
            demo.end(signal.SIGTERM)
    assert (kept / "keys.json").exists()
    assert leftovers(folder) == []


def test_a_taken_port_is_one_line_and_costs_nothing(folder: Path) -> None:
    with started(folder, "--no-bot") as demo:
        before = {*folder.iterdir()}
        for option, address in (("--port", demo.console), ("--chat-port", demo.chat)):
            port = address.rpartition(":")[2]
            refused = pabal("demo", option, port, folder=folder, code=1, **ELSEWHERE, TMPDIR=str(folder))
            [line] = refused.stderr.splitlines()
            assert line == f"pabal: cannot listen on 127.0.0.1:{port}; choose another port with {option}"
        assert {*folder.iterdir()} == before
