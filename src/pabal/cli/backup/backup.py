"""`pabal backup`."""

import asyncio
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from pydantic import SecretStr

from pabal import __version__
from pabal.audit.chain_head import ChainHeadFile
from pabal.cli.backup.secret_files import PassphraseFile, collect_secrets, read_passphrase
from pabal.cli.database_settings import database_settings
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json, flag
from pabal.cli.output import print_json, print_text, progress_bar
from pabal.cli.target import attach_or_start_target, require_data_dir
from pabal.core.errors import BackupError
from pabal.core.log import configure_logging
from pabal.db.backup.archive import (
    DUMP_MEMBER,
    KEYS_MEMBER,
    SETTINGS_MEMBER,
    BackupManifest,
    BackupWriter,
    create_backup_file,
    read_backup,
)
from pabal.db.backup.contents import DatabaseContents, export_snapshot
from pabal.db.backup.programs import DumpPrograms, find_dump_programs, list_dump, stream_dump
from pabal.keys.passphrase import wrap_secrets
from pabal.settings import Settings, load_settings, variable_name
from pabal.settings_display import display_setting

BackupPath = Annotated[Path, Parameter(name="FILE", help="File of the backup.")]
WithKeys = Annotated[
    bool,
    flag("Include the keys, wrapped with a passphrase.", "--with-keys"),
]


def backup_command(
    file: BackupPath,
    /,
    *,
    with_keys: WithKeys = False,
    passphrase_file: PassphraseFile = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Back up the database, the settings and optionally the keys.

    Writes a new file that only you can read. The hub may run meanwhile.

    It contains the database and the settings without secrets. The file is read again and checked before it gets its
    name.
    """
    settings = load_settings(data_dir=connection.data_dir, database_url=connection.database_url)
    configure_logging(settings.log_level, settings.log_format)
    require_data_dir(database_settings(settings))
    wrapped: bytes | None = None
    if with_keys:
        secrets = collect_secrets(settings)
        wrapped = wrap_secrets(read_passphrase(passphrase_file, repeat=True), secrets)
    with attach_or_start_target(database_settings(settings)) as target, create_backup_file(file) as (draft, writer):
        manifest, programs = asyncio.run(write_backup(settings, target.direct_url, writer, wrapped))
        check_written_backup(draft, programs)
    rows, size = sum(manifest.rows.values()), file.stat().st_size
    if json:
        print_json({"file": str(file), "bytes": size, "rows": rows, "tables": len(manifest.rows), "keys": with_keys})
        return
    print_text(f"{rows} rows of {len(manifest.rows)} tables written to {file} ({size} bytes) and checked")
    if not with_keys:
        print_text("The keys are not in it: back them up as well, or use --with-keys.")


async def write_backup(
    settings: Settings, url: str, writer: BackupWriter, wrapped: bytes | None
) -> tuple[BackupManifest, DumpPrograms]:
    # Before the snapshot, so that the chain in the dump contains this head.
    audit_head = ChainHeadFile(settings.data_dir).read()
    async with export_snapshot(url) as snapshot:
        contents = snapshot.contents
        programs = find_dump_programs(contents.server_major, settings.pg_bin)
        with progress_bar("dumping tables", len(contents.rows)) as step, writer.open_member(DUMP_MEMBER) as write:
            await asyncio.to_thread(stream_dump, programs, snapshot.address, snapshot.id, write, step)
    if wrapped is not None:
        writer.add_member(KEYS_MEMBER, wrapped)
    writer.add_member(SETTINGS_MEMBER, settings_file(settings).encode())
    manifest = build_manifest(settings, contents, writer, str(audit_head) if audit_head else None)
    writer.finish(manifest)
    return manifest, programs


def build_manifest(
    settings: Settings, contents: DatabaseContents, writer: BackupWriter, audit_head: str | None
) -> BackupManifest:
    return BackupManifest(
        version=__version__,
        created_at=datetime.now(UTC),
        server_major=contents.server_major,
        migrations=tuple(contents.migrations),
        roles=tuple(contents.roles),
        rows=contents.rows,
        settings=tuple(sorted(map(variable_name, settings.model_fields_set))),
        audit_head=audit_head,
        members=writer.members.copy(),
    )


def check_written_backup(path: Path, programs: DumpPrograms) -> None:
    """Read the file again: the hashes must match, and the dump must list the data of every table."""
    total = path.stat().st_size
    with progress_bar("checking the file", total) as step:
        backup = read_backup(path, step)
    tables = list_dump(programs, backup.read_chunks(DUMP_MEMBER)).count(" TABLE DATA ")
    if tables != len(backup.manifest.rows):
        raise BackupError(f"the dump has the data of {tables} tables instead of {len(backup.manifest.rows)}")


def settings_file(settings: Settings) -> str:
    """The settings that are set, as lines of a `.env` file. Secrets are named only."""
    lines: list[str] = []
    for name in sorted(settings.model_fields_set):
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            lines.append(f"# {variable_name(name)} is a secret and was set")
        elif value is not None:
            lines.append(f"{variable_name(name)}={shlex.quote(str(display_setting(value)))}")
    return "".join(f"{line}\n" for line in lines)
