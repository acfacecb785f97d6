"""Started by root, the server has a user of its own, and data of `nobody` is given to it."""

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from db.embedded.owner import FAST, ROOT, Owner, has_value, insert_value
from pabal.core.errors import EmbeddedServerError
from pabal.core.finding import FindingLevel
from pabal.db.embedded import start_embedded_server
from pabal.db.embedded.checks import check_server_user
from pabal.db.embedded.os_user import find_server_user, is_service_account, require_os_user
from pabal.db.embedded.postmaster import is_server_of

as_root = pytest.mark.skipif(not ROOT, reason="requires root")
StartOwner = Callable[..., Owner]
DATA = "postgres-18"
ACCOUNTS = {"pabal", "pabal-postgres"}
NOLOGIN, BASH = "/usr/sbin/nologin", "/bin/bash"

# The user database is a copy that only this process sees.
IN_NAMESPACE = 'mount --bind "$1" /etc && eval "$2" && exec "$3" -c "$4"'
REPORT_USER = """
import json, pwd
from structlog.testing import capture_logs
from pabal.db.embedded import ensure_server_user
with capture_logs() as logs:
    users = [ensure_server_user() for _ in range(2)]
entry = pwd.getpwuid(users[0].uid)
print(json.dumps({
    "names": [user.name for user in users], "shared": users[0].is_shared, "uid": entry.pw_uid, "shell": entry.pw_shell,
    "home": entry.pw_dir, "logs": [line["log_level"] for line in logs],
}))
"""


@pytest.fixture
def ensure_user(workdir: Path) -> Callable[[str], dict[str, Any]]:
    """Creates the server's user in a copy of /etc, after a shell command has prepared it."""
    for file in ("passwd", "group", "shadow", "gshadow", "login.defs", "nsswitch.conf", "ld.so.cache", "default"):
        if (source := Path("/etc") / file).exists():
            subprocess.run(["cp", "-a", source, workdir], check=True)
    for file in ("passwd", "group", "shadow", "gshadow"):
        remove_accounts(workdir / file)

    def run(prepare: str) -> dict[str, Any]:
        command = ["unshare", "--mount", "sh", "-c", IN_NAMESPACE, "sh", workdir, prepare, sys.executable, REPORT_USER]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    return run


def remove_accounts(path: Path) -> None:
    """Remove the server's accounts. `userdel` refuses that while a server of this machine runs."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if line.partition(":")[0] not in ACCOUNTS), encoding="utf-8")


@as_root
@pytest.mark.parametrize("prepare", ["true", "groupadd --system pabal"])
def test_root_creates_a_system_user(ensure_user: Callable[[str], dict[str, Any]], prepare: str) -> None:
    user = ensure_user(prepare)

    assert user["names"] == ["pabal", "pabal"]
    assert (user["shared"], user["shell"], user["home"]) == (False, shutil.which("nologin"), "/nonexistent")
    assert 0 < user["uid"] < 1000
    assert user["logs"] == ["info"]


@as_root
def test_the_account_of_a_person_is_not_used(ensure_user: Callable[[str], dict[str, Any]]) -> None:
    user = ensure_user(f"useradd --uid 1500 --no-create-home --shell {BASH} pabal")

    assert user["names"] == ["pabal-postgres"] * 2
    assert user["uid"] < 1000


@as_root
def test_without_a_way_to_create_a_user_the_server_runs_as_nobody(ensure_user: Callable[[str], dict[str, Any]]) -> None:
    user = ensure_user("mount -o remount,ro,bind /etc")

    assert (user["names"], user["shared"]) == (["nobody", "nobody"], True)
    assert user["logs"] == ["warning", "warning"]


@as_root
def test_running_as_nobody_is_a_warning(existing: Path) -> None:
    give(existing / DATA, "nobody")
    with capture_logs() as logs, start_embedded_server(existing, options=FAST, user=require_os_user("nobody")):
        finding = check_server_user(existing)

    [warning] = [line for line in logs if line["log_level"] == "warning"]
    assert (warning["user"], "useradd" in warning["advice"]) == ("nobody", True)
    assert finding
    assert (finding.level, "nobody" in finding.seen, "useradd" in finding.advice) == (FindingLevel.WARNING, True, True)
    give(existing / DATA, find_server_user().name)


@as_root
def test_a_server_with_its_own_user_is_good(copied: Path) -> None:
    with capture_logs() as logs, start_embedded_server(copied, options=FAST, user=take_as_daemon(copied)):
        finding = check_server_user(copied)

    assert [line for line in logs if line["log_level"] == "warning"] == []
    assert finding
    assert (finding.level, finding.seen) == (FindingLevel.GOOD, "daemon")
    assert check_server_user(copied / "missing") is None


@pytest.mark.parametrize(
    ("uid", "shell", "usable"),
    [
        (999, NOLOGIN, True),
        (120, BASH, True),
        (1000, "/bin/false", True),
        (1000, BASH, False),
        (1500, "", False),
        (0, NOLOGIN, False),
    ],
)
def test_only_accounts_of_services_are_used(uid: int, shell: str, usable: bool) -> None:
    assert is_service_account(pwd.struct_passwd(("pabal", "x", uid, uid, "", "/", shell))) is usable


@as_root
@pytest.mark.parametrize("name", ["no-such-user", "root"])
def test_a_user_that_cannot_run_the_server_is_refused(name: str) -> None:
    with pytest.raises(EmbeddedServerError, match=f"PABAL_PG_USER: the user {name} "):
        find_server_user(name)


@as_root
def test_data_of_nobody_is_taken_over(copied: Path) -> None:
    give(copied / DATA, "nobody")
    with start_embedded_server(copied, options=FAST, user=require_os_user("nobody")) as server:
        value = insert_value(server.address.owner_url)

    with start_embedded_server(copied, options=FAST, user=require_os_user("daemon")) as server:
        assert has_value(server.address.owner_url, value)
        assert Path(f"/proc/{server.pid}").stat().st_uid == pwd.getpwnam("daemon").pw_uid
    assert owners(copied / DATA) == {"daemon"}
    assert stat.S_IMODE((copied / DATA).stat().st_mode) == 0o700


@as_root
def test_an_interrupted_takeover_is_repeated(copied: Path) -> None:
    give(copied / DATA, "nobody")
    give(copied / DATA / "base", "daemon")

    start_embedded_server(copied, options=FAST, user=require_os_user("daemon")).stop()

    assert owners(copied / DATA) == {"daemon"}


@as_root
def test_an_orphan_of_nobody_is_stopped_and_replaced(copied: Path, start_owner: StartOwner) -> None:
    give(copied / DATA, "nobody")
    owner = start_owner(copied, server_user="nobody")
    orphan = owner.start()["pid"]
    owner.kill()

    with start_embedded_server(copied, options=FAST, user=require_os_user("daemon")) as server:
        assert server.pid != orphan
        assert not server.is_adopted
        assert not is_server_of(orphan, copied / DATA)
        assert Path(f"/proc/{server.pid}").stat().st_uid == pwd.getpwnam("daemon").pw_uid


@as_root
def test_a_takeover_gives_away_no_file_from_elsewhere(copied: Path, workdir: Path) -> None:
    """A program of nobody may have planted links."""
    victim, linked = workdir / "victim", workdir / "linked"
    for file in (victim, linked):
        file.write_text("root's")
    give(copied / DATA, "nobody")
    (copied / DATA / "base" / "symbolic").symlink_to(victim)
    (copied / DATA / "base" / "hard").hardlink_to(linked)

    with pytest.raises(EmbeddedServerError, match="base/hard is not a plain file of nobody"):
        start_embedded_server(copied, options=FAST, user=require_os_user("daemon"))
    os.chown(linked, *ids("nobody"))
    with pytest.raises(EmbeddedServerError, match="base/hard is not a plain file of nobody"):
        start_embedded_server(copied, options=FAST, user=require_os_user("daemon"))
    (copied / DATA / "base" / "hard").unlink()
    start_embedded_server(copied, options=FAST, user=require_os_user("daemon")).stop()

    assert victim.stat().st_uid == 0


@as_root
def test_data_of_another_user_than_nobody_is_not_taken_over(copied: Path) -> None:
    give(copied / DATA, "daemon")

    with pytest.raises(EmbeddedServerError, match="belongs to daemon"):
        start_embedded_server(copied, options=FAST, user=require_os_user("nobody"))

    assert owners(copied / DATA) == {"daemon"}


def ids(name: str) -> tuple[int, int]:
    entry = pwd.getpwnam(name)
    return entry.pw_uid, entry.pw_gid


def give(folder: Path, name: str) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, *ids(name), follow_symlinks=False)


def take_as_daemon(data_dir: Path) -> Any:
    give(data_dir / DATA, "daemon")
    return require_os_user("daemon")


def owners(folder: Path) -> set[str]:
    return {pwd.getpwuid(path.lstat().st_uid).pw_name for path in (folder, *folder.rglob("*"))}
