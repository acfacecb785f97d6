"""The ring follows its file, whoever changes it, and the file is always a whole one."""

import os
import signal
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path, PosixPath

import pytest
from structlog.testing import capture_logs

from pabal.core.base64url import encoded
from pabal.core.errors import Failed, Misconfigured
from pabal.keys.document import Document, Written, text
from pabal.keys.key import Keys, State, Use
from pabal.keys.ring import FILE, Ring, from_file, from_folder, from_setting

BEFORE = """
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from pabal.keys.key import Use
from pabal.keys.ring import from_folder
folder = Path(sys.argv[1])
def rotated(keys):
    return keys.rotated(Use, datetime.now(UTC))
"""
ROTATE = "with from_folder(folder).changing(rotated): pass"
DIE = "with from_folder(folder).changing(rotated): os.kill(os.getpid(), signal.SIGKILL)"
MAKE = "print('ready', flush=True); sys.stdin.read(); print(*(key.id for key in from_folder(folder).keys.every))"


def elsewhere(code: str, folder: Path, **life: int) -> "subprocess.Popen[str]":
    """Do it in another process."""
    return subprocess.Popen(
        [sys.executable, "-c", BEFORE + code, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        umask=life.get("umask", -1),
    )


def done(process: "subprocess.Popen[str]", code: int = 0) -> str:
    told, _ = process.communicate(timeout=60)
    assert process.returncode == code
    return told


def rotate(keys: Keys) -> Keys:
    return keys.rotated(Use, datetime.now(UTC))


def change(ring: Ring) -> None:
    with ring.changing(rotate):
        pass


def secrets_of(ring: Ring) -> list[str]:
    return [encoded(key.secret) for key in ring.keys.every]


def test_the_first_start_makes_them_and_the_next_finds_them(tmp_path: Path) -> None:
    first = from_folder(tmp_path / "not" / "yet")

    assert from_folder(tmp_path / "not" / "yet").keys == first.keys
    assert first.kept == tmp_path / "not" / "yet" / FILE


def test_the_file_is_for_its_owner_only_under_a_lax_umask_too(tmp_path: Path) -> None:
    done(elsewhere(MAKE, tmp_path, umask=0))
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {
        "keys.json": 0o600,
        "keys.lock": 0o600,
    }

    (tmp_path / FILE).chmod(0o644)
    done(elsewhere(ROTATE, tmp_path, umask=0))
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_leaves_the_file_to_whom_it_belonged(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    ring = from_folder(tmp_path)
    assert {path.stat().st_uid for path in tmp_path.iterdir()} == {65534}

    change(ring)
    assert {path.stat().st_uid for path in tmp_path.iterdir()} == {65534}


def test_killed_before_the_rename_it_leaves_the_old_ones(tmp_path: Path) -> None:
    ring = from_folder(tmp_path)
    before = ring.keys

    done(elsewhere(DIE, tmp_path), code=-signal.SIGKILL)

    assert (tmp_path / "keys.new").exists()  # it came as far as that
    assert from_folder(tmp_path).keys == before
    change(ring)
    assert from_folder(tmp_path).keys == ring.keys != before


def test_a_block_that_fails_changes_nothing(tmp_path: Path) -> None:
    ring = from_folder(tmp_path)
    before = ring.keys

    with pytest.raises(RuntimeError), ring.changing(rotate):
        raise RuntimeError

    assert from_folder(tmp_path).keys == ring.keys == before
    assert not (tmp_path / "keys.new").exists()


def test_processes_that_start_at_once_have_the_same_keys(tmp_path: Path) -> None:
    starting = [elsewhere(MAKE, tmp_path / "data") for _ in range(6)]
    for process in starting:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in starting:
        assert process.stdin
        process.stdin.close()
        process.stdin = None
    told = {done(process).splitlines()[-1] for process in starting}

    assert len(told) == 1
    assert told.pop().split() == [key.id for key in from_folder(tmp_path / "data").keys.every]


def test_changes_at_the_same_time_are_all_made(tmp_path: Path) -> None:
    ring = from_folder(tmp_path)

    changing = [elsewhere(ROTATE, tmp_path) for _ in range(4)]
    for process in changing:
        done(process)

    assert len([key for key in ring.keys.of(Use.AUDIT) if key.state is State.OLD]) == 4


def test_a_change_by_another_process_is_seen_when_told_and_before_a_key_works(tmp_path: Path) -> None:
    told, working = from_folder(tmp_path), from_folder(tmp_path)
    assert not told.refresh()
    before = told.active(Use.SIGNING)

    done(elsewhere(ROTATE, tmp_path))

    assert told.refresh()
    assert not told.refresh()
    assert working.active(Use.SIGNING).id != before.id
    assert working.find(before.id) == working.keys.find(before.id) != before  # now it is old


def test_a_key_we_do_not_know_may_be_in_the_file(tmp_path: Path) -> None:
    ring = from_folder(tmp_path)
    done(elsewhere(ROTATE, tmp_path))
    [unknown] = [key for key in from_folder(tmp_path).keys.of(Use.SIGNING) if key.state is State.NEXT]

    assert ring.find(unknown.id) == unknown
    assert ring.find("nobody") is None


def test_a_change_while_the_file_is_being_read_is_seen_at_the_next_look(tmp_path: Path) -> None:
    class Slow(PosixPath):
        """A file that changes behind the back of whoever has just read it."""

        def read_bytes(self) -> bytes:
            found = Path(self).read_bytes()
            change(from_file(Path(self)))
            return found

    from_folder(tmp_path)

    ring = from_file(Slow(tmp_path / FILE))
    ring.kept = tmp_path / FILE

    assert ring.active(Use.SIGNING) == from_folder(tmp_path).active(Use.SIGNING)


@pytest.mark.parametrize("broken", ["", "{}", '{"keys": []}', None])
def test_a_file_that_cannot_be_read_changes_nothing_and_is_told_once(tmp_path: Path, broken: str | None) -> None:
    ring = from_folder(tmp_path)
    before, whole = ring.keys, (tmp_path / FILE).read_text()
    (tmp_path / FILE).unlink()
    if broken is not None:
        (tmp_path / FILE).write_text(broken)

    with capture_logs() as logs:
        assert ring.active(Use.AUDIT) == before.active(Use.AUDIT)
        assert ring.keys == before
        assert not ring.refresh()
    assert [line["event"] for line in logs] == ["keys unreadable"]

    (tmp_path / FILE).write_text(whole)
    assert ring.refresh()
    assert ring.keys == before


def test_where_they_cannot_be_kept_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Failed, match=r"keys\.json cannot be written: (Not a directory|File exists)"):
        from_folder(tmp_path / "file")

    ring = from_folder(tmp_path / "data")
    (tmp_path / "data" / "keys.lock").unlink()
    (tmp_path / "data" / "keys.lock").mkdir()
    with pytest.raises(Failed, match=r"keys\.json cannot be written: Is a directory"):
        change(ring)


def test_keys_from_the_settings_are_not_changed_here() -> None:
    ring = from_setting(text(Keys.made(datetime.now(UTC))).decode())

    with pytest.raises(Failed, match="PABAL_KEYS"):
        change(ring)
    assert not ring.refresh()


SECRET = "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0ISEhISE"
ENTRY = {"id": "s1", "use": "signing", "state": "active", "since": "2025-12-01T00:00:00Z", "secret": SECRET}


def written(**said: str) -> str:
    entry = ENTRY | said
    return '{"keys":[{' + ",".join(f'"{name}":"{value}"' for name, value in entry.items()) + "}]}"


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        (SECRET, "malformed"),
        ("{", "truncated"),
        (written()[:-3], "truncated"),
        (written() + SECRET, "trailing"),
        (f'["{SECRET}"]', "Expected `object`"),
        (f'{{"{SECRET}":[]}}', "unknown field"),
        (written(use=SECRET), r"enum value - at `\$\.keys\[0\]\.use`"),
        (written(state=SECRET), r"enum value - at `\$\.keys\[0\]\.state`"),
        (written(state=f"x' - at {SECRET}"), "enum value"),
        (written(since=SECRET), "datetime"),
        (written(since="2025-12-01T00:00:00"), "timezone"),
        (written(**{SECRET: ""}), "unknown field"),
        (written(id=SECRET), "the id of key 1"),
        (written(secret=SECRET + "="), "the secret of key 1 is not base64url"),
        (written(id="s2", secret=SECRET[:-4]), "exactly one is active"),
        (written(), "of the encryption keys exactly one is active"),
        ("\udcff" + SECRET, "can't encode"),
    ],
)
def test_a_malformed_setting_is_told_in_one_line_that_quotes_no_secret(setting: str, why: str) -> None:
    with pytest.raises(Misconfigured, match=why) as refused:
        from_setting(setting)

    told = str(refused.value)
    assert told.startswith("PABAL_KEYS: cannot be read: ")
    assert "\n" not in told
    assert SECRET[:-4] not in told
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


def test_neither_what_is_said_nor_what_is_logged_shows_a_secret(tmp_path: Path) -> None:
    with capture_logs() as logs:
        ring = from_folder(tmp_path)
        done(elsewhere(ROTATE, tmp_path))
        ring.refresh()
        (tmp_path / FILE).write_bytes(text(ring.keys).replace(b'"signing"', b'"else"'))
        ring.refresh()
    entry = Written("s1", Use.SIGNING, State.ACTIVE, datetime.now(UTC), SECRET)

    assert [line["event"] for line in logs] == ["keys made", "keys changed", "keys unreadable"]
    said = f"{logs} {ring!r} {ring.keys} {entry!r} {entry} {Document([entry])!r}"
    assert [secret for secret in [SECRET, *secrets_of(ring)] if secret in said] == []
