"""Load the embedded database of an older major version of PostgreSQL into a new data directory.

Both servers run at once, and the dump goes from one to the other without a file. The new data directory is made under
a temporary name and renamed when it is complete, so a start never finds half of the data. The old one is not changed.
"""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pabal.core.errors import BackupError, Conflict
from pabal.db.backup.contents import ExportedSnapshot, check_loaded_rows, export_snapshot, require_no_hub_sessions
from pabal.db.backup.programs import (
    CountTables,
    DumpPrograms,
    ProgramAddress,
    copy_roles,
    find_dump_programs,
    load_dump,
    stream_dump,
)
from pabal.db.embedded.binaries import (
    WHEEL_PACKAGE,
    PostgresBinaries,
    candidate_directories,
    find_binaries,
    probe_binaries,
)
from pabal.db.embedded.cluster import HUB_ROLE, OWNER_ROLE, Cluster, ServerAddress, list_clusters
from pabal.db.embedded.data_dir import make_temporary_dir, sync_directory
from pabal.db.embedded.os_user import OsUser
from pabal.db.embedded.server import start_embedded_server

BeginTables = Callable[[int], CountTables]
"""Called with the number of tables; returns a function that counts those that are done."""


@dataclass(frozen=True, slots=True)
class DatabaseUpgrade:
    """The data directories of an upgrade and the programs of both versions."""

    old: Cluster
    new: Cluster
    old_binaries: PostgresBinaries
    new_binaries: PostgresBinaries


def plan_upgrade(data_root: Path, pg_bin: Path | None, old_bin: Path | None) -> DatabaseUpgrade:
    """Find the newest data of an older version, and the programs of both versions."""
    clusters = list_clusters(data_root)
    given = find_binaries(pg_bin)
    if clusters and pg_bin and given.major == clusters[0].major:  # PABAL_PG_BIN names the old programs
        old_bin, given = old_bin or pg_bin, find_binaries(None)
    new = Cluster(data_root, given.major)
    if new.is_initialized:
        raise Conflict(f"nothing to upgrade: {new.data_dir} is of PostgreSQL {given.major} already")
    older = [cluster for cluster in clusters if cluster.major < given.major]
    if not older:
        raise Conflict(f"nothing to upgrade: {data_root} contains no data of an older PostgreSQL than {given.major}")
    return DatabaseUpgrade(older[0], new, find_old_binaries(older[0], old_bin), given)


def find_old_binaries(old: Cluster, old_bin: Path | None) -> PostgresBinaries:
    directories = [old_bin.absolute()] if old_bin else old_binary_directories(old.data_root)
    for directory in directories:
        binaries = probe_binaries(directory)
        if binaries is not None and binaries.major == old.major:
            return binaries
    raise BackupError(
        f"the programs of PostgreSQL {old.major} are needed to read {old.data_dir}"
        + (f", and {old_bin} does not contain them" if old_bin else "")
        + ": install them and name their directory with --old-bin"
    )


def old_binary_directories(data_root: Path) -> Iterator[Path]:
    yield from candidate_directories()
    yield from data_root.glob(f"binaries-*/{WHEEL_PACKAGE}/pginstall/bin")


async def upgrade_cluster(upgrade: DatabaseUpgrade, user: OsUser, begin: BeginTables) -> int:
    """Load the old data into the new data directory. Returns the number of rows."""
    data_root = upgrade.old.data_root
    with start_embedded_server(data_root, pg_bin=upgrade.old_binaries.directory, user=user) as old_server:
        staging = make_temporary_dir(upgrade.new.data_dir)
        try:
            staging.chmod(0o711 if user.drops_privileges else 0o700)
            with start_embedded_server(staging, pg_bin=upgrade.new_binaries.directory, user=user) as new_server:
                rows = await copy_database(upgrade, old_server.address, new_server.address, begin)
            Cluster(staging, upgrade.new.major).data_dir.rename(upgrade.new.data_dir)
            sync_directory(data_root)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return rows


async def copy_database(upgrade: DatabaseUpgrade, old: ServerAddress, new: ServerAddress, begin: BeginTables) -> int:
    """Copy the roles with their passwords, so that both directories work with the same password file, then the data."""
    programs = find_dump_programs(upgrade.new.major, upgrade.new_binaries.directory)
    passwords = upgrade.old.read_passwords()
    if passwords is None:
        raise BackupError(f"the passwords of {upgrade.old.data_dir} cannot be read")
    await require_no_hub_sessions(old.owner_url)
    async with export_snapshot(old.owner_url) as snapshot:
        empty = ProgramAddress.of_url(new.owner_url, None)
        await asyncio.to_thread(copy_roles, programs, snapshot.address, empty, frozenset({OWNER_ROLE, HUB_ROLE}))
        new_url = ServerAddress.for_port(new.port, passwords).owner_url
        await asyncio.to_thread(copy_tables, programs, snapshot, ProgramAddress.of_url(new_url, None), begin)
        rows = snapshot.contents.rows
        await check_loaded_rows(new_url, rows)
    await require_no_hub_sessions(old.owner_url)  # one may have started meanwhile
    return sum(rows.values())


def copy_tables(programs: DumpPrograms, snapshot: ExportedSnapshot, target: ProgramAddress, begin: BeginTables) -> None:
    count = begin(len(snapshot.contents.rows))
    with load_dump(programs, target, count) as write:
        stream_dump(programs, snapshot.address, snapshot.id, write, lambda _: None)
