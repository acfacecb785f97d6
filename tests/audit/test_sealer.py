"""A host seals only the chain that contains the head it knows, and keeps that head outside the database."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pabal.audit.chain_head import START_OF_CHAIN, ChainHead, ChainHeadFile, parse_chain_head
from pabal.audit.follow import follow_chain
from pabal.audit.restore import accept_restored_chain
from pabal.audit.verify import verify_recent_seals
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, SetupError
from pabal.hub import DatabaseUrls, open_hub
from support.audit_log import AuditLog, SealingHost
from support.clusters import open_connection
from support.databases import url_with_database
from support.wait import wait_until

pytestmark = pytest.mark.anyio
NewHost = Callable[[str], SealingHost]
MINA = Actor("cli:mina")


@pytest.fixture
def new_host(audit_log: AuditLog, tmp_path: Path) -> NewHost:
    return lambda name: SealingHost(audit_log.hub, tmp_path / name)


@pytest.fixture
def host(new_host: NewHost) -> SealingHost:
    return new_host("host")


async def sealed_chain(audit_log: AuditLog, host: SealingHost, *counts: int) -> ChainHead:
    async def is_sealed() -> bool:
        await host.seal()
        return (await audit_log.verify()).unsealed == 0  # older transactions of the server may delay it

    for count in counts:
        await audit_log.write(count)
        await wait_until(is_sealed)
    assert host.known
    return host.known


async def test_each_seal_is_stored_privately_and_logged(audit_log: AuditLog, host: SealingHost) -> None:
    await host.seal()
    assert host.known == START_OF_CHAIN

    await audit_log.write(3)
    with capture_logs() as logs:
        await host.seal()

    head = (await audit_log.verify()).head
    assert head
    assert host.known == head
    assert head.count == 3
    [line] = [line for line in logs if line["event"] == "audit sealed"]
    assert (line["log_level"], parse_chain_head(line["head"])) == ("info", head)
    assert host.sealer.head_file.path.stat().st_mode & 0o777 == 0o600
    assert sorted(file.name for file in host.data_dir.iterdir()) == ["audit-head.json", "audit-head.lock"]


async def test_the_chore_of_the_hub_stores_the_head(audit_log: AuditLog) -> None:
    await audit_log.write(2)

    await audit_log.hub.chores.run_due()

    assert ChainHeadFile(audit_log.hub.settings.data_dir).read() == (await audit_log.verify()).head


async def test_a_rolled_back_seal_is_not_stored(audit_log: AuditLog, host: SealingHost) -> None:
    head = await sealed_chain(audit_log, host, 1)
    await audit_log.write(1)
    with pytest.raises(Conflict):
        async with audit_log.hub.transaction() as tx:
            assert (await host.sealer.seal(tx, 100)).rows == 1
            raise Conflict("the commit fails")

    assert host.known == head
    assert (await host.seal()).rows == 1


@pytest.mark.parametrize(
    "tampering",
    [
        ("delete from pabal.audit_seals",),
        ("truncate pabal.audit_seals",),
        ("truncate pabal.audit_seals restart identity",),
        ("truncate pabal.audit_log, pabal.audit_seals restart identity",),
        ("delete from pabal.audit_seals where id >= 2",),
        ("delete from pabal.audit_seals where id = 3",),
        ("update pabal.audit_seals set digest = sha256(digest) where id = 3",),
        (
            "alter table pabal.audit_seals drop constraint seal_chain_is_linear",
            """
            insert into pabal.audit_seals overriding system value
            select 4, first_id, last_id, count, digest, previous, key_id, sealed_at, ids, macs, below, floor
            from pabal.audit_seals where id = 1
            """,
        ),
    ],
    ids=["all", "truncate", "restart", "empty", "tail", "last", "changed", "old seal again"],
)
async def test_an_altered_chain_is_not_sealed_again(
    audit_log: AuditLog, host: SealingHost, tampering: tuple[str, ...]
) -> None:
    """Removing the seals must not make the hub seal the altered log."""
    head = await sealed_chain(audit_log, host, 2, 2, 2)
    await audit_log.tamper("update pabal.audit_log set actor = 'other'", *tampering)
    await audit_log.write(1)

    for restarts in range(2):
        seals = await audit_log.seals()
        with capture_logs() as logs:
            results = [await host.seal() for _ in range(3)]

        assert all(result.rows == 0 and result.finding for result in results)
        assert await audit_log.seals() == seals
        assert host.known == head
        assert [line["log_level"] for line in logs if line["event"] == "audit chain broken"] == ["error"], restarts
        assert (await audit_log.verify(head)).broken
        host.restart()


async def test_a_removed_first_seal_is_reported(audit_log: AuditLog, host: SealingHost) -> None:
    await sealed_chain(audit_log, host, 1, 1, 1)
    await audit_log.tamper("delete from pabal.audit_seals where id = 1", "delete from pabal.audit_log where id = 1")
    await audit_log.write(1)

    result = await host.seal()

    assert result.finding == "the first seals of the audit log were removed"
    async with audit_log.hub.autocommit() as tx:
        recent = await verify_recent_seals(tx, audit_log.keys, max_seals=1)
    assert [(chain_break.kind, chain_break.seal) for chain_break in recent.report.breaks] == [("seal_removed", 2)]


async def test_the_recent_seals_are_verified_with_the_known_head(audit_log: AuditLog, host: SealingHost) -> None:
    async def kinds(*heads: ChainHead) -> list[str]:
        async with audit_log.hub.autocommit() as tx:
            recent = await verify_recent_seals(tx, audit_log.keys, max_seals=1, expected_heads=heads)
        return [chain_break.kind for chain_break in recent.report.breaks]

    first = await sealed_chain(audit_log, host, 1)
    last = await sealed_chain(audit_log, host, 1, 1)

    assert await kinds(first, last) == []
    assert await kinds(replace(first, digest=last.digest)) == ["chain_cut"]
    assert await kinds(replace(last, digest=first.digest)) == ["chain_cut"]
    assert await kinds(replace(last, id=9)) == ["chain_cut"]


async def test_a_gap_in_the_ids_is_not_a_problem(audit_log: AuditLog, host: SealingHost) -> None:
    await sealed_chain(audit_log, host, 1)
    await audit_log.tamper("select setval('pabal.audit_seals_id_seq', 40)")

    head = await sealed_chain(audit_log, host, 1)

    assert head.id == 41
    assert (await audit_log.verify(head)).broken == 0


async def test_two_hosts_seal_in_turn(audit_log: AuditLog, new_host: NewHost) -> None:
    """The head of the other host is newer than the own one: the chain must contain it, not end with it."""
    first, second = new_host("first"), new_host("second")
    for sealing, waiting in ((first, second), (second, first), (second, first), (first, second)):
        await audit_log.write(2)
        assert (await sealing.seal()).rows == 2
        waiting.restart()

    await audit_log.tamper("delete from pabal.audit_seals where id > 2")
    results = [await host.seal() for host in (first, second)]

    assert [bool(result.finding) for result in results] == [True, True]


async def test_a_new_host_adopts_the_chain(audit_log: AuditLog, new_host: NewHost) -> None:
    head = await sealed_chain(audit_log, new_host("first"), 1, 1)
    newcomer = new_host("new")
    with capture_logs() as logs:
        await newcomer.seal()

    assert newcomer.known == head
    assert [line["head"] for line in logs if line["event"] == "audit head adopted"] == [str(head)]


async def test_a_host_that_is_far_behind_follows_the_chain_in_steps(audit_log: AuditLog, host: SealingHost) -> None:
    known = await sealed_chain(audit_log, host, 1)
    last = await sealed_chain(audit_log, host, 1, 1, 1, 1)
    steps: list[tuple[int, bool]] = []
    async with audit_log.hub.autocommit() as tx:
        while known != last:
            chain = await follow_chain(tx, audit_log.keys, known, max_seals=3)
            steps.append((chain.head.id, chain.is_end))
            known = chain.head

    assert steps == [(4, False), (5, True)]


async def test_an_unwritable_directory_is_logged_once_and_the_head_is_remembered(
    audit_log: AuditLog, tmp_path: Path
) -> None:
    """Without a directory for the file, tampering is still detected until the restart."""
    (tmp_path / "data").symlink_to("/proc/self/fdinfo")  # a directory in which even root creates no file
    host = SealingHost(audit_log.hub, tmp_path / "data")
    await audit_log.write(1)
    with capture_logs() as logs:
        assert [(await host.seal()).rows for _ in range(3)] == [1, 0, 0]
    await audit_log.tamper("delete from pabal.audit_seals")

    result = await host.seal()

    assert [line["log_level"] for line in logs if line["event"] == "audit head not stored"] == ["error"]
    assert (result.rows, bool(result.finding)) == (0, True)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"id": "x"}', '{"id": 1}'])
async def test_a_damaged_file_stops_sealing(audit_log: AuditLog, host: SealingHost, content: str) -> None:
    await sealed_chain(audit_log, host, 1)
    host.sealer.head_file.path.write_text(content)
    await audit_log.write(1)

    result = await host.seal()

    assert result.rows == 0
    assert "audit-head.json is damaged" in (result.finding or "")
    with pytest.raises(SetupError, match="damaged"):
        host.sealer.head_file.read()
    await accept_restored_chain(audit_log.hub.db, audit_log.keys, host.sealer.head_file, MINA, "the disk was full")
    assert (await host.seal()).rows == 2


async def test_a_removed_file_is_written_again_by_a_running_hub(audit_log: AuditLog, host: SealingHost) -> None:
    head = await sealed_chain(audit_log, host, 1)
    host.sealer.head_file.path.unlink()
    await host.seal()

    assert host.known == head


def test_of_two_writers_the_slower_one_does_not_overwrite(tmp_path: Path) -> None:
    file = ChainHeadFile(tmp_path)
    first, second, third = (ChainHead(number, f"{number}", 1) for number in (1, 2, 3))
    file.advance(None, first)
    file.advance(first, third)

    file.advance(first, second)

    assert file.read() == third


def test_the_file_belongs_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    """Also if root runs a command beside the hub of another user."""
    owner = 12345 if os.geteuid() == 0 else os.geteuid()
    os.chown(tmp_path, owner, -1)
    file = ChainHeadFile(tmp_path)

    file.advance(None, START_OF_CHAIN)

    assert {path.stat().st_uid for path in tmp_path.iterdir()} == {owner}


@pytest.mark.parametrize("reason", ["", "  ", "x" * 501])
async def test_an_accepted_restore_needs_a_reason(audit_log: AuditLog, host: SealingHost, reason: str) -> None:
    with pytest.raises(Invalid, match="reason"):
        await accept_restored_chain(audit_log.hub.db, audit_log.keys, host.sealer.head_file, MINA, reason)


async def test_a_restored_backup_is_sealed_only_after_it_was_accepted(
    audit_log: AuditLog, database_urls: DatabaseUrls, tmp_path: Path
) -> None:
    """The backup is a copy of the database, restored on the same server."""
    assert database_urls.direct
    name = database_urls.direct.rpartition("/")[2]
    backup = f"{name}_backup"
    await audit_log.write_sealed(2)
    await audit_log.hub.chores.run_due()
    await audit_log.hub.doorbell.close()
    await audit_log.hub.db.close()
    async with open_connection(url_with_database(database_urls.direct, "postgres")) as conn:
        await conn.execute("select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = $1", name)
        await conn.execute(f"create database {backup} template {name}")
        restored_urls = DatabaseUrls(
            url_with_database(database_urls.main, backup), url_with_database(database_urls.direct, backup)
        )
        try:
            async with open_hub(audit_log.hub.settings, database_urls) as hub:
                later = replace(audit_log, hub=hub)
                head = await sealed_chain(later, SealingHost(hub, tmp_path), 2)
            async with open_hub(audit_log.hub.settings, restored_urls) as hub:
                restored = AuditLog(hub, restored_urls, hub.key_ring)
                host = SealingHost(hub, tmp_path)
                await restored.write(1)
                refused = await host.seal()
                breaks = await restored.breaks(head)
                await accept_restored_chain(hub.db, hub.key_ring, host.sealer.head_file, MINA, "disk failure")
                sealed = await host.seal()
                assert host.known
                report = await restored.verify(host.known)
        finally:
            await conn.execute(f"drop database {backup} with (force)")

    assert (refused.rows, bool(refused.finding)) == (0, True)
    assert breaks == [("chain_cut", head.id, None)]
    assert (sealed.rows, sealed.finding) == (2, None)
    assert (report.rows, report.unsealed, report.broken) == (4, 0, 0)


async def test_sealing_waits_while_a_restore_is_accepted(audit_log: AuditLog, host: SealingHost) -> None:
    """The hub does not overwrite the head that the operator accepts at the same time."""
    head = await sealed_chain(audit_log, host, 1)
    await audit_log.write(1)
    with host.sealer.head_file.replace(START_OF_CHAIN):
        async with audit_log.hub.transaction() as tx:
            await host.sealer.seal(tx, 100)
        storing = asyncio.create_task(host.sealer.store_head())
        await asyncio.sleep(0)
        assert host.known == head
    await storing

    assert host.known == START_OF_CHAIN
