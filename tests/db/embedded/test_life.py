import asyncio
import json
import os
import signal
import stat
import time
from pathlib import Path

import asyncpg
import pytest

from db.embedded.owner import FAST, PG15, ROOT, has_value, insert_value, query
from pabal.core.errors import EmbeddedServerError
from pabal.db.embedded import attach_embedded_server, start_embedded_server
from pabal.db.embedded.data_dir import remove_temporary_files
from pabal.db.embedded.postmaster import stop_process
from pabal.db.embedded.server import MAX_LOG_BYTES


def test_data_and_port_survive_a_restart_and_starting_is_fast(data_dir: Path) -> None:
    # Without fsync, because a busy disk would distort the measurement.
    started = time.monotonic()
    with start_embedded_server(data_dir, options=FAST) as first:
        assert time.monotonic() - started < 5
        value = insert_value(first.address.owner_url)
    started = time.monotonic()
    with start_embedded_server(data_dir, options=FAST) as second:
        assert time.monotonic() - started < 2
        assert has_value(second.address.owner_url, value)
        assert second.address.port == first.address.port
        assert not second.is_adopted
        started = time.monotonic()
    assert time.monotonic() - started < 1


def test_the_defaults_are_fsync_checksums_utf8_and_utc(existing: Path) -> None:
    with start_embedded_server(existing) as server:
        url = server.address.owner_url
        assert query(url, "show fsync") == "on"
        assert query(url, "show data_checksums") == "on"
        assert query(url, "show server_encoding") == "UTF8"
        assert query(url, "show timezone") == "UTC"
        assert query(url, "show max_connections") == "200"


def test_options_cannot_change_the_listen_address(existing: Path) -> None:
    with start_embedded_server(existing, options=FAST | {"max_connections": "33", "listen_addresses": "*"}) as server:
        assert query(server.address.owner_url, "show fsync") == "off"
        assert query(server.address.owner_url, "show max_connections") == "33"
        assert query(server.address.owner_url, "show listen_addresses") == "127.0.0.1"
        assert query(server.address.owner_url, "show unix_socket_directories") == ""


def test_the_owner_is_a_superuser_and_the_hub_is_not(existing: Path) -> None:
    with start_embedded_server(existing, options=FAST) as server:
        role = "select current_user || ' ' || rolsuper || ' ' || rolinherit from pg_roles where rolname = current_user"
        assert query(server.address.owner_url, role) == "pabal true true"
        assert query(server.address.hub_url, role) == "pabal_hub false true"
        owner = "select pg_get_userbyid(datdba) from pg_database where datname = current_database()"
        assert query(server.address.hub_url, owner) == "pabal"


def test_connections_require_the_password(existing: Path) -> None:
    async def connect(port: int, password: str | None) -> None:
        await asyncpg.connect(host="127.0.0.1", port=port, user="pabal", database="pabal", password=password)

    with start_embedded_server(existing, options=FAST) as server:
        for password in ("", "pabal"):
            with pytest.raises((asyncpg.InvalidPasswordError, asyncpg.InterfaceError)):
                asyncio.run(connect(server.address.port, password))
        assert query(server.address.owner_url, "select distinct auth_method from pg_hba_file_rules") == "scram-sha-256"


def test_passwords_are_long_private_and_never_printed(existing: Path) -> None:
    file = existing / "passwords.json"
    passwords = json.loads(file.read_text())

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_uid == os.geteuid()
    assert len(set(passwords.values())) == 2
    assert all(len(password) >= 43 for password in passwords.values())  # 256 bits
    with start_embedded_server(existing, options=FAST) as server:
        assert passwords["pabal"] in server.address.owner_url
        assert passwords["pabal_hub"] in server.address.hub_url
        assert not any(password in repr(server.address) for password in passwords.values())
        assert not any(password in (existing / "postgres.log").read_text() for password in passwords.values())


def test_lost_passwords_are_replaced_and_the_data_stays(existing: Path) -> None:
    with start_embedded_server(existing, options=FAST) as server:
        value = insert_value(server.address.owner_url)
        before = server.address
    (existing / "passwords.json").unlink()

    with start_embedded_server(existing, options=FAST) as server:
        assert has_value(server.address.owner_url, value)
        assert query(server.address.hub_url, "select 1") == 1
        with pytest.raises(asyncpg.InvalidPasswordError):
            query(before.owner_url, "select 1")


def test_stopping_is_idempotent(existing: Path) -> None:
    server = start_embedded_server(existing, options=FAST)
    assert server.is_alive()
    server.stop()
    assert not server.is_alive()
    with start_embedded_server(existing, options=FAST) as next_server:
        server.stop()
        assert next_server.is_alive()
        assert attach_embedded_server(existing) == next_server.address
    assert attach_embedded_server(existing) is None


def test_a_killed_server_is_not_alive(existing: Path) -> None:
    with start_embedded_server(existing, options=FAST) as server:
        os.kill(server.pid, signal.SIGKILL)
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        assert not server.is_alive()


def test_a_frozen_server_is_killed(existing: Path) -> None:
    with start_embedded_server(existing, options=FAST) as server:
        os.kill(server.pid, signal.SIGSTOP)
        short_timeouts = ((signal.SIGINT, 0.05), (signal.SIGQUIT, 0.05))
        with pytest.raises(EmbeddedServerError, match=f"pid {server.pid}"):
            stop_process(server.pid, server.is_alive, short_timeouts)
        stop_process(server.pid, server.is_alive, (*short_timeouts, (signal.SIGKILL, 10.0)))
        assert not server.is_alive()


def test_a_large_log_is_truncated(existing: Path) -> None:
    log = existing / "postgres.log"
    log.write_bytes(b"." * (MAX_LOG_BYTES + 1))
    start_embedded_server(existing, options=FAST).stop()
    assert 0 < log.stat().st_size < MAX_LOG_BYTES

    before = log.read_bytes()
    start_embedded_server(existing, options=FAST).stop()
    assert log.read_bytes().startswith(before)


@pytest.mark.skipif(not PG15.is_dir(), reason="PostgreSQL 15 is not installed")
def test_the_oldest_supported_version_works(data_dir: Path) -> None:
    with start_embedded_server(data_dir, pg_bin=PG15, options=FAST) as server:
        assert query(server.address.hub_url, "show server_version").startswith("15.")
        assert (data_dir / "postgres-15" / "PG_VERSION").is_file()


@pytest.mark.skipif(not ROOT, reason="requires root")
def test_root_runs_the_server_as_a_user_that_owns_only_the_data(existing: Path) -> None:
    with start_embedded_server(existing, options=FAST) as server:
        status = Path(f"/proc/{server.pid}/status").read_text()
        uids, groups = (next(line for line in status.splitlines() if line.startswith(key)) for key in ("Uid", "Groups"))
        assert "0" not in uids.split()
        assert "0" not in groups.split()
    owned = {path.name for path in existing.iterdir() if path.stat().st_uid != 0}
    assert owned == {"postgres-18"}


def test_a_server_that_a_killed_upgrade_left_is_stopped_before_its_files_are_removed(data_dir: Path) -> None:
    left = start_embedded_server(data_dir / "postgres-18.new-left", options=FAST)
    try:
        remove_temporary_files(data_dir)
        assert not left.is_alive()
    finally:
        left.stop()
    assert list(data_dir.iterdir()) == []
