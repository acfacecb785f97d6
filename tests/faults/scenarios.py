"""Long faults under a workload of all lanes, on a durable PostgreSQL of their own. `make faults` runs them."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import monotonic

import asyncpg
import httpx2

from db.test_schema_fit import BREAKING, REVERSE, newer_schema
from faults.workload import Verdict, Workload, open_workload
from pabal.db import embedded
from pabal.db.migrate import apply_migrations
from pabal.hub import DatabaseUrls, open_hub
from pabal.settings import Settings
from support import pgbouncer
from support.clusters import open_connection
from support.fake_kakao import run_fake_kakao
from support.notifications import register_builtin_templates
from support.pabal_process import RunningHub, environment, pabal_process, start_pabal
from support.pgbouncer import PgBouncer
from support.relay_rows import Chat
from support.wait import wait_until
from support.webhook import WEBHOOK_SECRET

BEFORE, AFTER, OUTAGE = 4.0, 12.0, 6.0
"""Seconds of load before and after each fault, and of faults that last."""
STORMS, STORM_PAUSE = 20, 0.2
WINDOW = 1.0
"""Seconds over which the pace after a fault is compared with the pace before it."""
TERMINATE = """
select count(pg_terminate_backend(pid)) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid()
"""

FAKE_CLOCK = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
"""libfaketime, of the Debian package of this name."""
WRITE_LOG = "select pg_logical_emit_message(true, 'ballast', repeat('x', 4000000))"


@dataclass(slots=True)
class Machine:
    """A PostgreSQL that can be killed, stopped and restarted at its address, and a hub process if there is one."""

    folder: Path
    server: embedded.EmbeddedServer
    child: RunningHub | None = None
    worker: "subprocess.Popen[str] | None" = None
    child_variables: dict[str, str] = field(default_factory=dict[str, str])
    pooler: PgBouncer | None = None

    @property
    def urls(self) -> DatabaseUrls:
        main = self.pooler.url if self.pooler else self.server.address.hub_url
        return DatabaseUrls(main, self.server.address.owner_url)

    async def restart_server(self) -> None:
        port = self.server.address.port
        self.server.stop()
        self.server = await asyncio.to_thread(embedded.start_embedded_server, self.folder, port=port)

    def server_processes(self) -> list[int]:
        children = Path(f"/proc/{self.server.pid}/task/{self.server.pid}/children").read_text().split()
        return [self.server.pid, *map(int, children)]

    def start_hub(self) -> None:
        """Start `pabal serve` and `pabal work`."""
        self.child = RunningHub(self.folder, "serve", **self.child_variables)
        variables = environment(PABAL_DATA_DIR=str(self.folder / "data"), **self.child_variables)
        with (self.folder / "work.log").open("a") as log:
            self.worker = start_pabal("work", folder=self.folder, stdout=log, stderr=log, env=variables)

    async def wait_for_worker(self) -> None:
        """Wait until `pabal work` runs. A process does not start on a schema newer than its own."""
        assert self.worker
        pid = self.worker.pid
        async with open_connection(self.server.address.owner_url) as owner:

            async def is_running() -> bool:
                return await owner.fetchval("select exists (select from pabal.workers where pid = $1)", pid)

            await wait_until(is_running, within=60)

    def end_hub(self, by: signal.Signals = signal.SIGKILL) -> None:
        if self.child:
            self.child.end(by)
            assert self.child.process.stdout
            self.child.process.stdout.close()
        if self.worker:
            self.worker.send_signal(by)
            self.worker.wait()

    async def travel(self, by: timedelta) -> None:
        """Move the database's clock, once."""
        async with open_connection(self.server.address.owner_url) as owner:
            await owner.execute(
                "create or replace function pabal.now() returns timestamptz language sql stable parallel safe "
                f"return now() + make_interval(secs => {by.total_seconds()})"
            )


Fault = Callable[[Machine, Workload], Awaitable[None]]


async def halt_network(_: Machine, workload: Workload) -> None:
    assert workload.proxy
    workload.proxy.halt()
    await asyncio.sleep(OUTAGE)
    workload.proxy.pass_bytes()


async def cut_network(_: Machine, workload: Workload) -> None:
    """All bytes are lost for a while; then new connections work, and the old ones stay silent."""
    assert workload.proxy
    workload.proxy.drop_bytes()
    await asyncio.sleep(OUTAGE)
    workload.proxy.lose_open_connections()
    workload.proxy.pass_bytes()


async def lose_connections(_: Machine, workload: Workload) -> None:
    """The open connections become silent, as behind a firewall or proxy that forgot them; new ones work."""
    assert workload.proxy
    workload.proxy.lose_open_connections()


async def reset_connections(_: Machine, workload: Workload) -> None:
    assert workload.proxy
    for _number in range(STORMS):
        workload.proxy.reset()
        await asyncio.sleep(STORM_PAUSE)


async def lose_answers(_: Machine, workload: Workload) -> None:
    assert workload.proxy
    workload.proxy.swallow_answers()
    await asyncio.sleep(OUTAGE)
    workload.proxy.lose_open_connections()
    workload.proxy.pass_bytes()


async def storm_backends(machine: Machine, _: Workload) -> None:
    async with open_connection(machine.server.address.owner_url) as owner:
        for _number in range(STORMS):
            await owner.execute(TERMINATE)
            await asyncio.sleep(STORM_PAUSE)


async def kill_server(machine: Machine, _: Workload) -> None:
    os.kill(machine.server.pid, signal.SIGKILL)
    await machine.restart_server()


async def restart_server(machine: Machine, _: Workload) -> None:
    await machine.restart_server()


async def stop_server(machine: Machine, _: Workload) -> None:
    """The server hangs: its kernel still acknowledges bytes."""
    pids = machine.server_processes()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(OUTAGE)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


async def fill_disk(machine: Machine, _: Workload) -> None:
    """No space is left on the server's disk; then there is again, and a server that ended is restarted."""
    ballast = machine.folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    with suppress(asyncpg.PostgresError, OSError):
        async with open_connection(machine.server.address.owner_url) as owner:
            while True:  # until the server cannot write its log
                await owner.execute(WRITE_LOG)
    await asyncio.sleep(OUTAGE)
    ballast.unlink()
    if not machine.server.is_alive():
        await machine.restart_server()


async def kill_hub(machine: Machine, _: Workload) -> None:
    """Kill the process with the web server and the one with the workers three times."""
    for _number in range(3):
        await asyncio.to_thread(machine.end_hub)
        await asyncio.to_thread(machine.start_hub)
        await asyncio.sleep(1)


async def stop_hub(machine: Machine, _: Workload) -> None:
    """Stop both processes with SIGTERM and start them again, three times."""
    for _number in range(3):
        await asyncio.to_thread(machine.end_hub, signal.SIGTERM)
        await asyncio.to_thread(machine.start_hub)
        await asyncio.sleep(1)


async def replace_processes(machine: Machine, _: Workload) -> None:
    """Let the supervisor replace its processes three times."""
    assert machine.child
    for _number in range(3):
        machine.child.process.send_signal(signal.SIGHUP)
        await asyncio.sleep(OUTAGE / 2)


async def restart_pooler(machine: Machine, _: Workload) -> None:
    assert machine.pooler
    await asyncio.to_thread(machine.pooler.restart)


async def migrate_ahead(machine: Machine, _: Workload) -> None:
    """A newer version renames columns that this one uses; then it is rolled back."""
    await machine.wait_for_worker()
    async with open_connection(machine.server.address.owner_url) as owner, newer_schema(owner, BREAKING, REVERSE):
        await asyncio.sleep(OUTAGE)


async def skew_clocks(machine: Machine, workload: Workload) -> None:
    """Restart the hub with a clock that is an hour fast, then with one that is an hour slow."""
    for offset in ("+1h", "-1h"):
        clock = {"LD_PRELOAD": str(FAKE_CLOCK), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        machine.child_variables |= clock
        await asyncio.to_thread(machine.end_hub)
        await asyncio.to_thread(machine.start_hub)
        assert machine.child
        date = parsedate_to_datetime((await workload.web.get("/healthz")).headers["date"])
        assert abs(date - datetime.now(UTC)) > timedelta(minutes=59), "the clock is not skewed"
        await asyncio.sleep(OUTAGE)


async def back_up(machine: Machine, _: Workload) -> None:
    await asyncio.to_thread(
        lambda: pabal_process(
            "backup",
            str(machine.folder / "backup.pabal"),
            folder=machine.folder,
            PABAL_DATABASE_URL=machine.server.address.owner_url,
        )
    )


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fault. With `in_process`, the hub runs in this process behind a proxy; else in processes of its own."""

    name: str
    fault: Fault
    in_process: bool = True
    disk_size: str | None = None
    """The size of a disk in memory for the server; needs root."""
    fakes_clock: bool = False
    """Whether it needs libfaketime."""
    needs_pooler: bool = False
    processes: int | None = None
    """Processes of `serve`, under a supervisor."""
    refuses: bool = True
    """Whether requests of chat users may fail meanwhile."""
    bot_sends_received: bool = True
    expected: tuple[str, ...] = ()
    """What the oracle may find: documented, and counted in its column."""

    def missing(self) -> str | None:
        """What this machine lacks to run it."""
        if self.disk_size and os.geteuid() != 0:
            return "root"
        if self.needs_pooler and pgbouncer.PROGRAM is None:
            return "pgbouncer"
        return "libfaketime" if self.fakes_clock and FAKE_CLOCK is None else None


SCENARIOS = (
    Scenario("network halted for 6 s", halt_network),
    Scenario("network cut for 6 s", cut_network),
    Scenario("open connections silent, new ones work", lose_connections),
    Scenario("connections reset 20 times", reset_connections),
    Scenario("answers of PostgreSQL lost for 6 s", lose_answers),
    Scenario("all backends terminated 20 times", storm_backends),
    Scenario("PostgreSQL restarted", restart_server),
    Scenario("PostgreSQL killed with kill -9", kill_server),
    Scenario("PostgreSQL stopped (SIGSTOP) for 6 s", stop_server),
    Scenario("disk full for 6 s", fill_disk, disk_size="320m"),
    Scenario("serve and work killed with kill -9, 3 times", kill_hub, in_process=False),
    Scenario(
        "the same, with a bot that does not send `received`",
        kill_hub,
        in_process=False,
        bot_sends_received=False,
        expected=("order_breaks",),
    ),
    Scenario("clock of the hub 1 h fast, then 1 h slow", skew_clocks, in_process=False, fakes_clock=True),
    Scenario("serve and work stopped with SIGTERM, 3 times", stop_hub, in_process=False),
    Scenario(
        "two processes replaced with SIGHUP, 3 times", replace_processes, in_process=False, processes=2, refuses=False
    ),
    Scenario("old code on a newer schema for 6 s", migrate_ahead, in_process=False),
    Scenario("behind PgBouncer: PgBouncer killed with kill -9", restart_pooler, needs_pooler=True),
    Scenario("behind PgBouncer: PostgreSQL restarted", restart_server, needs_pooler=True),
    Scenario("behind PgBouncer: open connections silent", lose_connections, needs_pooler=True),
    Scenario("backup under load", back_up, in_process=False),
)


@asynccontextmanager
async def open_machine(disk_size: str | None, *, with_pooler: bool = False) -> AsyncGenerator[Machine]:
    folder = make_disk(disk_size)
    try:
        options = {"max_wal_size": "64MB", "min_wal_size": "32MB"} if disk_size else {}
        server = await asyncio.to_thread(embedded.start_embedded_server, folder, options=options)
        machine = Machine(folder, server)
        try:
            await apply_migrations(server.address.owner_url, login="pabal_hub", settings={"pabal.keep_services": "on"})
            if with_pooler:
                machine.pooler = pgbouncer.start_pgbouncer(folder, server.address.hub_url)
            yield machine
        finally:
            await asyncio.to_thread(machine.end_hub)
            if machine.pooler:
                machine.pooler.stop()
            machine.server.stop()
    finally:
        remove_disk(folder, disk_size)


def make_disk(size: str | None) -> Path:
    """A folder for a server. With a size, it is a disk in memory of its own."""
    folder = Path(tempfile.mkdtemp(prefix="pabal-faults-"))
    folder.chmod(0o755)
    if size:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "none", folder], check=True)
    return folder


def remove_disk(folder: Path, size: str | None) -> None:
    if size:
        subprocess.run(["umount", "-l", folder], check=True)
    shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def open_process_workload(
    machine: Machine, settings: Settings, processes: int | None = None
) -> AsyncGenerator[Workload]:
    """The hub runs as `pabal serve` and `pabal work`; the actors' own hub only reads and writes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    machine.child_variables = {
        "PABAL_PORT": str(port),
        "PABAL_DATABASE_URL": machine.server.address.hub_url,
        "PABAL_WEBHOOK_SECRET": WEBHOOK_SECRET.get_secret_value(),
        "PABAL_CALLBACK_ALLOW": "http://127.0.0.1",
        "PABAL_WEBHOOK_PER_CONVERSATION": "0",
        "PABAL_WEBHOOK_PER_CHANNEL": "0",
    }
    if processes:
        machine.child_variables["PABAL_PROCESSES"] = str(processes)
    await asyncio.to_thread(machine.start_hub)
    assert machine.child
    async with (
        run_fake_kakao() as kakao,
        open_connection(machine.server.address.owner_url) as db,
        open_hub(settings, machine.urls) as hub,
        httpx2.AsyncClient(base_url=machine.child.address, timeout=30) as web,
    ):
        owner = await Chat(db).owner(answer_mode="callback")
        await Chat(db).conversation(owner)
        await register_builtin_templates(hub)
        yield Workload(hub, web, None, kakao, owner, db, machine.server.address.owner_url, machine.travel)


async def run_scenario(scenario: Scenario) -> tuple[Verdict, float]:
    """Returns the oracle's verdict and the seconds after the fault until the pace was 90 % of the one before it."""
    async with (
        open_machine(scenario.disk_size, with_pooler=scenario.needs_pooler) as machine,
        AsyncExitStack() as stack,
    ):
        settings = Settings(
            _env_file=None,  # pyright: ignore[reportCallIssue]
            data_dir=machine.folder / "data",
            webhook_secret=WEBHOOK_SECRET,
        )
        workload = await stack.enter_async_context(
            open_workload(settings, machine.urls, machine.travel)
            if scenario.in_process
            else open_process_workload(machine, settings, scenario.processes)
        )
        workload.sends_received = scenario.bot_sends_received
        async with workload.running():
            await asyncio.sleep(BEFORE)
            started = monotonic()
            await scenario.fault(machine, workload)
            ended = monotonic()
            await asyncio.sleep(AFTER)
        times = sorted(time for lane in workload.accepted_at.values() for time in lane)
        verdict = await workload.judge(0.0)
        if not scenario.refuses and workload.failed_requests:
            verdict = replace(verdict, refused=workload.failed_requests)
        return verdict, recovery_time(times, started, ended)


def recovery_time(times: list[float], started: float, ended: float) -> float:
    """Seconds from the end of the fault to the first window with 90 % of the earlier pace; infinite if none has it."""
    pace = sum(started - BEFORE / 2 <= time < started for time in times) / (BEFORE / 2)
    candidates = [ended, *(time for time in times if time > ended)]
    for begin in candidates:
        if sum(begin <= time < begin + WINDOW for time in times) >= 0.9 * pace * WINDOW:
            return begin - ended
    return float("inf")
