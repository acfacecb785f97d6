import os
import pwd
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from db.embedded.owner import FAST, ROOT, Owner, has_value, insert_value, query, wait_for, write_pid_file
from pabal.core.errors import EmbeddedServerError
from pabal.db.embedded import attach_embedded_server, start_embedded_server
from pabal.db.embedded.os_user import find_server_user
from pabal.db.embedded.postmaster import find_running_server, read_pid_file

StartOwner = Callable[..., Owner]


def test_a_second_owner_is_refused_and_may_attach(existing: Path, start_owner: StartOwner) -> None:
    assert attach_embedded_server(existing) is None
    owner = start_owner(existing)
    report = owner.start()

    with pytest.raises(EmbeddedServerError, match=rf"already running .*\(pid {owner.process.pid}\)"):
        start_embedded_server(existing, options=FAST)
    attached = attach_embedded_server(existing)
    assert attached is not None
    assert attached.port == report["port"]
    assert query(attached.hub_url, "select 1") == 1
    assert owner.stop() == {"alive": False}
    assert attach_embedded_server(existing) is None


@pytest.mark.parametrize("folder", ["data_dir", "existing"])
def test_one_of_two_concurrent_owners_wins(
    folder: str, request: pytest.FixtureRequest, start_owner: StartOwner
) -> None:
    workdir: Path = request.getfixturevalue(folder)
    racers = [start_owner(workdir), start_owner(workdir)]
    for racer in racers:
        racer.send_start()
    reports = [racer.read_report() for racer in racers]

    assert sorted("pid" in value for value in reports) == [False, True]
    [error] = [value["failed"] for value in reports if "failed" in value]
    assert "already running" in error


def test_the_server_of_a_killed_owner_is_adopted(existing: Path, start_owner: StartOwner) -> None:
    owner = start_owner(existing)
    report = owner.start()
    value = insert_value(report["url"])
    owner.kill()

    with start_embedded_server(existing, options=FAST) as server:
        assert server.is_adopted
        assert server.pid == report["pid"]
        assert server.is_alive()
        assert has_value(server.address.owner_url, value)
    assert not server.is_alive()
    assert attach_embedded_server(existing) is None


def test_an_orphan_on_another_port_is_restarted_on_the_requested_one(existing: Path, start_owner: StartOwner) -> None:
    owner = start_owner(existing)
    report = owner.start()
    owner.kill()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        requested_port = probe.getsockname()[1]

    with start_embedded_server(existing, options=FAST, port=requested_port) as server:
        assert not server.is_adopted
        assert server.address.port == requested_port != report["port"]
        assert query(server.address.owner_url, "select 1") == 1


def test_killing_owner_and_server_loses_no_commit(existing: Path, start_owner: StartOwner) -> None:
    owner = start_owner(existing)
    report = owner.start()
    value = insert_value(report["url"])
    os.kill(report["pid"], signal.SIGKILL)
    owner.kill()

    with start_embedded_server(existing, options=FAST) as server:
        assert not server.is_adopted
        assert has_value(server.address.owner_url, value)


def test_a_start_waits_for_the_children_of_a_killed_server(existing: Path, start_owner: StartOwner) -> None:
    owner = start_owner(existing)
    report = owner.start()
    child = query(report["url"], "select pid from pg_stat_activity where backend_type = 'walwriter'")
    os.kill(child, signal.SIGSTOP)
    try:
        os.kill(report["pid"], signal.SIGKILL)
        owner.kill()
        before = (existing / "postgres.log").stat().st_size
        next_owner = start_owner(existing)
        next_owner.send_start()
        wait_for(lambda: b"is still in use" in (existing / "postgres.log").read_bytes()[before:])
    finally:
        os.kill(child, signal.SIGCONT)
    assert next_owner.read_report()["adopted"] is False


def test_a_stopping_orphan_is_stopped_and_replaced(existing: Path, start_owner: StartOwner) -> None:
    owner = start_owner(existing)
    report = owner.start()
    owner.kill()
    with socket.create_connection(("127.0.0.1", report["port"])):  # keeps a smart shutdown waiting
        os.kill(report["pid"], signal.SIGTERM)
        wait_for(lambda: (server := read_pid_file(existing / "postgres-18")) and server.status == "stopping")
        with start_embedded_server(existing, options=FAST) as server:
            assert not server.is_adopted
            assert server.pid != report["pid"]


def test_a_reused_pid_does_not_prevent_a_start(existing: Path) -> None:
    data = existing / "postgres-18"
    user = find_server_user()
    other_process = subprocess.Popen(
        ["/bin/sleep", "600"],
        user=user.uid if user.drops_privileges else None,
        group=user.gid if user.drops_privileges else None,
    )
    try:
        with start_embedded_server(existing, options=FAST):
            rest = (data / "postmaster.pid").read_text().partition("\n")[2]
        write_pid_file(data, f"{other_process.pid}\n{rest}")

        assert attach_embedded_server(existing) is None
        with start_embedded_server(existing, options=FAST) as server:
            assert not server.is_adopted
            assert query(server.address.owner_url, "select 1") == 1
        assert other_process.poll() is None
    finally:
        other_process.kill()
        other_process.wait()


def test_the_server_of_another_directory_is_not_adopted(existing: Path, start_owner: StartOwner, workdir: Path) -> None:
    other_data_dir = workdir / "other"
    report = start_owner(other_data_dir).start()
    pid_file = (other_data_dir / "postgres-18" / "postmaster.pid").read_text()
    write_pid_file(existing / "postgres-18", pid_file)

    assert attach_embedded_server(existing) is None
    with start_embedded_server(existing, options=FAST) as server:
        assert not server.is_adopted
        assert server.address.port != report["port"]
    assert query(report["url"], "select 1") == 1


@pytest.mark.parametrize("content", ["", "garbage\n", "99999999999\n", "0\n"])
def test_a_damaged_pid_file_is_ignored(existing: Path, content: str) -> None:
    write_pid_file(existing / "postgres-18", content)
    with start_embedded_server(existing, options=FAST) as server:
        assert query(server.address.owner_url, "select 1") == 1


def test_ctrl_c_reaches_the_owner_and_not_the_server(existing: Path, start_owner: StartOwner) -> None:
    owner = start_owner(existing)
    report = owner.start()
    os.killpg(owner.process.pid, signal.SIGINT)

    assert os.getsid(report["pid"]) == report["pid"]
    assert query(report["url"], "select pg_postmaster_start_time() is not null")
    assert find_running_server(existing / "postgres-18") is not None
    assert owner.stop() == {"alive": False}


def test_the_server_inherits_no_open_files(existing: Path, start_owner: StartOwner) -> None:
    owner = start_owner(existing)
    report = owner.start()
    open_files = {str(link.readlink()) for link in Path(f"/proc/{report['pid']}/fd").iterdir()}
    environment = Path(f"/proc/{report['pid']}/environ").read_bytes()
    owner.process.kill()

    assert owner.process.stdout is not None
    assert owner.process.stdout.read() == ""  # ends only when no other process holds the pipe
    assert not any("postgres.lock" in path for path in open_files)
    assert b"A_SECRET" not in environment
    assert b"LC_ALL" in environment


def test_killing_an_owner_during_initdb_leaves_no_data_directory(data_dir: Path, start_owner: StartOwner) -> None:
    owner = start_owner(data_dir)
    owner.send_start()
    wait_for(lambda: list(data_dir.glob("postgres-18.new-*/data/global")))
    owner.kill()

    assert not (data_dir / "postgres-18").exists()
    with start_embedded_server(data_dir, options=FAST) as server:
        assert query(server.address.hub_url, "select 1") == 1


def test_temporary_files_of_killed_starts_are_removed(existing: Path) -> None:
    (existing / "postgres-18.new-abc" / "data").mkdir(parents=True)
    (existing / "passwords.json.new-abc").write_text("secret")
    start_embedded_server(existing, options=FAST).stop()
    assert not list(existing.glob("*.new-*"))


def test_an_unprivileged_user_can_own_a_server(workdir: Path, start_owner: StartOwner) -> None:
    data_dir = workdir / "home"
    data_dir.mkdir()
    nobody = pwd.getpwnam("nobody")  # the user of an unprivileged owner, if root runs the tests
    uid, gid = (nobody.pw_uid, nobody.pw_gid) if ROOT else (os.getuid(), os.getgid())
    os.chown(data_dir, uid, gid)

    owner = start_owner(data_dir, unprivileged=True)
    report = owner.start()
    assert report["attached"]
    assert not report["imported"]
    assert query(report["url"], "select 1") == 1
    owner.kill()
    next_owner = start_owner(data_dir, unprivileged=True)
    assert next_owner.start() | {"url": report["url"]} == report | {"adopted": True}
    assert next_owner.stop() == {"alive": False}
    assert {path.stat().st_uid for path in data_dir.rglob("*")} == {uid}


@pytest.mark.skipif(not ROOT, reason="requires root")
def test_a_strict_umask_does_not_lock_the_server_out(data_dir: Path, start_owner: StartOwner) -> None:
    report = start_owner(data_dir / "deeper", umask=0o077).start()
    assert query(report["url"], "select 1") == 1
