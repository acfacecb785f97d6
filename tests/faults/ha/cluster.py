"""PostgreSQL with Patroni and etcd on three machines, from the files in deploy/ha."""

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import yaml

from faults.ha.network import OUTSIDE, SUBNET, Node, open_network
from pabal.core.database_url import parse_database_url
from pabal.db.embedded.binaries import ensure_runnable, find_binaries
from pabal.db.embedded.os_user import find_server_user
from pabal.db.migrate import apply_migrations
from support.clusters import Connection
from support.pabal_process import SERVER_USER
from support.wait import wait_until

ROOT = Path(__file__).parents[3]
CONFIGURATION = ROOT / "deploy" / "ha"
PATRONI = ROOT / ".venv-ha" / "bin" / "patroni"
TTL = yaml.safe_load((CONFIGURATION / "patroni.yaml").read_text())["bootstrap"]["dcs"]["ttl"]
USER = SERVER_USER["PABAL_PG_USER"]
SHARED_BY_ALL = {"ETCD_INITIAL_CLUSTER", "PATRONI_ETCD3_HOSTS"}
PRIMARY, STANDBY = "leader, running", "quorum_standby, streaming"
START_TIMEOUT, HEAL_TIMEOUT = 90.0, 120.0


def read_environment(name: str, node: Node, **changes: str) -> dict[str, str]:
    """The variables of a file in deploy/ha, with the addresses and the name of this node."""
    text = (CONFIGURATION / f"{name}.env").read_text()
    variables = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    for key, value in re.findall(r"^([A-Z0-9_]+)=(.*)$", text, re.MULTILINE):
        if key not in SHARED_BY_ALL:
            value = value.replace("10.0.0.1:", f"{node.address}:").replace("db1", node.name)  # noqa: PLW2901
        variables[key] = value.replace("10.0.0.", f"{SUBNET}.")
    return variables | changes


@dataclass(slots=True)
class DatabaseCluster:
    """Three machines with etcd, Patroni and PostgreSQL. `password` is that of all roles."""

    nodes: list[Node]
    binaries: Path
    password: str
    web: httpx2.AsyncClient

    def start_node(self, node: Node) -> None:
        """Start etcd and Patroni, which starts PostgreSQL."""
        etcd = read_environment("etcd", node, ETCD_DATA_DIR=str(node.folder / "etcd"))
        node.start("etcd", "etcd", "--logger=zap", variables=etcd, user=USER)
        patroni = read_environment(
            "patroni",
            node,
            PATRONI_POSTGRESQL_DATA_DIR=str(node.folder / "data"),
            PATRONI_POSTGRESQL_BIN_DIR=str(self.binaries),
            PATRONI_POSTGRESQL_PGPASS=str(node.folder / "pgpass"),
            PATH=f"{self.binaries}:{os.environ['PATH']}",
            PABAL_DB_PASSWORD=self.password,
            **dict.fromkeys(
                ("PATRONI_SUPERUSER_PASSWORD", "PATRONI_REPLICATION_PASSWORD", "PATRONI_RESTAPI_PASSWORD"),
                self.password,
            ),
        )
        node.start("patroni", PATRONI, node.folder / "patroni", variables=patroni, user=USER)

    def prepare_node(self, node: Node) -> None:
        """The configuration of Patroni: the file in deploy/ha, and a folder for the socket, which is shared here."""
        folder = node.folder / "patroni"
        folder.mkdir()
        shutil.copy(CONFIGURATION / "patroni.yaml", folder / "1.yaml")
        local = {
            "bootstrap": {"post_bootstrap": str(CONFIGURATION / "create-database.sh")},
            "postgresql": {"parameters": {"unix_socket_directories": str(node.folder)}},
        }
        (folder / "2.yaml").write_text(yaml.safe_dump(local))
        shutil.chown(node.folder, USER, USER)

    async def roles(self) -> dict[str, str]:
        """The role and state of each member, as the first machine that answers sees them."""
        for node in self.nodes:
            for name, process in node.processes.items():
                assert process.poll() is None, f"{name} ended:\n{node.read_log(name)[-2000:]}"
        for node in self.nodes:
            try:
                response = await self.web.get(f"http://{node.address}:8008/cluster")
                members = response.raise_for_status().json()["members"]
            except (httpx2.HTTPError, KeyError, ValueError):
                continue
            return {member["name"]: f"{member['role']}, {member['state']}" for member in members}
        return {}

    async def is_healthy(self) -> bool:
        roles = list((await self.roles()).values())
        return sorted(roles) == [PRIMARY, *[STANDBY] * (len(self.nodes) - 1)]

    async def wait_until_healthy(self, within: float) -> None:
        """Wait until there is a primary and all others stream from it."""
        try:
            await wait_until(self.is_healthy, within)
        except TimeoutError:
            raise TimeoutError(f"the cluster is not healthy: {await self.roles()}") from None

    async def is_primary(self, node: Node) -> bool:
        try:
            response = await self.web.get(f"http://{node.address}:8008/primary")
        except httpx2.HTTPError:
            return False
        return response.status_code == 200

    async def primary(self) -> Node:
        roles = await self.roles()
        return next(node for node in self.nodes if roles.get(node.name) == PRIMARY)

    async def move_etcd_leader(self, target: Node) -> None:
        """Make etcd on this machine the leader of etcd."""
        members = {node.number: await self._ask_etcd(node, "status") for node in self.nodes}
        leader = members[target.number]["leader"]
        target_id = members[target.number]["header"]["member_id"]
        if leader == target_id:
            return
        node = next(node for node in self.nodes if members[node.number]["header"]["member_id"] == leader)
        await self._ask_etcd(node, "transfer-leadership", targetID=target_id)

    async def _ask_etcd(self, node: Node, action: str, **body: str) -> dict[str, Any]:
        response = await self.web.post(f"http://{node.address}:2379/v3/maintenance/{action}", json=body)
        return response.raise_for_status().json()

    async def switch_over(self, primary: Node) -> None:
        """Ask Patroni to make another machine the primary; returns when it has."""
        response = await self.web.post(
            f"http://{primary.address}:8008/switchover",
            json={"leader": primary.name},
            auth=("patroni", self.password),
            timeout=60,
        )
        assert response.status_code == 200, response.text

    def server_pid(self, node: Node) -> int:
        return int((node.folder / "data" / "postmaster.pid").read_text().split()[0])

    def url(self, role: str, database: str, first: Node, through: dict[int, str] | None = None) -> str:
        """A URL of all hosts, `first` listed first, or of those in `through`: a proxy for each number of a node."""
        nodes = [first, *(node for node in self.nodes if node is not first)]
        addresses = through or {node.number: f"{node.address}:5432" for node in nodes}
        hosts = ",".join(addresses[node.number] for node in nodes if node.number in addresses)
        return f"postgresql://{role}:{self.password}@{hosts}/{database}?target_session_attrs=read-write"

    async def create_database(self, name: str) -> None:
        primary = await self.primary()
        connection = await connect_owner(self.url("postgres", "postgres", primary))
        try:
            owner = await connection.fetchval("select datdba::regrole::text from pg_database where datname = 'pabal'")
            assert owner == "pabal", "the bootstrap of the cluster did not create the hub's database"
            if not await connection.fetchval("select exists (select from pg_roles where rolname = 'pabal_hub')"):
                await connection.execute(f"create role pabal_hub login password '{self.password}'")
            await connection.execute(f"create database {name}")
        finally:
            await connection.close()
        await apply_migrations(self.url("postgres", name, primary), login="pabal_hub")


async def connect_owner(url: str) -> Connection:
    """Connect to the writable host of a URL, also while others are silent."""
    hosts = parse_database_url(url).hosts
    errors: list[str] = []
    for host in hosts:
        try:
            return await asyncpg.connect(url, host=host.name, port=host.port, timeout=3)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.TargetServerAttributeNotMatched) as error:
            errors.append(f"{host}: {error!r}")
    raise ConnectionError("; ".join(errors))


@asynccontextmanager
async def open_cluster(folder: Path) -> AsyncGenerator[DatabaseCluster]:
    """Start the cluster, and wait until all three machines are in it."""
    user = find_server_user(USER)
    binaries = ensure_runnable(find_binaries(None), user, folder)
    assert user.run((PATRONI, "--version")).returncode == 0, f"the user {USER} cannot run {PATRONI}"
    with open_network(folder) as nodes:
        async with httpx2.AsyncClient(timeout=2) as web:
            cluster = DatabaseCluster(nodes, binaries.directory, secrets.token_hex(8), web)
            for node in nodes:
                cluster.prepare_node(node)
                cluster.start_node(node)
            await cluster.wait_until_healthy(START_TIMEOUT)
            yield cluster


@contextmanager
def run_haproxy(folder: Path, hubs: list[str], nodes: list[Node]) -> Generator[str]:
    """Run HAProxy outside of the machines, with PostgreSQL on port 5000; yields the address of the hubs."""
    variables = {"PATH": os.environ["PATH"], "HUBS_LISTEN": f"{OUTSIDE}:8700", "DATABASE_LISTEN": f"{OUTSIDE}:5000"}
    variables |= {f"HUB_{number}": hub for number, hub in enumerate(hubs, 1)}
    variables |= {f"DB_{node.number}": f"{node.address}:5432" for node in nodes}
    with (folder / "haproxy.log").open("ab") as log:
        process = subprocess.Popen(
            ["haproxy", "-db", "-f", CONFIGURATION / "haproxy.cfg"], stdout=log, stderr=log, env=variables
        )
    try:
        yield f"http://{OUTSIDE}:8700"
        assert process.poll() is None, (folder / "haproxy.log").read_text()
    finally:
        process.terminate()
        process.wait()
