"""`pabal demo` in a process of its own, and what its users do."""

import re
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from support.pabal_process import PROCESS_TIMEOUT, environment, start_pabal

SECRET = "not for the demo"
REAL_HUB_VARIABLES = {
    "PABAL_DATABASE_URL": "postgresql://nobody:nothing@127.0.0.1:1/nowhere",
    "PABAL_WEBHOOK_SECRET": SECRET,
    "PABAL_ADMIN_PASSWORD": SECRET,
    "PABAL_DISCORD_TOKEN": SECRET,
    "PABAL_PORT": "0",
}
"""Settings of a real hub in the same shell, which the demo ignores."""


class Demo:
    """`pabal demo`, from the moment it prints its addresses."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.log = folder / "log"
        with self.log.open("a") as log:
            self.process = start_pabal(
                "demo",
                *args,
                folder=folder,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(TMPDIR=str(folder), **REAL_HUB_VARIABLES),
            )
        lines = dict(self._greeting())
        assert "Stop" in lines, self.log.read_text()
        self.chat, self.console = (
            re.findall(r"http://127\.0\.0\.1:\d+", lines[name])[0] for name in ("Chat", "Console")
        )
        [self.password] = re.findall(r"with the password (\S.*)\)", lines["Console"])
        self.person = lines.get("Person", "").split(" ")[0]
        self.shop = lines.get("Shop", "").split(" ")[0]

    def _greeting(self) -> Generator[tuple[str, str]]:
        """The printed lines by their first word, up to how to stop it."""
        assert self.process.stdout
        for line in self.process.stdout:
            name, _, text = line.strip().partition(" ")
            yield name, text.strip()
            if name == "Stop":
                return

    def end(self, by: signal.Signals = signal.SIGINT) -> None:
        self.process.send_signal(by)
        self.process.wait(PROCESS_TIMEOUT)


@contextmanager
def run_demo(folder: Path, *args: str) -> Generator[Demo]:
    demo = Demo(folder, *args)
    try:
        yield demo
    finally:
        if demo.process.poll() is None:
            demo.end(signal.SIGTERM)
        assert demo.process.stdout
        demo.process.stdout.close()


def read_page_events(chat: str, *, until: str) -> str:
    """The events of a user's page, up to the first match of `until`."""
    text = ""
    with httpx2.stream("GET", f"{chat}/chats/demo-user-1", timeout=PROCESS_TIMEOUT) as stream:
        for chunk in stream.iter_text():
            text += chunk
            if re.search(until, text):
                return text
    raise AssertionError(text)


def send_message(chat: str, text: str) -> None:
    response = httpx2.post(f"{chat}/chats/demo-user-1", json={"text": text, "language": "en"}, timeout=PROCESS_TIMEOUT)
    assert response.status_code == 204


def sign_in(address: str, password: str) -> int:
    """The status of a sign-in to the console."""
    with httpx2.Client(base_url=address) as web:
        form = re.search(r'name="csrf_token" value="([^"]+)"', web.get("/console/login").text)
        assert form
        fields = {"csrf_token": form[1], "name": "admin", "password": password}
        return web.post("/console/login", data=fields).status_code
