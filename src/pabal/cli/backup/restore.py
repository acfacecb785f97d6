"""`pabal restore`."""

import asyncio
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Parameter

from pabal.audit.chain_head import parse_chain_head
from pabal.audit.restore import accept_restored_chain, check_restore_reason, find_restore_problem, seal_restored_log
from pabal.audit.verify import VerifyReport, verify_audit_log
from pabal.cli.backup.backup import BackupPath
from pabal.cli.backup.secret_files import (
    BackupSecrets,
    PassphraseFile,
    decode_secrets,
    draft_secrets,
    read_passphrase,
    require_no_keys,
    store_secrets,
)
from pabal.cli.context import cli_actor
from pabal.cli.database_settings import database_settings
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json, refuse_arguments
from pabal.cli.output import print_error, print_hint, print_json, print_text, progress_bar, replace_unprintable
from pabal.cli.target import DatabaseTarget, start_target
from pabal.core.errors import Conflict
from pabal.core.log import configure_logging
from pabal.db.backup.archive import DUMP_MEMBER, KEYS_MEMBER, BackupFile, read_backup
from pabal.db.backup.contents import (
    check_loaded_rows,
    connect_for_backup,
    create_missing_roles,
    drop_roles,
    require_empty_database,
)
from pabal.db.backup.programs import (
    DumpPrograms,
    ProgramAddress,
    check_can_load,
    find_dump_programs,
    list_dump,
    load_dump,
)
from pabal.db.backup.shared_objects import (
    SharedObject,
    filter_dump_entries,
    list_shared_objects,
    separate_shared_objects,
)
from pabal.db.migrate import apply_migrations, preflight_migrations
from pabal.db.preflight import check_collisions
from pabal.hub import open_hub
from pabal.keys.keyring import find_keyring
from pabal.keys.passphrase import unwrap_secrets
from pabal.settings import Settings, load_settings, variable_name

ACCEPT_COMMAND = "pabal audit accept-restore --reason 'Restored a backup'"

UNCOUNTED = frozenset({"pabal.created_objects"})
"""Tables whose rows differ where the database had objects of another system."""

AcceptAudit = Annotated[
    str | None,
    Parameter(
        help="Accept the audit log of the backup, for this reason. It is kept in the audit log.", name="--accept-audit"
    ),
]


def restore_command(
    file: BackupPath,
    /,
    *,
    passphrase_file: PassphraseFile = None,
    accept_audit: AcceptAudit = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Restore a backup into an empty hub.

    The hub must not run. The data is loaded in one transaction.
    An older backup is migrated to this version. Exits with 1 if the audit log of the backup is broken.
    """
    settings = load_settings(data_dir=connection.data_dir, database_url=connection.database_url)
    configure_logging(settings.log_level, settings.log_format)
    if accept_audit is not None:
        with refuse_arguments("--accept-audit"):
            check_restore_reason(accept_audit)
    backup = check_backup(file)
    secrets = read_secrets(settings, backup, passphrase_file)
    if accept_audit is not None and secrets is None and find_keyring(settings) is None:
        raise Conflict("--accept-audit needs the keys of the hub: restore keys.json first, or set PABAL_KEYS")
    with start_target(database_settings(settings)) as target:  # refuses a data directory that a hub uses
        with stored_secrets(settings, secrets):
            asyncio.run(load_backup(settings, target, backup))
        report = asyncio.run(check_audit_log(settings, target, backup, accept_audit))
    print_restored(settings, backup, report, json=json)
    if report is not None and report.broken:
        sys.exit(1)


def check_backup(file: BackupPath) -> BackupFile:
    total = file.stat().st_size if file.is_file() else 0
    with progress_bar("checking the file", total) as step:
        backup = read_backup(file, step)
    backup.check_version()
    return backup


def read_secrets(settings: Settings, backup: BackupFile, passphrase_file: PassphraseFile) -> BackupSecrets | None:
    """Decrypt the keys of the backup. With PABAL_KEYS they are not needed."""
    if not backup.has_keys or settings.keys:
        return None
    require_no_keys(settings)
    passphrase = read_passphrase(passphrase_file, repeat=False)
    return decode_secrets(unwrap_secrets(passphrase, backup.read_member(KEYS_MEMBER)))


@contextmanager
def stored_secrets(settings: Settings, secrets: BackupSecrets | None) -> Generator[None]:
    """Write the secrets under temporary names, and give them their names when the block succeeds."""
    drafts = draft_secrets(settings, secrets) if secrets else {}
    try:
        yield
        store_secrets(drafts)
    finally:
        for draft in drafts:
            draft.unlink(missing_ok=True)


async def load_backup(settings: Settings, target: DatabaseTarget, backup: BackupFile) -> None:
    """Load the dump, compare the rows, and migrate."""
    manifest = backup.manifest
    async with connect_for_backup(target.direct_url) as connection:
        await require_empty_database(connection)
        check_collisions(await preflight_migrations(target.direct_url))
        server_major = connection.get_server_version().major
        if server_major < manifest.server_major:
            raise Conflict(
                f"{backup.path} is from PostgreSQL {manifest.server_major} and cannot be loaded into {server_major}"
            )
        programs = find_dump_programs(server_major, settings.pg_bin)
        check_can_load(programs, server_major)
        shared = await list_shared_objects(connection)
        created = await create_missing_roles(connection, manifest.roles)
        address = ProgramAddress.of_url(target.direct_url, connection.host)
        try:
            await asyncio.to_thread(load_members, programs, address, backup, shared)
        except BaseException:
            await drop_roles(connection, created)
            raise
        await separate_shared_objects(connection, shared)
    existing = {item.name for item in shared}
    await check_loaded_rows(
        target.direct_url, {table: count for table, count in manifest.rows.items() if table not in existing | UNCOUNTED}
    )
    await apply_migrations(target.direct_url, login=target.login)


def load_members(
    programs: DumpPrograms, address: ProgramAddress, backup: BackupFile, shared: Sequence[SharedObject]
) -> None:
    """Load the dump, without objects that the database has already."""
    entries = None
    if shared:
        entries = list_dump(programs, backup.read_chunks(DUMP_MEMBER))
        entries = filter_dump_entries(entries, shared, backup.manifest.rows)
    with (
        progress_bar("loading tables", len(backup.manifest.rows)) as step,
        load_dump(programs, address, step, entries) as write,
    ):
        for chunk in backup.read_chunks(DUMP_MEMBER):
            write(chunk)


async def check_audit_log(
    settings: Settings, target: DatabaseTarget, backup: BackupFile, reason: str | None
) -> VerifyReport | None:
    """Verify the audit log, and accept it if asked to. None without keys.

    A host that has no head yet takes over the one of the backup.
    """
    if find_keyring(settings) is None:
        return None
    async with open_hub(settings, target.urls) as hub:
        head_file, head = hub.audit_sealer.head_file, parse_chain_head(backup.manifest.audit_head or "")
        if head is not None and head_file.read() is None:
            head_file.advance(None, head)
        if reason is not None:
            await accept_restored_chain(hub.db, hub.key_ring, head_file, cli_actor(), reason, needs_problem=False)
            await seal_restored_log(hub.db, hub.audit_sealer)
        else:
            try:
                problem = await find_restore_problem(hub.db, hub.key_ring, head_file)
                print_hint(f"{replace_unprintable(str(problem))}. Accept the restored log: {ACCEPT_COMMAND}")
            except Conflict:  # nothing to accept
                pass
        async with hub.autocommit() as tx:
            return await verify_audit_log(tx, hub.key_ring, [head] if head else [])


def print_restored(settings: Settings, backup: BackupFile, report: VerifyReport | None, *, json: bool) -> None:
    manifest = backup.manifest
    rows = sum(manifest.rows.values())
    missing = sorted(set(manifest.settings) - set(map(variable_name, settings.model_fields_set)) - {"PABAL_DATA_DIR"})
    if json:
        audit = None if report is None else "broken" if report.broken else "intact"
        print_json({"rows": rows, "tables": len(manifest.rows), "audit": audit, "settings_not_set": missing})
        return
    print_text(f"{rows} rows of {len(manifest.rows)} tables restored and counted")
    if report is None:
        print_text(
            "There are no keys here: restore keys.json or set PABAL_KEYS, then run `pabal audit verify`.", "yellow"
        )
    elif report.broken:
        for problem in report.breaks:
            print_error(replace_unprintable(str(problem.what)))
        print_error(f"the audit log is broken in {report.broken} places")
    else:
        print_text(f"audit log intact: {report.rows} rows in {report.seals} seals, {report.unsealed} not sealed yet")
    if missing:
        print_text(f"Set in the backup, but not here: {', '.join(missing)} (see settings.env in {backup.path})")
