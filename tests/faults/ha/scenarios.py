"""Faults of a PostgreSQL cluster on three machines, under a workload of all lanes. `make faults-ha` runs them.

Each machine also runs a hub, behind HAProxy. All hubs name all database hosts, first the one that will fail.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import monotonic

import httpx2
from pydantic import SecretStr

from faults.ha.cluster import (
    HEAL_TIMEOUT,
    START_TIMEOUT,
    TTL,
    DatabaseCluster,
    connect_owner,
    run_haproxy,
)
from faults.ha.network import OUTSIDE, Node
from faults.workload import Verdict, Workload
from pabal.hub import DatabaseUrls, open_hub
from pabal.settings import Settings
from support.fake_kakao import run_fake_kakao
from support.fault_proxy import FaultProxy
from support.notifications import register_builtin_templates
from support.pabal_process import PABAL, environment, pabal
from support.relay_rows import Chat
from support.wait import wait_until
from support.webhook import WEBHOOK_SECRET

BEFORE, FLOW, AFTER, OUTAGE = 7.0, 4.0, 6.0, 8.0
"""Seconds of load before the fault, with the new primary, and after the machine is back; and of a fault that lasts."""
NOTABLE_GAP = 1.0
"""Seconds without an accepted message that count as an outage of a lane."""
SHORT_GAP = 3.0
LIMIT, WAIT_FOR_SILENT, WAIT_FOR_ETCD = TTL + 3.0, 2.0, 2.0
"""Seconds after which all lanes must accept again, and what Patroni and etcd may add.

Patroni asks the old primary once more, for two seconds if it is silent. A new leader of etcd renews all leases.
"""


@dataclass(slots=True)
class Trial:
    """One run of a fault."""

    cluster: DatabaseCluster
    primary: Node
    workload: Workload
    proxies: list[FaultProxy]
    started: float = 0.0
    """When the fault began."""
    failed_over_after: float | None = None
    """Seconds until Patroni had another primary; None if there was no need."""

    @property
    def standby(self) -> Node:
        return next(node for node in self.cluster.nodes if node is not self.primary)

    async def wait_for_another_primary(self) -> None:
        others = [node for node in self.cluster.nodes if node is not self.primary]

        async def is_replaced() -> bool:
            return any([await self.cluster.is_primary(node) for node in others])

        await wait_until(is_replaced, within=TTL + 30)
        self.failed_over_after = monotonic() - self.started
        accepted = {lane: len(times) for lane, times in self.workload.accepted_at.items()}
        lanes = self.workload.accepted_at
        await wait_until(lambda: all(len(lanes[lane]) > accepted[lane] for lane in lanes), within=TTL + 30)
        await asyncio.sleep(FLOW)


Step = Callable[[Trial], Awaitable[None]]


async def kill_machine(trial: Trial) -> None:
    """Kill PostgreSQL, Patroni and etcd of the primary's machine."""
    trial.primary.send_signal(signal.SIGKILL, spared="hub")
    await trial.wait_for_another_primary()


async def restart_machine(trial: Trial) -> None:
    trial.cluster.start_node(trial.primary)


async def kill_server(trial: Trial) -> None:
    """Kill PostgreSQL only; its Patroni lives."""
    os.kill(trial.cluster.server_pid(trial.primary), signal.SIGKILL)
    await trial.wait_for_another_primary()


async def stop_machine(trial: Trial) -> None:
    trial.primary.send_signal(signal.SIGSTOP, spared="hub")
    await trial.wait_for_another_primary()


async def continue_machine(trial: Trial) -> None:
    trial.primary.send_signal(signal.SIGCONT, spared="hub")


async def cut_link(trial: Trial) -> None:
    trial.primary.set_link("down")
    await trial.wait_for_another_primary()


async def join_link(trial: Trial) -> None:
    trial.primary.set_link("up")


async def switch_over(trial: Trial) -> None:
    await trial.cluster.switch_over(trial.primary)
    await trial.wait_for_another_primary()


async def kill_standby(trial: Trial) -> None:
    trial.standby.send_signal(signal.SIGKILL, spared="hub")
    await asyncio.sleep(OUTAGE)


async def restart_standby(trial: Trial) -> None:
    trial.cluster.start_node(trial.standby)


async def impair_network(trial: Trial) -> None:
    for proxy in trial.proxies:
        proxy.delay, proxy.loss = 0.02, 0.02
    await asyncio.sleep(OUTAGE)


async def silence_primary(trial: Trial) -> None:
    """The hubs do not reach the primary, which works: there is no fail-over."""
    trial.proxies[0].drop_bytes()
    await asyncio.sleep(OUTAGE)


async def repair_network(trial: Trial) -> None:
    for proxy in trial.proxies:
        proxy.delay, proxy.loss = 0.0, 0.0
    trial.proxies[0].reset()
    trial.proxies[0].pass_bytes()


async def do_nothing(_: Trial) -> None:
    """Nothing to heal."""


@dataclass(frozen=True, slots=True)
class ClusterScenario:
    """A fault and how it is healed."""

    name: str
    fault: Step
    heal: Step
    can_write: bool = False
    """Whether the hubs can write all the time: then no lane may have a gap of more than `SHORT_GAP`."""
    is_silent: bool = False
    """Whether the machine neither answers nor refuses."""
    leads_etcd: bool = False
    """Whether the primary's machine is also the leader of etcd."""
    through_proxies: bool = False
    through_haproxy: bool = False
    """Whether the hubs reach PostgreSQL through HAProxy."""

    @property
    def limit(self) -> float:
        if self.can_write:
            return SHORT_GAP
        return LIMIT + WAIT_FOR_SILENT * self.is_silent + WAIT_FOR_ETCD * self.leads_etcd


SCENARIOS = (
    ClusterScenario("machine of the primary killed with kill -9", kill_machine, restart_machine),
    ClusterScenario("the same, hubs behind HAProxy", kill_machine, restart_machine, through_haproxy=True),
    ClusterScenario("the same, also the leader of etcd", kill_machine, restart_machine, leads_etcd=True),
    ClusterScenario("machine of the primary stopped (SIGSTOP)", stop_machine, continue_machine, is_silent=True),
    ClusterScenario(
        "the same, also the leader of etcd", stop_machine, continue_machine, is_silent=True, leads_etcd=True
    ),
    ClusterScenario("link of the primary down", cut_link, join_link, is_silent=True),
    ClusterScenario("PostgreSQL of the primary killed with kill -9", kill_server, do_nothing),
    ClusterScenario("switchover", switch_over, do_nothing),
    ClusterScenario("machine of a standby killed with kill -9", kill_standby, restart_standby, can_write=True),
    ClusterScenario(
        f"20 ms and 2 % loss between hubs and databases for {OUTAGE:.0f} s",
        impair_network,
        repair_network,
        can_write=True,
        through_proxies=True,
    ),
    ClusterScenario(
        f"primary silent for the hubs for {OUTAGE:.0f} s", silence_primary, repair_network, through_proxies=True
    ),
)


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The oracle's verdict and the times of one run, in seconds."""

    verdict: Verdict
    failed_over_after: float | None
    recovered_after: dict[str, float]
    """From the fault until each lane accepted again."""
    healing_gap: float
    """The longest gap of a lane while and after the machine came back."""
    ended_hubs: list[str] = field(default_factory=list[str])
    errors: list[str] = field(default_factory=list[str])
    """Log lines of the hubs that a fault must not cause: tracebacks."""

    def faults(self, scenario: ClusterScenario) -> list[str]:
        texts = [f"{name}: {len(rows)}" for name, rows in self.verdict.faults().items()]
        texts += [
            f"{lane}: accepted again after {after:.1f} s, limit {scenario.limit:.0f} s"
            for lane, after in self.recovered_after.items()
            if after > scenario.limit
        ]
        return texts + [f"ended: {name}" for name in self.ended_hubs] + self.errors


@asynccontextmanager
async def open_proxies(nodes: list[Node]) -> AsyncGenerator[tuple[list[FaultProxy], dict[int, str]]]:
    """A proxy in front of each server, on the address outside of the machines."""
    proxies = [FaultProxy(node.address, 5432) for node in nodes]
    servers = [await asyncio.start_server(partial(serve_quietly, proxy), OUTSIDE, 0) for proxy in proxies]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    try:
        yield proxies, {node.number: f"{OUTSIDE}:{port}" for node, port in zip(nodes, ports, strict=True)}
    finally:
        for server, proxy in zip(servers, proxies, strict=True):
            server.close()
            proxy.reset()


async def serve_quietly(proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Python 3.11 logs a traceback for each connection that is cancelled when the loop ends."""
    with suppress(asyncio.CancelledError):
        await proxy.serve(reader, writer)


def start_hub(node: Node, urls: DatabaseUrls, keys: str) -> None:
    assert urls.direct
    variables = environment(
        PABAL_DATA_DIR=str(node.folder / "hub"),
        PABAL_HOST=node.address,
        PABAL_PORT="8700",
        PABAL_DATABASE_URL=urls.main,
        PABAL_DATABASE_DIRECT_URL=urls.direct,
        PABAL_KEYS=keys,
        PABAL_WEBHOOK_SECRET=WEBHOOK_SECRET.get_secret_value(),
        PABAL_TRUSTED_PROXIES=OUTSIDE,
        PABAL_CALLBACK_ALLOW=f"http://{OUTSIDE}",
        PABAL_WEBHOOK_PER_CONVERSATION="0",
        PABAL_WEBHOOK_PER_CHANNEL="0",
    )
    node.start("hub", PABAL, "up", variables=variables)


@asynccontextmanager
async def run_hubs(cluster: DatabaseCluster, urls: DatabaseUrls, keys: str) -> AsyncGenerator[None]:
    """Run a hub on each machine, until they are ready."""
    for node in cluster.nodes:
        start_hub(node, urls, keys)
    try:
        for node in cluster.nodes:

            async def is_ready(node: Node = node) -> bool:
                assert node.processes["hub"].poll() is None, node.read_log("hub")[-3000:]
                try:
                    return (await cluster.web.get(f"http://{node.address}:8700/readyz")).status_code == 200
                except httpx2.HTTPError:
                    return False

            await wait_until(is_ready, START_TIMEOUT)
        yield
    finally:
        for node in cluster.nodes:
            node.stop("hub")


@asynccontextmanager
async def open_trial(
    cluster: DatabaseCluster, scenario: ClusterScenario, folder: Path, database: str
) -> AsyncGenerator[Trial]:
    await cluster.create_database(database)
    primary = await cluster.primary()
    nodes = [primary, *(node for node in cluster.nodes if node is not primary)]
    owner_url = cluster.url("postgres", database, primary)
    async with AsyncExitStack() as stack:
        proxies: list[FaultProxy] = []
        urls = DatabaseUrls(cluster.url("pabal_hub", database, primary), owner_url)
        if scenario.through_proxies:
            proxies, through = await stack.enter_async_context(open_proxies(nodes))
            urls = DatabaseUrls(*(cluster.url(role, database, primary, through) for role in ("pabal_hub", "postgres")))
        if scenario.through_haproxy:
            through = {node.number: f"{OUTSIDE}:5000" for node in nodes[:1]}
            urls = DatabaseUrls(*(cluster.url(role, database, primary, through) for role in ("pabal_hub", "postgres")))
        hubs_of_nodes = [f"{node.address}:8700" for node in cluster.nodes]
        haproxy = stack.enter_context(run_haproxy(folder, hubs_of_nodes, cluster.nodes))
        keys = pabal("key", "generate", folder=folder).stdout.strip()
        await stack.enter_async_context(run_hubs(cluster, urls, keys))
        web = await stack.enter_async_context(httpx2.AsyncClient(base_url=haproxy, timeout=10))

        async def is_served() -> bool:
            return (await web.get("/readyz")).status_code == 200

        await wait_until(is_served)
        settings = Settings(
            _env_file=None,  # pyright: ignore[reportCallIssue]
            data_dir=folder / "actors",
            webhook_secret=WEBHOOK_SECRET,
            keys=SecretStr(keys),
        )
        hub = await stack.enter_async_context(open_hub(settings, urls))
        kakao = await stack.enter_async_context(run_fake_kakao(OUTSIDE))
        db = await connect_owner(owner_url)
        owner = await Chat(db).owner(answer_mode="callback")
        await Chat(db).conversation(owner)
        await register_builtin_templates(hub)

        async def travel(by: timedelta) -> None:
            connection = await connect_owner(owner_url)
            await connection.execute(
                "create or replace function pabal.now() returns timestamptz language sql stable parallel safe "
                f"return now() + make_interval(secs => {by.total_seconds()})"
            )
            await connection.close()

        yield Trial(cluster, primary, Workload(hub, web, None, kakao, owner, db, owner_url, travel), proxies)


async def run_cluster_scenario(
    cluster: DatabaseCluster, scenario: ClusterScenario, folder: Path, database: str
) -> TrialResult:
    async with open_trial(cluster, scenario, folder, database) as trial:
        workload = trial.workload
        hubs = {node.name: node.processes["hub"] for node in cluster.nodes}
        log_sizes = {node.name: (node.folder / "hub.log").stat().st_size for node in cluster.nodes}
        async with workload.running():
            await wait_until(lambda: min(map(len, workload.accepted_at.values())) >= 20, within=60)
            await cluster.move_etcd_leader(trial.primary if scenario.leads_etcd else trial.standby)
            await asyncio.sleep(BEFORE)  # longer than Patroni's loop: the move renewed its lease
            workload.db.terminate()  # the oracle connects again when the fault is over
            started = trial.started = monotonic()
            await scenario.fault(trial)
            healed = monotonic()
            await scenario.heal(trial)
            await asyncio.sleep(AFTER)
            await cluster.wait_until_healthy(HEAL_TIMEOUT)
        verdict = await workload.judge(0.0)
        return TrialResult(
            verdict,
            trial.failed_over_after,
            {lane: end_of_outage(times, started, healed) for lane, times in workload.accepted_at.items()},
            max(longest_gap_after(times, healed) for times in workload.accepted_at.values()),
            [name for name, process in hubs.items() if process.poll() is not None],
            [line for node in cluster.nodes for line in unexpected_lines(node, log_sizes[node.name])],
        )


def end_of_outage(times: list[float], started: float, healed: float) -> float:
    """Seconds from `started` to the end of the last notable gap that began before `healed`."""
    ends = [
        later - started
        for earlier, later in pairwise(times)
        if later > started and earlier < healed and later - max(earlier, started) > NOTABLE_GAP
    ]
    return max(ends, default=0.0)


def longest_gap_after(times: list[float], healed: float) -> float:
    return max((later - earlier for earlier, later in pairwise(times) if earlier >= healed), default=0.0)


def unexpected_lines(node: Node, start: int) -> list[str]:
    """Log lines of the hub with a traceback: a fault of the database is no defect of the hub."""
    with (node.folder / "hub.log").open("rb") as log:
        log.seek(start)
        lines = log.read().decode(errors="replace").splitlines()
    return [line[:2000] for line in lines if is_unexpected(line)]


def is_unexpected(line: str) -> bool:
    try:
        return "exception" in json.loads(line)
    except ValueError:
        return line.startswith("Traceback")
