"""In every order of transactions and hosts the chain is valid, and every tampering with it is reported."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as trying
from hypothesis import strategies as st

from pabal.audit.record import AuditEntry, record_audit_entry
from pabal.core.errors import Conflict
from pabal.db.tx import Tx
from support.audit_log import UNPROTECT, AuditLog, SealingHost
from support.wait import wait_until

pytestmark = pytest.mark.anyio

MAX_OPEN = 4
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["write", "write", "write", "commit", "abort"]), st.integers(0, MAX_OPEN - 1)),
        st.tuples(st.just("seal"), st.integers(1, 4)),
    ),
    max_size=40,
)


class Writers:
    """Several concurrent transactions, each open from its first row until it ends."""

    def __init__(self, audit_log: AuditLog) -> None:
        self._ledger = audit_log
        self._open: dict[int, tuple[AbstractAsyncContextManager[Tx], Tx]] = {}

    async def write(self, writer: int) -> None:
        if writer not in self._open:
            transaction = self._ledger.hub.transaction()
            self._open[writer] = transaction, await transaction.__aenter__()
        await record_audit_entry(
            self._open[writer][1], AuditEntry(f"writer {writer}", "something.done", details={"writer": writer})
        )

    async def commit(self, writer: int) -> None:
        if opened := self._open.pop(writer, None):
            await opened[0].__aexit__(None, None, None)

    async def abort(self, writer: int) -> None:
        if opened := self._open.pop(writer, None):
            error = Conflict("aborted")
            await opened[0].__aexit__(Conflict, error, None)


@given(steps=STEPS)
@trying(max_examples=40, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_every_committed_row_is_sealed_once_and_the_chain_never_breaks(
    audit_log: AuditLog, steps: list[tuple[str, int]]
) -> None:
    writers = Writers(audit_log)
    for step, number in steps:
        match step:
            case "write":
                await writers.write(number)
            case "commit":
                await writers.commit(number)
            case "abort":
                await writers.abort(number)
            case _:
                await audit_log.seal(batch=number)
                assert await audit_log.breaks() == []
    for writer in range(MAX_OPEN):
        await writers.commit(writer)
    await audit_log.write_sealed(1)

    assert await audit_log.sealed_row_ids() == await audit_log.rows()
    report = await audit_log.verify()
    assert (report.rows, report.unsealed, report.broken) == (len(await audit_log.rows()), 0, 0)


HOSTS = ("first", "second")
HOST_STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "seal", "seal", "restart", "skip"]), st.sampled_from(HOSTS)),
    min_size=4,
    max_size=25,
)
RESEAL_STEPS = st.lists(st.tuples(st.sampled_from(["write", "seal", "seal", "restart"]), st.sampled_from(HOSTS)))
KEEP = """
    create temporary table kept_log as table pabal.audit_log;
    create temporary table kept_seals as table pabal.audit_seals;
"""
RESTORE = """
    set session_replication_role = replica;
    truncate pabal.audit_log, pabal.audit_seals;
    insert into pabal.audit_log overriding system value table kept_log;
    insert into pabal.audit_seals overriding system value
    select id, first_id, last_id, count, digest, previous, key_id, sealed_at, ids, macs, below, floor from kept_seals;
"""
TAMPERINGS = {
    "delete all seals": "delete from pabal.audit_seals",
    "truncate seals": "truncate pabal.audit_seals",
    "truncate and restart": "truncate pabal.audit_seals restart identity",
    "truncate both": "truncate pabal.audit_seals, pabal.audit_log",
    "delete the first seal": "delete from pabal.audit_seals where id = (select min(id) from pabal.audit_seals)",
    "delete the last seal": "delete from pabal.audit_seals where id = (select max(id) from pabal.audit_seals)",
    "delete the last seals": "delete from pabal.audit_seals where id > (select min(id) from pabal.audit_seals)",
    "move the first seal to the end": """
        update pabal.audit_seals set id = (select max(id) + 1 from pabal.audit_seals)
        where id = (select min(id) from pabal.audit_seals)
    """,
    "repeat the first seal": """
        alter table pabal.audit_seals drop constraint if exists seal_chain_is_linear;
        insert into pabal.audit_seals overriding system value
        select (select max(id) + 1 from pabal.audit_seals),
               first_id, last_id, count, digest, previous, key_id, sealed_at, ids, macs, below, floor
        from pabal.audit_seals order by id limit 1
    """,
    "restore the backup": RESTORE,
}


class SealingHosts:
    """Two hosts that seal one log in turn, each with its own file."""

    def __init__(self, audit_log: AuditLog, folder: Path) -> None:
        self.ledger = audit_log
        self.hosts = {name: SealingHost(audit_log.hub, folder / name) for name in HOSTS}

    async def run(self, steps: list[tuple[str, str]]) -> list[str]:
        """Take the steps; returns the findings of the hosts."""
        findings: list[str] = []
        for step, name in steps:
            match step:
                case "write":
                    await self.ledger.write(2)
                case "seal":
                    findings += filter(None, [(await self.hosts[name].seal()).finding])
                case "restart":
                    self.hosts[name].restart()
                case _:  # a number that a rolled back transaction took
                    await self.ledger.fetch("select nextval('pabal.audit_seals_id_seq')")
        return findings

    async def seal_completely(self) -> None:
        """Write and seal until both hosts know a chain of several seals."""
        for name in (*HOSTS, *HOSTS):
            await self.ledger.write(1)
            await wait_until(lambda host=self.hosts[name]: self._is_sealed_by(host))
        await self.hosts[HOSTS[0]].seal()

    async def breaks(self) -> dict[str, int]:
        """How many breaks `pabal audit verify` reports on each host."""
        return {name: (await self.ledger.verify(host.known)).broken for name, host in self.hosts.items()}

    async def _is_sealed_by(self, host: SealingHost) -> bool:
        await host.seal()
        return (await self.ledger.verify()).unsealed == 0


@pytest.mark.parametrize("tampering", TAMPERINGS)
@given(before=HOST_STEPS, after=RESEAL_STEPS)
@trying(max_examples=4, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_a_legitimate_history_passes_and_every_tampering_is_reported_on_every_host(
    audit_log: AuditLog, tmp_path: Path, before: list[tuple[str, str]], after: list[tuple[str, str]], tampering: str
) -> None:
    await audit_log.tamper("truncate pabal.audit_log, pabal.audit_seals")  # of the example before
    with TemporaryDirectory(dir=tmp_path) as folder:
        hosts = SealingHosts(audit_log, Path(folder))
        assert await hosts.run(before) == []
        assert await hosts.breaks() == dict.fromkeys(HOSTS, 0)
        async with audit_log.owner() as backup:
            await backup.execute(KEEP)
            await hosts.seal_completely()
            assert await hosts.breaks() == dict.fromkeys(HOSTS, 0)

            await backup.execute(UNPROTECT)
            await backup.execute(TAMPERINGS[tampering])

        await hosts.run(after)
        broken = await hosts.breaks()
        findings = await hosts.run([("restart", name) for name in HOSTS] + [("seal", name) for name in HOSTS])

    assert all(broken.values()), broken
    assert len(findings) == len(HOSTS)
