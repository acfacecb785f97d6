"""Two hubs as cells behind one HAProxy map, with the files in deploy/ha/cells: their events cross by signed push."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from faults.ha.cluster import CONFIGURATION
from pabal.client import AsyncClient, PulledEvent
from support.pabal_process import RunningHub, fresh_folder, pabal_json, run_hub
from support.wait import wait_until

CELLS = CONFIGURATION / "cells"
ENTRY_PORT, BRIDGE_PORTS = 8780, {"a": 8781, "b": 8782}
HOSTS = {"shop": "127.0.0.11", "billing": "127.0.0.12", "cell-a": "127.0.0.13", "cell-b": "127.0.0.14"}
"""Addresses on loopback stand for host names: they need no DNS."""
ORIGINS = ",".join(f"http://{host}" for host in HOSTS.values())
HOMES = {"shop": "cell-a", "billing": "cell-b", "cell-a": "cell-a", "cell-b": "cell-b"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A hub with a database of its own, and the secrets of its services."""

    name: str
    folder: Path
    hub: RunningHub
    secrets: dict[str, str]

    def add_service(self, name: str) -> None:
        added = pabal_json("service", "add", name, "--permission", "write", folder=self.folder)
        self.secrets[name] = added["client_secret"]

    def push_to(self, cell: str, service: str, *event_types: str) -> str:
        """Push events of this service to the bridge of another cell; returns the signing secret."""
        url = f"http://{HOSTS[cell]}:{ENTRY_PORT}/bridge"
        arguments = ("subscription", "add", *event_types, "--service", service, "--url", url)
        return pabal_json(*arguments, folder=self.folder, PABAL_CALLBACK_ALLOW=ORIGINS)["secret"]


@contextmanager
def run_cell(name: str, *services: str) -> Generator[Cell]:
    with fresh_folder() as folder, run_hub(folder, PABAL_CALLBACK_ALLOW=ORIGINS) as hub:
        cell = Cell(name, folder, hub, {})
        for service in services:
            cell.add_service(service)
        yield cell


@contextmanager
def run_program(folder: Path, name: str, *command: object, **variables: str) -> Generator[None]:
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=log,
            stderr=log,
            cwd=CELLS,
            env=dict(os.environ) | {"PYTHONDONTWRITEBYTECODE": "1"} | variables,
        )
    try:
        yield
        assert process.poll() is None, (folder / f"{name}.log").read_text()
    finally:
        process.terminate()
        process.wait()


@contextmanager
def run_bridge(into: Cell, source: Cell, secrets: list[str]) -> Generator[None]:
    """The bridge from `source` into a cell."""
    letter, service = into.name[-1], source.name.replace("-", "_")
    with run_program(
        into.folder,
        "bridge",
        *(sys.executable, "-m", "uvicorn", "bridge:app", "--host", "127.0.0.1", "--port", BRIDGE_PORTS[letter]),
        BRIDGE_HUB=into.hub.address,
        BRIDGE_SERVICE=service,
        BRIDGE_SERVICE_SECRET=into.secrets[service],
        BRIDGE_WEBHOOK_SECRETS=",".join(secrets),
    ):
        yield


@contextmanager
def run_entry(one: Cell, two: Cell) -> Generator[None]:
    cell_map = one.folder / "cells.map"
    cell_map.write_text("".join(f"{HOSTS[name]} {cell}\n" for name, cell in HOMES.items()))
    with run_program(
        one.folder,
        "haproxy",
        *("haproxy", "-db", "-f", CELLS / "haproxy.cfg"),
        CELLS_LISTEN=f":{ENTRY_PORT}",
        CELLS_MAP=str(cell_map),
        CELL_A=one.hub.address.removeprefix("http://"),
        CELL_B=two.hub.address.removeprefix("http://"),
        BRIDGE_A=f"127.0.0.1:{BRIDGE_PORTS['a']}",
        BRIDGE_B=f"127.0.0.1:{BRIDGE_PORTS['b']}",
    ):
        yield


@asynccontextmanager
async def open_cells() -> AsyncGenerator[tuple[Cell, Cell]]:
    """Cell a is the home of shop, cell b that of billing. In the other cell, a service is pushed across."""
    async with AsyncExitStack() as stack:
        one = stack.enter_context(run_cell("cell-a", "shop", "billing", "cell_b"))
        two = stack.enter_context(run_cell("cell-b", "shop", "billing", "cell_a"))
        into_two = [one.push_to("cell-b", "billing", "order.*"), one.push_to("cell-b", "cell_b", "news.*")]
        into_one = [two.push_to("cell-a", "shop", "order.*"), two.push_to("cell-a", "cell_a", "news.*")]
        pabal_json("subscription", "add", "news.*", "--service", "shop", folder=one.folder)
        pabal_json("subscription", "add", "news.*", "--service", "billing", folder=two.folder)
        stack.enter_context(run_entry(one, two))
        stack.enter_context(run_bridge(two, one, into_two))
        stack.enter_context(run_bridge(one, two, into_one))
        async with httpx2.AsyncClient() as web:
            await wait_until(lambda: are_served(web), within=30)
        yield one, two


async def are_served(web: httpx2.AsyncClient) -> bool:
    """Whether both hubs and both bridges answer behind HAProxy. A bridge refuses a request without a signature."""
    try:
        hubs = [await web.get(f"http://{HOSTS[cell]}:{ENTRY_PORT}/readyz") for cell in ("cell-a", "cell-b")]
        bridges = [await web.post(f"http://{HOSTS[cell]}:{ENTRY_PORT}/bridge") for cell in ("cell-a", "cell-b")]
    except httpx2.HTTPError:
        return False
    return [response.status_code for response in (*hubs, *bridges)] == [200, 200, 401, 401]


def client_of(service: str, secret: str) -> AsyncClient:
    """A client that knows its own host name only; the map finds its cell."""
    return AsyncClient(f"http://{HOSTS[service]}:{ENTRY_PORT}", service, secret)


async def take_events(client: AsyncClient, count: int) -> list[PulledEvent]:
    """Consume until this many events were handled."""
    events: list[PulledEvent] = []
    stop = asyncio.Event()

    async def handle(event: PulledEvent) -> None:
        events.append(event)
        if len(events) == count:
            stop.set()

    async with asyncio.timeout(60):
        await client.consume(handle, stop=stop)
    return events


async def check_cells() -> None:
    """Events cross in both directions, once each, and a broadcast reaches both cells without coming back."""
    async with open_cells() as (one, two):
        async with (
            client_of("shop", one.secrets["shop"]) as shop,
            client_of("billing", two.secrets["billing"]) as billing,
        ):
            for number in range(20):
                await shop.publish("order.placed", {"id": number}, target="billing", ordering_key="customer")
                await billing.publish("order.paid", {"id": number}, target="shop", ordering_key="customer")
            orders, payments = await asyncio.gather(take_events(billing, 20), take_events(shop, 20))
            assert [event.payload["id"] for event in orders] == [*range(20)], orders
            assert [event.payload["id"] for event in payments] == [*range(20)], payments
            assert {event.source_service for event in orders} == {"cell_a"}

            await shop.publish("news.spring", {"from": "a"})
            await billing.publish("news.autumn", {"from": "b"})
            [[news_in_b], [news_in_a]] = await asyncio.gather(take_events(billing, 1), take_events(shop, 1))
            assert (news_in_b.payload["from"], news_in_a.payload["from"]) == ("a", "b")

            def is_drained() -> bool:
                return all(count_open_events(cell) == 0 for cell in (one, two))

            await wait_until(is_drained, within=60)
            for cell in (one, two):  # of each cell 20 and a broadcast: nothing came back
                published = [event for event in list_events(cell) if event["source_service"] != "hub"]
                roots = [event for event in published if event["parent_id"] is None]
                assert len(roots) == 42, (cell.name, roots)
        async with httpx2.AsyncClient() as web:
            unknown = await web.get(f"http://127.0.0.1:{ENTRY_PORT}/readyz")
            assert unknown.status_code == 404


def list_events(cell: Cell) -> list[dict[str, object]]:
    return pabal_json("event", "list", "--limit", "200", folder=cell.folder)["items"]


def count_open_events(cell: Cell) -> int:
    return sum(event["status"] not in {"completed", "dead_letter"} for event in list_events(cell))
