"""`pabal up` and `serve`: start, use, stop, start again."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import httpx2
import pytest

from pabal.hub import DatabaseUrls
from support.clusters import open_connection
from support.pabal_process import (
    PABAL,
    PROCESS_TIMEOUT,
    environment,
    pabal,
    pabal_json,
    remaining_processes,
    run_hub,
    server_pids,
)

SECRET = "0a1b2c3d" * 8


def enter(web: httpx2.Client, password: str) -> int:
    form = re.search(r'name="csrf_token" value="([^"]+)"', web.get("/console/login").text)
    assert form
    fields = {"csrf_token": form[1], "name": "admin", "password": password}
    return web.post("/console/login", data=fields).status_code


def healthy(web: httpx2.Client) -> bool:
    answer = web.get("/health")
    return answer.status_code == 200 and answer.json()["database"] == "ok"


async def ask(url: str) -> int:
    async with open_connection(url) as conn:
        return await conn.fetchval("select count(*) from pabal.operators")


def test_up_serves_stops_and_keeps_its_data(folder: Path) -> None:
    with run_hub(folder, PABAL_LOG_LEVEL="debug") as hub, httpx2.Client(base_url=hub.address) as web:
        assert hub.password
        assert healthy(web)
        assert enter(web, hub.password) == 303
        cookie = web.cookies["pabal_session"]
        web.get(f"/v1/sessions/{SECRET}/status?token={SECRET}", headers={"authorization": f"Bearer {SECRET}"})
        web.post("/console/login", content=f"password={SECRET}")

        url = pabal("db", "url", folder=folder).stdout.strip()
        assert asyncio.run(ask(url)) == 1
        if shutil.which("psql"):
            assert "pabal_hub" in pabal("db", "shell", folder=folder, feed="select current_user").stdout
        result = {finding["what"]: finding for finding in pabal_json("doctor", folder=folder)["items"]}
        assert {result[what]["level"] for what in ("database", "schema", "doorbell")} == {"good"}
        assert result["webhook secret"]["level"] == "good"
        migrations = pabal_json("migrate", "status", folder=folder)["items"]
        assert migrations
        assert {item["state"] for item in migrations} == {"applied"}
        assert pabal_json("migrate", "up", folder=folder)["items"] == []

        assert hub.end() < 3  # with an open keep-alive connection
    assert hub.process.returncode == 0
    assert remaining_processes(folder) == []
    written = hub.log.read_text()
    assert "request answered" in written
    assert all(json.loads(line)["event"] for line in written.splitlines())
    for secret in (hub.password, cookie, SECRET, url.split(":")[2].split("@")[0]):
        assert secret not in written

    with run_hub(folder) as again, httpx2.Client(base_url=again.address) as web:
        assert again.password is None
        assert again.how == "sign in as admin with the password shown at the first start"
        assert enter(web, hub.password) == 303
        assert again.end(signal.SIGTERM) < 3
    assert remaining_processes(folder) == []


def post_webhook(web: httpx2.Client, **headers: str) -> int:
    payload = {"userRequest": {"user": {"id": "mina"}, "utterance": "hello"}}
    return web.post("/kakao/webhook", json=payload, headers=headers).status_code


def test_up_generates_a_webhook_secret_and_keeps_it(folder: Path) -> None:
    file = folder / "data" / "webhook-secret"
    with run_hub(folder) as hub, httpx2.Client(base_url=hub.address) as web:
        assert hub.process.stdout
        assert "`pabal settings --show`" in hub.process.stdout.readline()
        assert file.stat().st_mode & 0o777 == 0o600
        hidden, shown = (pabal_json("settings", *args, folder=folder) for args in ((), ("--show",)))
        assert hidden["PABAL_WEBHOOK_SECRET"] == {"value": "***", "from": "file"}
        secret = shown["PABAL_WEBHOOK_SECRET"]["value"]
        assert shown["PABAL_ADMIN_PASSWORD"]["value"] is None
        assert len(secret) >= 40
        assert [post_webhook(web), post_webhook(web, **{"x-pabal-secret": secret})] == [401, 200]
        with run_hub(folder, "serve") as half, httpx2.Client(base_url=half.address) as other:
            assert [post_webhook(other), post_webhook(other, **{"x-pabal-secret": secret})] == [401, 200]
        hub.end()
    assert secret not in hub.log.read_text()

    with run_hub(folder) as again, httpx2.Client(base_url=again.address) as web:
        assert post_webhook(web, **{"x-pabal-secret": secret}) == 200
        again.end()
    chosen = "chosen by the operator"
    with run_hub(folder, PABAL_WEBHOOK_SECRET=chosen) as again, httpx2.Client(base_url=again.address) as web:
        assert post_webhook(web, **{"x-pabal-secret": secret}) == 401
        assert post_webhook(web, **{"x-pabal-secret": chosen}) == 200
    settings = pabal_json("settings", "--show", folder=folder, PABAL_WEBHOOK_SECRET=chosen)
    assert settings["PABAL_WEBHOOK_SECRET"] == {"value": chosen, "from": "set"}
    assert file.read_text().strip() == secret


def test_up_starts_again_after_a_kill(folder: Path) -> None:
    with run_hub(folder, PABAL_ADMIN_PASSWORD="correct horse") as hub, httpx2.Client(base_url=hub.address) as web:
        assert hub.password is None
        assert enter(web, "correct horse") == 303
        hub.end(signal.SIGKILL)
    orphans = server_pids(folder)
    assert len(orphans) == 1

    with run_hub(folder) as again, httpx2.Client(base_url=again.address) as web:
        assert server_pids(folder) == orphans  # the running server is reused
        assert enter(web, "correct horse") == 303
        assert again.end() < 3
    assert remaining_processes(folder) == []


def test_sigterm_during_the_start_leaves_nothing_running(folder: Path) -> None:
    with (folder / "log").open("w") as log:
        args = {"PABAL_DATA_DIR": str(folder / "data"), "PABAL_PORT": "0"}
        starting = subprocess.Popen([PABAL, "up"], stdout=log, stderr=log, cwd=folder, env=environment(**args))
    deadline = time.monotonic() + PROCESS_TIMEOUT
    while not [*folder.glob("data/*")]:  # until it creates its database
        assert time.monotonic() < deadline

    starting.send_signal(signal.SIGTERM)

    assert starting.wait(3) == 130
    assert remaining_processes(folder) == []
    with run_hub(folder) as hub, httpx2.Client(base_url=hub.address) as web:
        assert healthy(web)


def test_a_killed_database_is_restarted(folder: Path) -> None:
    with run_hub(folder) as hub, httpx2.Client(base_url=hub.address, timeout=PROCESS_TIMEOUT) as web:
        assert healthy(web)
        [old] = server_pids(folder)
        os.kill(old, signal.SIGKILL)

        deadline = time.monotonic() + PROCESS_TIMEOUT
        while "database restarted" not in hub.log.read_text() or not healthy(web):
            assert time.monotonic() < deadline, hub.log.read_text()

        [new] = server_pids(folder)
        assert new != old
        assert hub.end() < 3
    assert remaining_processes(folder) == []


def test_an_address_of_another_host_is_not_called_in_use(folder: Path) -> None:
    refused = pabal("up", "--host", "192.0.2.1", "--port", "0", folder=folder, code=1)

    [line] = refused.stderr.splitlines()
    assert line.startswith("pabal: Cannot listen on 192.0.2.1:0: ")
    assert "Choose an address of this host" in line
    assert "process" not in line


def test_a_port_in_use_is_one_line_and_starts_nothing(folder: Path) -> None:
    with run_hub(folder) as hub:
        port = hub.address.rpartition(":")[2]
        refused = pabal("up", "--port", port, "--data-dir", str(folder / "other"), folder=folder, code=1)

        [line] = refused.stderr.splitlines()
        assert line.startswith(f"pabal: Cannot listen on 127.0.0.1:{port}: Address already in use")
        assert "--port" in line
        assert not (folder / "other").exists()

        second = pabal("up", "--port", "0", folder=folder, code=1)
        assert len(second.stderr.splitlines()) == 1

        with run_hub(folder, "serve") as half, httpx2.Client(base_url=half.address) as web:
            assert healthy(web)
            assert half.end() < 3
        with httpx2.Client(base_url=hub.address) as web:
            assert healthy(web)


@pytest.mark.anyio
async def test_an_external_database_starts_no_embedded_server(folder: Path, database_urls: DatabaseUrls) -> None:
    url = database_urls.direct or database_urls.main
    with (
        run_hub(folder, PABAL_DATABASE_URL=url, PABAL_ADMIN_PASSWORD="correct horse") as hub,
        httpx2.Client(base_url=hub.address) as web,
    ):
        assert healthy(web)
        assert enter(web, "correct horse") == 303
        result = {
            finding["what"]: finding for finding in pabal_json("doctor", folder=folder, PABAL_DATABASE_URL=url)["items"]
        }
        assert result["database role"]["level"] == "warning"
        assert "superuser" in result["database role"]["seen"]
        assert [*(folder / "data").glob("postgres*")] == []
        assert not (folder / "data" / "webhook-secret").exists(), "another host would generate another one"
        assert result["webhook secret"]["level"] == "warning"
        assert post_webhook(web) == 401
        [warning] = [json.loads(line) for line in hub.log.read_text().splitlines() if "webhook secret" in line]
        assert (warning["level"], warning["event"]) == ("warning", "webhook secret")
        assert "refuses every request" in warning["seen"]
        assert hub.end() < 3


@pytest.mark.anyio
async def test_serve_refuses_pending_migrations(folder: Path, database_urls: DatabaseUrls) -> None:
    url = database_urls.direct or database_urls.main
    pabal("migrate", "down", "--to", "20251124100007", "--yes", folder=folder, PABAL_DATABASE_URL=url)

    refused = pabal("serve", "--port", "0", folder=folder, code=1, PABAL_DATABASE_URL=url)

    assert "Run `pabal migrate up` first" in refused.stderr
    states = [item["state"] for item in pabal_json("migrate", "status", folder=folder, PABAL_DATABASE_URL=url)["items"]]
    assert states == sorted(states)  # applied, then pending
    assert {*states} == {"applied", "pending"}
