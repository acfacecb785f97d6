"""The log of a hub under load whose database stops and starts: a few lines per outage, whatever the load."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx2
import pytest

from pabal.hub import DatabaseUrls
from support.pabal_process import PROCESS_TIMEOUT, RunningHub
from support.processes import read_log, wait_for_lines
from support.tcp_gate import TcpGate
from support.wait import wait_until
from support.webhook import WEBHOOK_HEADERS, WEBHOOK_SECRET

pytestmark = pytest.mark.anyio

OUTAGE_LINES = {
    "database unavailable": 1,
    "database available again": 1,
    "listener disconnected": 1,
    "listener connected again": 1,
}
FAILURES_PER_OUTAGE = 100


@pytest.fixture
async def gate(database_urls: DatabaseUrls) -> AsyncGenerator[TcpGate]:
    made = TcpGate(database_urls.direct or database_urls.main)
    await made.open()
    yield made
    await made.close()


class WebhookLoad:
    """Posts webhooks one after the other, and counts the responses by status."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.statuses = Counter[int]()

    async def run(self) -> None:
        async with httpx2.AsyncClient(base_url=self._address, headers=WEBHOOK_HEADERS, timeout=60) as web:
            while True:
                user = {"id": f"user {self.statuses.total()}"}
                payload = {"bot": {"id": "bot"}, "userRequest": {"user": user, "utterance": "hello"}}
                self.statuses[(await web.post("/kakao/webhook", json=payload)).status_code] += 1
                self.statuses[(await web.get("/readyz")).status_code] += 1

    async def wait_for(self, status: int, more: int) -> None:
        target = self.statuses[status] + more
        await wait_until(lambda: self.statuses[status] >= target, PROCESS_TIMEOUT)


def events_of(hub: RunningHub) -> Counter[str]:
    """How often each warning, error and line about an outage was logged."""
    return Counter(
        line["event"]
        for line in read_log(hub)
        if line["event"] in OUTAGE_LINES or line["level"] in {"warning", "error"}
    )


async def test_an_outage_under_load_is_a_few_lines(folder: Path, gate: TcpGate) -> None:
    variables = {
        "PABAL_DATABASE_URL": gate.url,
        "PABAL_ADMIN_PASSWORD": "correct horse",
        "PABAL_WEBHOOK_SECRET": WEBHOOK_SECRET.get_secret_value(),
        "PABAL_WEBHOOK_PER_CHANNEL": "0",
    }
    hub = await asyncio.to_thread(lambda: RunningHub(folder, "up", **variables))  # the gate works meanwhile
    load = WebhookLoad(hub.address)
    clients = [asyncio.create_task(load.run()) for _ in range(4)]
    try:
        await load.wait_for(200, 20)
        before = events_of(hub)
        for number in (1, 2):
            await gate.close()
            await load.wait_for(503, FAILURES_PER_OUTAGE)
            await gate.open()
            await wait_for_lines(hub, "database available again", number)
            await wait_for_lines(hub, "listener connected again", number)
            await load.wait_for(200, 20)
        during = events_of(hub) - before
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await asyncio.to_thread(hub.end)
        assert hub.process.stdout
        hub.process.stdout.close()

    assert during == {event: 2 * count for event, count in OUTAGE_LINES.items()}
