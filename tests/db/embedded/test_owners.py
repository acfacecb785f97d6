import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from db.embedded.owner import FAST, ROOT, Owner, ask, forge, keep, kept, wait_for
from pabal.core.errors import EmbeddedServerError
from pabal.db.embedded import attach_embedded_server, start_embedded_server
from pabal.db.embedded.os_user import find_server_user
from pabal.db.embedded.postmaster import find_running_server, read_pid_file

Hire = Callable[..., Owner]


def test_a_second_owner_is_refused_and_may_attach(made: Path, hire: Hire) -> None:
    assert attach_embedded_server(made) is None
    owner = hire(made)
    up = owner.go()

    with pytest.raises(EmbeddedServerError, match=rf"already running .*\(pid {owner.process.pid}\)"):
        start_embedded_server(made, options=FAST)
    visited = attach_embedded_server(made)
    assert visited is not None
    assert visited.port == up["port"]
    assert ask(visited.hub_url, "select 1") == 1
    assert owner.leave() == {"alive": False}
    assert attach_embedded_server(made) is None


@pytest.mark.parametrize("folder", ["home", "made"])
def test_of_two_racing_owners_one_wins(folder: str, request: pytest.FixtureRequest, hire: Hire) -> None:
    place: Path = request.getfixturevalue(folder)
    racers = [hire(place), hire(place)]
    for racer in racers:
        racer.send_off()
    answers = [racer.hear() for racer in racers]

    assert sorted("pid" in answer for answer in answers) == [False, True]
    [lost] = [answer["failed"] for answer in answers if "failed" in answer]
    assert "already running" in lost


def test_a_killed_owners_server_is_adopted_and_then_stopped(made: Path, hire: Hire) -> None:
    owner = hire(made)
    up = owner.go()
    answer = keep(up["url"])
    owner.kill()

    with start_embedded_server(made, options=FAST) as server:
        assert server.is_adopted
        assert server.pid == up["pid"]
        assert server.is_alive()
        assert kept(server.address.owner_url, answer)
    assert not server.is_alive()
    assert attach_embedded_server(made) is None


def test_an_orphan_on_another_port_than_asked_moves_there(made: Path, hire: Hire) -> None:
    owner = hire(made)
    up = owner.go()
    owner.kill()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        asked = probe.getsockname()[1]

    with start_embedded_server(made, options=FAST, port=asked) as server:
        assert not server.is_adopted
        assert server.address.port == asked != up["port"]
        assert ask(server.address.owner_url, "select 1") == 1


def test_owner_and_server_killed_at_once_lose_nothing_committed(made: Path, hire: Hire) -> None:
    owner = hire(made)
    up = owner.go()
    answer = keep(up["url"])
    os.kill(up["pid"], signal.SIGKILL)
    owner.kill()

    with start_embedded_server(made, options=FAST) as server:
        assert not server.is_adopted
        assert kept(server.address.owner_url, answer)


def test_a_killed_servers_last_child_is_waited_for(made: Path, hire: Hire) -> None:
    owner = hire(made)
    up = owner.go()
    child = ask(up["url"], "select pid from pg_stat_activity where backend_type = 'walwriter'")
    os.kill(child, signal.SIGSTOP)
    try:
        os.kill(up["pid"], signal.SIGKILL)
        owner.kill()
        before = (made / "postgres.log").stat().st_size
        heir = hire(made)
        heir.send_off()
        wait_for(lambda: b"is still in use" in (made / "postgres.log").read_bytes()[before:])
    finally:
        os.kill(child, signal.SIGCONT)
    assert heir.hear()["adopted"] is False


def test_an_orphan_on_its_way_out_is_seen_off_and_followed(made: Path, hire: Hire) -> None:
    owner = hire(made)
    up = owner.go()
    owner.kill()
    with socket.create_connection(("127.0.0.1", up["port"])):  # keeps a polite shutdown waiting
        os.kill(up["pid"], signal.SIGTERM)
        wait_for(lambda: (said := read_pid_file(made / "postgres-18")) and said.status == "stopping")
        with start_embedded_server(made, options=FAST) as server:
            assert not server.is_adopted
            assert server.pid != up["pid"]


def test_a_pid_that_is_somebody_elses_by_now_hinders_nobody(made: Path) -> None:
    data = made / "postgres-18"
    who = find_server_user()
    stranger = subprocess.Popen(
        ["/bin/sleep", "600"],
        user=who.uid if who.drops_privileges else None,
        group=who.gid if who.drops_privileges else None,
    )
    try:
        with start_embedded_server(made, options=FAST):
            told = (data / "postmaster.pid").read_text().partition("\n")[2]
        forge(data, f"{stranger.pid}\n{told}")

        assert attach_embedded_server(made) is None
        with start_embedded_server(made, options=FAST) as server:
            assert not server.is_adopted
            assert ask(server.address.owner_url, "select 1") == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_server_of_another_folder_is_not_taken_for_ours(made: Path, hire: Hire, place: Path) -> None:
    elsewhere = place / "elsewhere"
    up = hire(elsewhere).go()
    theirs = (elsewhere / "postgres-18" / "postmaster.pid").read_text()
    forge(made / "postgres-18", theirs)

    assert attach_embedded_server(made) is None
    with start_embedded_server(made, options=FAST) as server:
        assert not server.is_adopted
        assert server.address.port != up["port"]
    assert ask(up["url"], "select 1") == 1


@pytest.mark.parametrize("torn", ["", "garbage\n", "99999999999\n", "0\n"])
def test_a_torn_pid_file_is_no_server(made: Path, torn: str) -> None:
    forge(made / "postgres-18", torn)
    with start_embedded_server(made, options=FAST) as server:
        assert ask(server.address.owner_url, "select 1") == 1


def test_ctrl_c_reaches_the_owner_and_not_the_server(made: Path, hire: Hire) -> None:
    owner = hire(made)
    up = owner.go()
    os.killpg(owner.process.pid, signal.SIGINT)

    assert os.getsid(up["pid"]) == up["pid"]
    assert ask(up["url"], "select pg_postmaster_start_time() is not null")
    assert find_running_server(made / "postgres-18") is not None
    assert owner.leave() == {"alive": False}


def test_the_server_holds_nothing_of_its_owner_open(made: Path, hire: Hire) -> None:
    owner = hire(made)
    up = owner.go()
    held = {str(link.readlink()) for link in Path(f"/proc/{up['pid']}/fd").iterdir()}
    environment = Path(f"/proc/{up['pid']}/environ").read_bytes()
    owner.process.kill()

    assert owner.process.stdout is not None
    assert owner.process.stdout.read() == ""  # ends only when nobody else holds the pipe
    assert not any("postgres.lock" in path for path in held)
    assert b"A_SECRET" not in environment
    assert b"LC_ALL" in environment


def test_an_owner_killed_while_making_the_data_leaves_nothing_to_trust(home: Path, hire: Hire) -> None:
    owner = hire(home)
    owner.send_off()
    wait_for(lambda: list(home.glob("postgres-18.new-*/data/global")))
    owner.kill()

    assert not (home / "postgres-18").exists()
    with start_embedded_server(home, options=FAST) as server:
        assert ask(server.address.hub_url, "select 1") == 1


def test_what_killed_starts_left_half_made_is_swept(made: Path) -> None:
    (made / "postgres-18.new-abc" / "data").mkdir(parents=True)
    (made / "passwords.json.new-abc").write_text("secret")
    start_embedded_server(made, options=FAST).stop()
    assert not list(made.glob("*.new-*"))


def test_an_ordinary_user_owns_a_server_all_the_same(place: Path, hire: Hire) -> None:
    home = place / "home"
    home.mkdir()
    who = find_server_user()
    os.chown(home, who.uid, who.gid)

    owner = hire(home, unprivileged=True)
    up = owner.go()
    assert up["attached"]
    assert not up["imported"]
    assert ask(up["url"], "select 1") == 1
    owner.kill()
    heir = hire(home, unprivileged=True)
    assert heir.go() | {"url": up["url"]} == up | {"adopted": True}
    assert heir.leave() == {"alive": False}
    assert {path.stat().st_uid for path in home.rglob("*")} == {who.uid}


@pytest.mark.skipif(not ROOT, reason="only root lends the server another user")
def test_a_careful_umask_does_not_lock_the_server_out(home: Path, hire: Hire) -> None:
    up = hire(home / "deeper", umask=0o077).go()
    assert ask(up["url"], "select 1") == 1
