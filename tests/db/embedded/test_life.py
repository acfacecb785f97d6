import asyncio
import json
import os
import signal
import stat
import time
from pathlib import Path

import asyncpg
import pytest

from db.embedded.owner import FAST, PG15, ROOT, ask, keep, kept
from pabal.core.errors import EmbeddedServerError
from pabal.db.embedded import attach_embedded_server, start_embedded_server
from pabal.db.embedded.postmaster import stop_process
from pabal.db.embedded.server import MAX_LOG_BYTES


def test_data_and_port_outlive_a_stop_and_all_of_it_is_quick(home: Path) -> None:
    # Unsynced: how busy the disk is with others is not ours to measure.
    began = time.monotonic()
    with start_embedded_server(home, options=FAST) as first:
        assert time.monotonic() - began < 5
        answer = keep(first.address.owner_url)
    began = time.monotonic()
    with start_embedded_server(home, options=FAST) as second:
        assert time.monotonic() - began < 2
        assert kept(second.address.owner_url, answer)
        assert second.address.port == first.address.port
        assert not second.is_adopted
        began = time.monotonic()
    assert time.monotonic() - began < 1


def test_an_untold_server_syncs_and_keeps_checksums_in_utf8_and_utc(made: Path) -> None:
    with start_embedded_server(made) as server:
        url = server.address.owner_url
        assert ask(url, "show fsync") == "on"
        assert ask(url, "show data_checksums") == "on"
        assert ask(url, "show server_encoding") == "UTF8"
        assert ask(url, "show timezone") == "UTC"
        assert ask(url, "show max_connections") == "200"


def test_options_are_settings_but_never_where_it_listens(made: Path) -> None:
    with start_embedded_server(made, options=FAST | {"max_connections": "33", "listen_addresses": "*"}) as server:
        assert ask(server.address.owner_url, "show fsync") == "off"
        assert ask(server.address.owner_url, "show max_connections") == "33"
        assert ask(server.address.owner_url, "show listen_addresses") == "127.0.0.1"
        assert ask(server.address.owner_url, "show unix_socket_directories") == ""


def test_the_owner_is_a_superuser_and_the_hub_is_not(made: Path) -> None:
    with start_embedded_server(made, options=FAST) as server:
        me = "select current_user || ' ' || rolsuper || ' ' || rolinherit from pg_roles where rolname = current_user"
        assert ask(server.address.owner_url, me) == "pabal true true"
        assert ask(server.address.hub_url, me) == "pabal_hub false true"
        owner = "select pg_get_userbyid(datdba) from pg_database where datname = current_database()"
        assert ask(server.address.hub_url, owner) == "pabal"


def test_nobody_comes_in_without_the_password(made: Path) -> None:
    async def knock(port: int, password: str | None) -> None:
        await asyncpg.connect(host="127.0.0.1", port=port, user="pabal", database="pabal", password=password)

    with start_embedded_server(made, options=FAST) as server:
        for password in ("", "pabal"):
            with pytest.raises((asyncpg.InvalidPasswordError, asyncpg.InterfaceError)):
                asyncio.run(knock(server.address.port, password))
        assert ask(server.address.owner_url, "select distinct auth_method from pg_hba_file_rules") == "scram-sha-256"


def test_passwords_are_long_kept_for_the_caller_alone_and_never_printed(made: Path) -> None:
    file = made / "passwords.json"
    passwords = json.loads(file.read_text())

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_uid == os.geteuid()
    assert len(set(passwords.values())) == 2
    assert all(len(password) >= 43 for password in passwords.values())  # 256 bits
    with start_embedded_server(made, options=FAST) as server:
        assert passwords["pabal"] in server.address.owner_url
        assert passwords["pabal_hub"] in server.address.hub_url
        assert not any(password in repr(server.address) for password in passwords.values())
        assert not any(password in (made / "postgres.log").read_text() for password in passwords.values())


def test_lost_passwords_are_replaced_and_the_data_stays(made: Path) -> None:
    with start_embedded_server(made, options=FAST) as server:
        answer = keep(server.address.owner_url)
        before = server.address
    (made / "passwords.json").unlink()

    with start_embedded_server(made, options=FAST) as server:
        assert kept(server.address.owner_url, answer)
        assert ask(server.address.hub_url, "select 1") == 1
        with pytest.raises(asyncpg.InvalidPasswordError):
            ask(before.owner_url, "select 1")


def test_stopping_twice_is_stopping_once(made: Path) -> None:
    server = start_embedded_server(made, options=FAST)
    assert server.is_alive()
    server.stop()
    assert not server.is_alive()
    with start_embedded_server(made, options=FAST) as next_one:
        server.stop()
        assert next_one.is_alive()
        assert attach_embedded_server(made) == next_one.address
    assert attach_embedded_server(made) is None


def test_a_server_that_died_under_its_owner_is_seen_dead(made: Path) -> None:
    with start_embedded_server(made, options=FAST) as server:
        os.kill(server.pid, signal.SIGKILL)
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        assert not server.is_alive()


def test_a_frozen_server_is_ended_too(made: Path) -> None:
    with start_embedded_server(made, options=FAST) as server:
        os.kill(server.pid, signal.SIGSTOP)
        quick = ((signal.SIGINT, 0.05), (signal.SIGQUIT, 0.05))
        with pytest.raises(EmbeddedServerError, match=f"pid {server.pid}"):
            stop_process(server.pid, server.is_alive, quick)
        stop_process(server.pid, server.is_alive, (*quick, (signal.SIGKILL, 10.0)))
        assert not server.is_alive()


def test_a_log_grown_large_starts_over(made: Path) -> None:
    log = made / "postgres.log"
    log.write_bytes(b"." * (MAX_LOG_BYTES + 1))
    start_embedded_server(made, options=FAST).stop()
    assert 0 < log.stat().st_size < MAX_LOG_BYTES

    before = log.read_bytes()
    start_embedded_server(made, options=FAST).stop()
    assert log.read_bytes().startswith(before)


@pytest.mark.skipif(not PG15.is_dir(), reason="PostgreSQL 15 is not installed")
def test_the_oldest_version_serves_as_well(home: Path) -> None:
    with start_embedded_server(home, pg_bin=PG15, options=FAST) as server:
        assert ask(server.address.hub_url, "show server_version").startswith("15.")
        assert (home / "postgres-15" / "PG_VERSION").is_file()


@pytest.mark.skipif(not ROOT, reason="only root lends the server another user")
def test_root_lends_the_server_a_user_who_owns_nothing_but_the_data(made: Path) -> None:
    with start_embedded_server(made, options=FAST) as server:
        status = Path(f"/proc/{server.pid}/status").read_text()
        uids, groups = (next(line for line in status.splitlines() if line.startswith(key)) for key in ("Uid", "Groups"))
        assert "0" not in uids.split()
        assert "0" not in groups.split()
    owned = {path.name for path in made.iterdir() if path.stat().st_uid != 0}
    assert owned == {"postgres-18"}
