"""`pabal serve --processes`: several processes on one port, their restarts and their metrics."""

import os
import resource
import signal
from pathlib import Path

import httpx2
import pytest

from pabal.hub import DatabaseUrls
from support.pabal_process import PROCESS_TIMEOUT, RunningHub, remaining_processes, run_hub, server_pids
from support.processes import (
    child_pids,
    count_requests,
    is_running,
    log_lines,
    wait_for_children,
    wait_for_lines,
)
from support.tcp_gate import TcpGate
from support.wait import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
def variables(database_urls: DatabaseUrls) -> dict[str, str]:
    url = database_urls.direct or database_urls.main
    return {"PABAL_DATABASE_URL": url, "PABAL_ADMIN_PASSWORD": "correct horse", "PABAL_PROCESSES": "2"}


def request_while_stopped(hub: RunningHub, stopped: int, count: int) -> None:
    """Send requests, each on a new connection, that only the other child can answer."""
    os.kill(stopped, signal.SIGSTOP)
    for _ in range(count):
        assert httpx2.get(f"{hub.address}/healthz").status_code == 200
    os.kill(stopped, signal.SIGCONT)


async def test_metrics_add_up_over_the_processes_and_survive_the_end_of_one(
    folder: Path, variables: dict[str, str]
) -> None:
    with run_hub(folder, "serve", **variables) as hub:
        first, second = await wait_for_children(hub, 2)
        request_while_stopped(hub, first, 5)
        request_while_stopped(hub, second, 3)
        assert [count_requests(hub.address, "/healthz") for _ in range(4)] == [8] * 4

        os.kill(first, signal.SIGKILL)
        await wait_for_children(hub, 3)

        assert count_requests(hub.address, "/healthz") == 8
        assert [line["code"] for line in log_lines(hub, "process died")] == [-signal.SIGKILL]
        hub.process.send_signal(signal.SIGHUP)
        await wait_for_lines(hub, "rolling restart done", 1)
        assert count_requests(hub.address, "/healthz") == 8
        assert not {first, second} & {*child_pids(hub.process.pid)}
        assert hub.end(signal.SIGTERM) < 3
    assert hub.process.returncode == 0


async def test_up_runs_several_processes_on_its_embedded_database(folder: Path) -> None:
    with run_hub(folder, "up --processes 2") as hub:
        first, second = await wait_for_children(hub, 2)
        [database] = server_pids(folder)
        request_while_stopped(hub, first, 3)
        request_while_stopped(hub, second, 2)
        assert count_requests(hub.address, "/healthz") == 5

        os.kill(first, signal.SIGKILL)
        await wait_for_children(hub, 3)
        hub.process.send_signal(signal.SIGHUP)
        await wait_for_lines(hub, "rolling restart done", 1)

        assert httpx2.get(f"{hub.address}/readyz").status_code == 200
        assert server_pids(folder) == [database], "a child took the database server with it"
        hub.end(signal.SIGINT)
    assert hub.process.returncode == 0
    assert remaining_processes(folder) == []


async def test_the_children_end_with_their_supervisor(folder: Path, variables: dict[str, str]) -> None:
    with run_hub(folder, "serve", **variables) as hub:
        children = await wait_for_children(hub, 2)
        hub.end(signal.SIGKILL)

        await wait_until(lambda: not any(map(is_running, children)), PROCESS_TIMEOUT)
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{hub.address}/healthz")


async def test_a_child_that_cannot_start_is_tried_again_ever_later(folder: Path, variables: dict[str, str]) -> None:
    with run_hub(folder, "serve", **variables) as hub:
        first, _ = await wait_for_children(hub, 2)
        broken = folder / ".env"
        broken.write_text("PABAL_BODY_LIMIT=nonsense")

        hub.process.send_signal(signal.SIGHUP)
        await wait_for_lines(hub, "rolling restart given up: the new process does not start", 1)
        assert first in child_pids(hub.process.pid)

        os.kill(first, signal.SIGKILL)
        await wait_for_lines(hub, "process died", 3)
        assert httpx2.get(f"{hub.address}/readyz").status_code == 200
        later = [line["restart_in"] for line in log_lines(hub, "process died")[1:3]]
        assert later[1] == 2 * later[0]

        broken.unlink()
        await wait_for_children(hub, 3)


async def test_a_child_that_dies_during_a_rolling_restart_is_replaced_once(
    folder: Path, variables: dict[str, str]
) -> None:
    with run_hub(folder, "serve", **variables) as hub:
        children = await wait_for_children(hub, 2)
        for child in children:
            os.kill(child, signal.SIGSTOP)  # the first one to be replaced does not end by itself
        hub.process.send_signal(signal.SIGHUP)
        await wait_for_lines(hub, "process ready", 3)

        for child in children:
            os.kill(child, signal.SIGKILL)
        await wait_for_lines(hub, "rolling restart done", 1)
        await wait_for_lines(hub, "process ready", 4)  # the one that died is replaced after a delay
        hub.process.send_signal(signal.SIGHUP)
        await wait_for_lines(hub, "rolling restart done", 2)

        await wait_until(lambda: len(child_pids(hub.process.pid)) == 2)
        assert log_lines(hub, "rolling restart done")[-1]["processes"] == 2
        assert httpx2.get(f"{hub.address}/readyz").status_code == 200


async def test_a_process_that_cannot_be_created_is_tried_again(folder: Path, variables: dict[str, str]) -> None:
    with run_hub(folder, "serve", **variables) as hub:
        first, second = await wait_for_children(hub, 2)
        limits = resource.prlimit(hub.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(hub.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        os.kill(first, signal.SIGKILL)
        await wait_for_lines(hub, "process not started", 2)
        hub.process.send_signal(signal.SIGHUP)
        await wait_for_lines(hub, "rolling restart given up: the new process does not start", 1)

        resource.prlimit(hub.process.pid, resource.RLIMIT_NOFILE, limits)
        await wait_for_children(hub, 3)

        assert second in child_pids(hub.process.pid)
        hub.process.send_signal(signal.SIGHUP)
        await wait_for_lines(hub, "rolling restart done", 1)


async def test_a_new_child_without_a_database_leaves_the_requests_to_the_others(
    folder: Path, variables: dict[str, str]
) -> None:
    url = variables.pop("PABAL_DATABASE_URL")
    env_file = folder / ".env"
    env_file.write_text(f"PABAL_DATABASE_URL={url}")
    with run_hub(folder, "serve", **variables) as hub:
        await wait_for_children(hub, 2)
        env_file.write_text(f"PABAL_DATABASE_URL={TcpGate(url).url}")
        hub.process.send_signal(signal.SIGHUP)
        await wait_for_lines(hub, "database unavailable", 1)

        assert {httpx2.get(f"{hub.address}/readyz").status_code for _ in range(200)} == {200}

        children = child_pids(hub.process.pid)
        assert len(children) == 3
        hub.end(signal.SIGKILL)
        await wait_until(lambda: not any(map(is_running, children)), PROCESS_TIMEOUT)
