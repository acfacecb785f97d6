"""`pabal work` has probes and metrics of its own: counters move in the process that does the work."""

import re
import subprocess
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

from pabal.hub import DatabaseUrls
from support.pabal_process import PROCESS_TIMEOUT, environment, run_hub, start_pabal
from support.wait import wait_until
from support.webhook import WEBHOOK_HEADERS, WEBHOOK_SECRET

pytestmark = pytest.mark.anyio


@contextmanager
def running_work(folder: Path, **variables: str) -> Generator[str]:
    """`pabal work` with PABAL_WORK_PORT; yields the address it prints."""
    env = environment(PABAL_DATA_DIR=str(folder / "data"), PABAL_WORK_PORT="0", **variables)
    with (folder / "work.log").open("w") as log:
        process = start_pabal("work", folder=folder, stdout=subprocess.PIPE, stderr=log, env=env)
    try:
        assert process.stdout
        yield process.stdout.readline().removeprefix("Probes and metrics are at ").strip()
    finally:
        process.terminate()
        process.communicate(timeout=PROCESS_TIMEOUT)


def metric(address: str, name: str) -> float:
    """The value of a metric without labels, or with exactly these; 0 if there is none."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", httpx2.get(f"{address}/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def say(address: str, text: str) -> None:
    payload = {"bot": {"id": "bot"}, "userRequest": {"user": {"id": "mina"}, "utterance": text}}
    assert httpx2.post(f"{address}/kakao/webhook", json=payload, headers=WEBHOOK_HEADERS).status_code == 200


async def test_counters_move_where_the_work_is_done_and_gauges_are_equal(
    folder: Path, database_urls: DatabaseUrls, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    variables = {
        "PABAL_DATABASE_URL": database_urls.direct or database_urls.main,
        "PABAL_ADMIN_PASSWORD": "correct horse",
        "PABAL_WEBHOOK_SECRET": WEBHOOK_SECRET.get_secret_value(),
    }
    with run_hub(folder, "serve", **variables) as hub, running_work(folder, **variables) as work:
        await wait_until(lambda: httpx2.get(f"{work}/readyz").status_code == 200, PROCESS_TIMEOUT)
        session = httpx2.post(f"{hub.address}/v1/sessions/create", json={}).json()
        say(hub.address, f"/pair {session['pairingCode']}")
        say(hub.address, "hello")
        waiting = 'pabal_lane_waiting{lane="relay"}'
        await wait_until(lambda: [metric(address, waiting) for address in (hub.address, work)] == [1, 1])

        await travel(timedelta(minutes=16))
        await wait_until(lambda: metric(work, "relay_message_expired_total") == 1, PROCESS_TIMEOUT)

        assert metric(hub.address, "relay_message_expired_total") == 0
        received = [metric(address, "relay_webhook_received_total") for address in (hub.address, work)]
        assert received == [2, 0]
        assert [httpx2.get(f"{work}{path}").status_code for path in ("/healthz", "/health", "/kakao/webhook")] == [
            200,
            200,
            404,
        ]
