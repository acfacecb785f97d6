"""`pabal backup` and `restore`: a hub moves to another data directory; a bad file or place is refused."""

import asyncio
import re
import tarfile
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import pytest

from pabal.db.backup import archive
from pabal.db.backup.archive import create_backup_file, read_backup
from pabal.db.backup.contents import connect_for_backup, count_rows
from support.clusters import open_connection, postgres_bin_dir, run_cluster
from support.pabal_process import fresh_folder, pabal, pabal_json, run_hub

PASSPHRASE = "correct horse battery"
SUPABASE = Path(__file__).parents[1] / "schema" / "existing" / "supabase.sql"
GRANTS_TO_ANON = """
select p.oid::regprocedure::text from pg_proc p
where p.pronamespace = 'public'::regnamespace and p.proname <> 'update_updated_at_column'
  and has_function_privilege('anon', p.oid, 'execute')
union all
select c.oid::regclass::text from pg_class c
where c.relnamespace = 'public'::regnamespace and c.relkind = 'r' and c.relname <> 'profiles'
  and has_table_privilege('anon', c.oid, 'select, insert, update, delete')
"""
DISCORD_TOKEN = "a-token-that-no-file-may-contain"


@dataclass(frozen=True)
class StoppedHub:
    """A hub that ran and was backed up with its keys."""

    folder: Path
    backup: Path


@pytest.fixture(scope="module")
def stopped_hub() -> Generator[StoppedHub]:
    with fresh_folder() as folder:
        backup = folder / "hub.pabal"
        with run_hub(folder, PABAL_WEBHOOK_PER_CHANNEL="77", PABAL_DISCORD_TOKEN=DISCORD_TOKEN) as hub:
            pabal("service", "add", "shop", "--permission", "write", folder=folder)
            pabal_json("event", "publish", "order.paid", "--source", "shop", "--payload", '{"order": 7}', folder=folder)
            written = pabal_json(
                *("backup", str(backup), "--with-keys"),
                folder=folder,
                PABAL_WEBHOOK_PER_CHANNEL="77",
                PABAL_DISCORD_TOKEN=DISCORD_TOKEN,
                PABAL_BACKUP_PASSPHRASE=PASSPHRASE,
            )
            hub.end()
        assert written["rows"] == sum(read_backup(backup).manifest.rows.values())
        yield StoppedHub(folder, backup)


def files_of(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("data/*")}


def test_a_backup_is_private_and_contains_no_secret_in_plain_text(stopped_hub: StoppedHub) -> None:
    content, data = stopped_hub.backup.read_bytes(), stopped_hub.folder / "data"
    keys = msgspec.json.decode((data / "keys.json").read_bytes())

    assert stopped_hub.backup.stat().st_mode & 0o777 == 0o600
    assert list(stopped_hub.folder.glob(".hub.pabal*")) == []
    with tarfile.open(stopped_hub.backup) as file:
        settings = file.extractfile(archive.SETTINGS_MEMBER)
        assert settings
        lines = settings.read().decode().splitlines()
    assert "PABAL_WEBHOOK_PER_CHANNEL=77" in lines
    assert "# PABAL_DISCORD_TOKEN is a secret and was set" in lines
    secrets = [DISCORD_TOKEN, PASSPHRASE, (data / "webhook-secret").read_text().strip()]
    secrets += re.findall(r'"secret": ?"([^"]+)"', msgspec.json.encode(keys).decode())
    assert len(secrets) >= 9
    assert [secret for secret in secrets if secret.encode() in content] == []


def test_a_restored_hub_has_the_data_the_keys_and_its_audit_log(stopped_hub: StoppedHub, folder: Path) -> None:
    result = pabal_json(
        "restore",
        str(stopped_hub.backup),
        "--accept-audit",
        "Moved to a new server",
        folder=folder,
        PABAL_BACKUP_PASSPHRASE=PASSPHRASE,
    )

    manifest = read_backup(stopped_hub.backup).manifest
    assert (result["rows"], result["audit"]) == (sum(manifest.rows.values()), "intact")
    assert {"PABAL_WEBHOOK_PER_CHANNEL", "PABAL_DISCORD_TOKEN"} <= {*result["settings_not_set"]}
    for name in ("keys.json", "webhook-secret"):
        restored = folder / "data" / name
        assert restored.read_bytes() == (stopped_hub.folder / "data" / name).read_bytes()
        assert restored.stat().st_mode & 0o777 == 0o600
    with run_hub(stopped_hub.folder) as old, run_hub(folder) as new:
        assert old.address != new.address
        assert new.password is None  # the operator was restored
        [event] = pabal_json("event", "list", "--type", "order.paid", folder=folder)["items"]
        assert event["source_service"] == "shop"
        assert pabal_json("audit", "verify", folder=folder)["broken"] == 0
        accepted = pabal_json("audit", "list", "--action", "audit.restore_accepted", folder=folder)["items"]
        assert [entry["details"]["reason"] for entry in accepted] == ["Moved to a new server"]
        assert asyncio.run(role_of_login(folder)) == ("pabal_hub", True)


async def role_of_login(folder: Path) -> tuple[str, bool]:
    url = pabal("db", "url", folder=folder).stdout.strip()
    async with open_connection(url) as conn:
        row = await conn.fetchrow("select current_user::text, pg_has_role('service_role', 'usage')")
    assert row
    return row[0], row[1]


def damage(backup: Path, folder: Path, what: str) -> Path:
    content = bytearray(backup.read_bytes())
    offsets = read_backup(backup).offsets
    match what:
        case "cut in the dump":
            del content[offsets[archive.DUMP_MEMBER] + 5000 :]
        case "cut before the manifest":
            del content[offsets[archive.MANIFEST_MEMBER] - tarfile.BLOCKSIZE :]
        case "empty":
            content.clear()
        case "header":
            content[offsets[archive.DUMP_MEMBER] - tarfile.BLOCKSIZE + 3] ^= 1
        case member:
            content[offsets[member] + 20] ^= 1
    path = folder / "damaged.pabal"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "what",
    [
        *("cut in the dump", "cut before the manifest", "empty", "header"),
        *(archive.DUMP_MEMBER, archive.KEYS_MEMBER, archive.SETTINGS_MEMBER),
        *(archive.MANIFEST_MEMBER, archive.CHECKSUM_MEMBER),
    ],
)
def test_a_damaged_file_is_refused_and_nothing_changes(stopped_hub: StoppedHub, folder: Path, what: str) -> None:
    damaged = damage(stopped_hub.backup, folder, what)

    refused = pabal("restore", str(damaged), folder=folder, code=1, PABAL_BACKUP_PASSPHRASE=PASSPHRASE)

    assert re.search(r"is damaged|is not a backup", refused.stderr)
    assert files_of(folder) == set()


def test_a_wrong_passphrase_is_refused_and_nothing_changes(stopped_hub: StoppedHub, folder: Path) -> None:
    (folder / "passphrase").write_text("incorrect horse battery\n")
    wrong = ("--passphrase-file", str(folder / "passphrase"))

    refused = pabal("restore", str(stopped_hub.backup), *wrong, folder=folder, code=1)
    missing = pabal("restore", str(stopped_hub.backup), folder=folder, code=1)
    short = pabal("restore", str(stopped_hub.backup), folder=folder, code=1, PABAL_BACKUP_PASSPHRASE="short")

    assert "the passphrase is wrong" in refused.stderr
    assert "PABAL_BACKUP_PASSPHRASE" in missing.stderr
    assert "at least 12 characters" in short.stderr
    assert files_of(folder) == set()


def test_a_hub_with_data_or_keys_is_not_overwritten(stopped_hub: StoppedHub, folder: Path) -> None:
    keys = stopped_hub.folder / "data" / "keys.json"
    before = keys.read_bytes()

    has_keys = pabal(
        "restore", str(stopped_hub.backup), folder=stopped_hub.folder, code=1, PABAL_BACKUP_PASSPHRASE=PASSPHRASE
    )
    keyless = {"PABAL_KEYS": msgspec.json.encode(msgspec.json.decode(before)).decode()}
    has_data = pabal("restore", str(stopped_hub.backup), folder=stopped_hub.folder, code=1, **keyless)
    with run_hub(stopped_hub.folder):
        running = pabal("restore", str(stopped_hub.backup), folder=stopped_hub.folder, code=1, **keyless)

    assert "keys.json exists already" in has_keys.stderr
    assert "the database is not empty" in has_data.stderr
    assert "already running" in running.stderr
    assert keys.read_bytes() == before
    existing = pabal("backup", str(stopped_hub.backup), folder=stopped_hub.folder, code=1)
    assert "exists already" in existing.stderr


def rewrite(backup: Path, path: Path, **changes: object) -> None:
    """Write a backup with the same members and another manifest."""
    source = read_backup(backup)
    with create_backup_file(path) as (_, writer):
        for name in source.manifest.members:
            writer.add_member(name, source.read_member(name))
        writer.finish(msgspec.structs.replace(source.manifest, **changes))


def test_the_backup_of_a_newer_version_is_refused(stopped_hub: StoppedHub, folder: Path) -> None:
    manifest = read_backup(stopped_hub.backup).manifest
    unknown = msgspec.json.decode(
        msgspec.json.encode(manifest.migrations[-1]).replace(b'"version":"20', b'"version":"99'),
        type=type(manifest.migrations[-1]),
    )
    rewrite(stopped_hub.backup, folder / "migrated.pabal", migrations=(*manifest.migrations, unknown), version="9.0")
    rewrite(stopped_hub.backup, folder / "format.pabal", format=2)
    rewrite(stopped_hub.backup, folder / "server.pabal", server_major=99)

    migrated, newer_format, server = (
        pabal(
            "restore", str(folder / f"{name}.pabal"), folder=folder, code=1, PABAL_BACKUP_PASSPHRASE=PASSPHRASE
        ).stderr
        for name in ("migrated", "format", "server")
    )

    assert "was written by Pabal 9.0: the database is newer than this Pabal" in migrated
    assert "was written by a newer Pabal" in newer_format
    assert "is from PostgreSQL 99 and cannot be loaded" in server
    assert "keys.json" not in files_of(folder)


def test_an_older_head_of_this_host_needs_an_explicit_acceptance(stopped_hub: StoppedHub, folder: Path) -> None:
    """A host that has seen a later seal than the backup's does not seal the restored log by itself."""
    (folder / "data").mkdir(mode=0o711)
    head = folder / "data" / "audit-head.json"
    head.write_text(msgspec.json.encode({"id": 900, "digest": "ab" * 32, "count": 1}).decode())

    restored = pabal("restore", str(stopped_hub.backup), folder=folder, PABAL_BACKUP_PASSPHRASE=PASSPHRASE)

    command = re.search(r"Accept the restored log: pabal (.+)", restored.stderr.replace("\n", " "))
    assert command
    assert '"id":900' in head.read_text()
    pabal("audit", "accept-restore", "--reason", "Restored a backup", "--yes", folder=folder)
    assert '"id":900' not in head.read_text()
    assert pabal_json("audit", "verify", folder=folder)["broken"] == 0


def test_a_load_that_fails_leaves_the_database_empty(stopped_hub: StoppedHub, folder: Path) -> None:
    """The manifest and the hashes fit, but the dump does not: it ends in the data of its last table."""
    source, path = read_backup(stopped_hub.backup), folder / "short.pabal"
    with create_backup_file(path) as (_, writer):
        for name in source.manifest.members:
            content = source.read_member(name)
            writer.add_member(name, content[:-100] if name == archive.DUMP_MEMBER else content)
        writer.finish(msgspec.structs.replace(source.manifest, members=writer.members.copy()))

    refused = pabal("restore", str(path), folder=folder, code=1, PABAL_BACKUP_PASSPHRASE=PASSPHRASE)

    assert "pg_restore failed" in refused.stderr
    assert "keys.json" not in files_of(folder)
    assert list(folder.glob("data/*.new")) == []
    pabal("restore", str(stopped_hub.backup), folder=folder, PABAL_BACKUP_PASSPHRASE=PASSPHRASE)


@pytest.mark.parametrize("flavour", ["wheel", "pg15"])
def test_an_external_database_is_restored_on_another_server_with_its_roles(folder: Path, flavour: str) -> None:
    programs = postgres_bin_dir(flavour)
    if programs is None:
        pytest.skip("PostgreSQL 15 is not installed")
    backup = folder / "external.pabal"
    with run_cluster(programs) as source, run_cluster(programs) as target:
        from_url, to_url = (asyncio.run(server.fresh_database()) for server in (source, target))
        pabal("migrate", "up", folder=folder, PABAL_DATABASE_URL=from_url)
        asyncio.run(run_sql(from_url, "create role report login; grant select on public.services to report"))

        pabal("backup", str(backup), folder=folder, PABAL_DATABASE_URL=from_url)
        result = pabal("restore", str(backup), folder=folder, PABAL_DATABASE_URL=to_url)
        again = pabal("restore", str(backup), folder=folder, PABAL_DATABASE_URL=to_url, code=1)

        assert "tables restored and counted" in result.stdout
        assert "There are no keys here" in result.stdout
        assert "the database is not empty" in again.stderr
        assert asyncio.run(count_rows_of(to_url)) == read_backup(backup).manifest.rows
        assert asyncio.run(run_sql(to_url, "select has_table_privilege('report', 'public.services', 'select')")) is True
        states = {
            item["state"] for item in pabal_json("migrate", "status", folder=folder, PABAL_DATABASE_URL=to_url)["items"]
        }
        assert states == {"applied"}


def test_a_backup_is_restored_into_a_database_of_supabase(stopped_hub: StoppedHub, folder: Path) -> None:
    programs = postgres_bin_dir("wheel")
    assert programs is not None
    with run_cluster(programs) as server:
        superuser = asyncio.run(server.fresh_database())
        url = server.url(superuser.rpartition("/")[2], user="postgres")
        asyncio.run(run_sql(superuser, SUPABASE.read_text("utf-8")))
        restore = partial(pabal, folder=folder, PABAL_DATABASE_URL=url, PABAL_BACKUP_PASSPHRASE=PASSPHRASE)
        refused = restore("restore", str(stopped_hub.backup), code=1)
        assert "nothing was changed: table public.profiles has no column role; run: alter table" in refused.stderr

        asyncio.run(run_sql(superuser, "alter table public.profiles add column role text"))
        asyncio.run(run_sql(superuser, "insert into auth.users (id) values (gen_random_uuid())"))
        owned = "select string_agg(kind || ' ' || name, ', ' order by kind, name) from pabal.created_objects"

        result = restore("restore", str(stopped_hub.backup))
        event = "select count(*) from public.event_queue where event_type = 'order.paid'"

        assert "tables restored and counted" in result.stdout
        assert asyncio.run(run_sql(url, event)) == 1
        assert asyncio.run(run_sql(url, "select count(*) from auth.users")) == 1
        assert asyncio.run(run_sql(url, f"select array({GRANTS_TO_ANON})")) == []
        assert "auth" not in str(asyncio.run(run_sql(url, owned)))
        pabal("migrate", "down", "--yes", folder=folder, PABAL_DATABASE_URL=url)
        assert asyncio.run(run_sql(url, "select count(*) from auth.users")) == 1
        assert asyncio.run(run_sql(url, "select to_regclass('public.profiles') is not null")) is True


async def run_sql(url: str, sql: str) -> object:
    async with open_connection(url) as conn:
        if not sql.startswith("select"):
            return await conn.execute(sql)
        return await conn.fetchval(sql)


async def count_rows_of(url: str) -> dict[str, int]:
    async with connect_for_backup(url) as conn:
        return await count_rows(conn)
