"""`pabal demo`: its output, its chat and console, and that it leaves nothing behind."""

import re
import signal
import socket
from collections.abc import Generator
from pathlib import Path

import httpx2
import pytest

from pabal.cli.hub.demo import DemoConfig
from support.demo_process import REAL_HUB_VARIABLES, read_page_events, run_demo, send_message, sign_in
from support.pabal_process import fresh_folder, pabal, remaining_processes


@pytest.fixture
def folder() -> Generator[Path]:
    with fresh_folder() as made:
        yield made


def test_the_demo_answers_and_leaves_nothing_behind(folder: Path) -> None:
    with run_demo(folder, "--language", "en") as demo:
        assert sign_in(demo.console, demo.password) == 303
        code = re.findall(r'"code":"([A-Z2-9-]{9})"', read_page_events(demo.chat, until='"code":"'))[0]
        send_message(demo.chat, f"/pair {code}")
        read_page_events(demo.chat, until="Connected!")
        send_message(demo.chat, "hello")
        read_page_events(demo.chat, until="Echo: hello")

        demo.end()
        assert demo.process.returncode == 0
        assert demo.process.stdout
        assert demo.process.stdout.read() == ""
    assert demo.log.read_text() == ""
    assert remaining_processes(folder) == []
    assert [path.name for path in folder.iterdir()] == ["log"]


@pytest.mark.parametrize("has_samples", [False, True])
def test_discord_is_simulated_or_a_dry_run_by_name(*, has_samples: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = DemoConfig(listener, listener, listener, has_bot=True, has_samples=has_samples, keeps_data=False)
        update = config.settings_update()

    assert update["discord_dry_run"] is not has_samples
    assert ("discord_token" in update) is has_samples, "a dry run has no token, so it must be asked for"


def test_a_chosen_data_directory_is_kept(folder: Path) -> None:
    kept = folder / "kept"
    for attempt in range(2):
        with run_demo(folder, "--data-dir", str(kept), "--no-bot", "--no-samples") as demo:
            page = httpx2.get(demo.chat, headers={"accept-language": "en"}).text
            assert demo.console in page
            assert '"code":null' in read_page_events(demo.chat, until='"code":')
            assert (demo.password == "of the first start") == (attempt == 1)
            assert demo.person == ""
            demo.end(signal.SIGTERM)
    assert (kept / "keys.json").exists()
    assert remaining_processes(folder) == []


def test_a_port_in_use_is_one_line_and_starts_nothing(folder: Path) -> None:
    with run_demo(folder, "--no-bot", "--no-samples") as demo:
        before = {*folder.iterdir()}
        for option, address in (("--port", demo.console), ("--chat-port", demo.chat)):
            port = address.rpartition(":")[2]
            refused = pabal("demo", option, port, folder=folder, code=1, **REAL_HUB_VARIABLES, TMPDIR=str(folder))
            [line] = refused.stderr.splitlines()
            assert line == f"pabal: Cannot listen on 127.0.0.1:{port}. Choose another port with {option}"
        assert {*folder.iterdir()} == before
