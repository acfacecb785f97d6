"""The key ring follows changes of its file, and the file is always complete."""

import os
import signal
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path, PosixPath

import pytest
from structlog.testing import capture_logs

from pabal.core.errors import InvalidSettings, SetupError
from pabal.core.secrets import encode_base64url
from pabal.keys.key import KeyDocument, KeyRecord, KeySet, KeyState, KeyUse, encode_key_set
from pabal.keys.keyring import KEY_FILE_NAME, KeyRing, keyring_from_file, keyring_from_setting, open_or_create_keyring

PREAMBLE = """
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from pabal.keys.key import KeyUse
from pabal.keys.keyring import open_or_create_keyring
folder = Path(sys.argv[1])
def rotate(keys):
    return keys.rotate(KeyUse, datetime.now(UTC))
"""
ROTATE = "with open_or_create_keyring(folder).update(rotate): pass"
KILL_DURING_UPDATE = "with open_or_create_keyring(folder).update(rotate): os.kill(os.getpid(), signal.SIGKILL)"
CREATE = """
print("ready", flush=True)
sys.stdin.read()
print(*(key.id for key in open_or_create_keyring(folder).keys.all_keys))
"""


def run_in_process(code: str, folder: Path, **options: int) -> "subprocess.Popen[str]":
    """Run code in another process."""
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + code, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        umask=options.get("umask", -1),
    )


def output_of(process: "subprocess.Popen[str]", code: int = 0) -> str:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code
    return output


def rotate(keys: KeySet) -> KeySet:
    return keys.rotate(KeyUse, datetime.now(UTC))


def rotate_ring(ring: KeyRing) -> None:
    with ring.update(rotate):
        pass


def secrets_of(ring: KeyRing) -> list[str]:
    return [encode_base64url(key.secret) for key in ring.keys.all_keys]


def test_the_first_start_generates_the_keys_and_the_next_reads_them(tmp_path: Path) -> None:
    first = open_or_create_keyring(tmp_path / "new" / "folder")

    assert open_or_create_keyring(tmp_path / "new" / "folder").keys == first.keys
    assert first.path == tmp_path / "new" / "folder" / KEY_FILE_NAME


def test_the_file_is_private_even_with_a_lax_umask(tmp_path: Path) -> None:
    output_of(run_in_process(CREATE, tmp_path, umask=0))
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {
        "keys.json": 0o600,
        "keys.lock": 0o600,
    }

    (tmp_path / KEY_FILE_NAME).chmod(0o644)
    output_of(run_in_process(ROTATE, tmp_path, umask=0))
    assert stat.S_IMODE((tmp_path / KEY_FILE_NAME).stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of files")
def test_root_keeps_the_owner_of_the_file(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    ring = open_or_create_keyring(tmp_path)
    assert {path.stat().st_uid for path in tmp_path.iterdir()} == {65534}

    rotate_ring(ring)
    assert {path.stat().st_uid for path in tmp_path.iterdir()} == {65534}


def test_a_process_killed_before_the_rename_leaves_the_old_keys(tmp_path: Path) -> None:
    ring = open_or_create_keyring(tmp_path)
    before = ring.keys

    output_of(run_in_process(KILL_DURING_UPDATE, tmp_path), code=-signal.SIGKILL)

    assert (tmp_path / "keys.new").exists()  # the new file was written
    assert open_or_create_keyring(tmp_path).keys == before
    rotate_ring(ring)
    assert open_or_create_keyring(tmp_path).keys == ring.keys != before


def test_a_block_that_fails_changes_nothing(tmp_path: Path) -> None:
    ring = open_or_create_keyring(tmp_path)
    before = ring.keys

    with pytest.raises(RuntimeError), ring.update(rotate):
        raise RuntimeError

    assert open_or_create_keyring(tmp_path).keys == ring.keys == before
    assert not (tmp_path / "keys.new").exists()


def test_concurrent_first_starts_have_the_same_keys(tmp_path: Path) -> None:
    processes = [run_in_process(CREATE, tmp_path / "data") for _ in range(6)]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.close()
        process.stdin = None
    key_id_lists = {output_of(process).splitlines()[-1] for process in processes}

    assert len(key_id_lists) == 1
    assert key_id_lists.pop().split() == [key.id for key in open_or_create_keyring(tmp_path / "data").keys.all_keys]


def test_concurrent_changes_are_all_applied(tmp_path: Path) -> None:
    ring = open_or_create_keyring(tmp_path)

    processes = [run_in_process(ROTATE, tmp_path) for _ in range(4)]
    for process in processes:
        output_of(process)

    assert len([key for key in ring.keys.for_use(KeyUse.AUDIT) if key.state is KeyState.OLD]) == 4


def test_a_change_by_another_process_is_seen_at_a_reload_and_before_a_key_is_used(tmp_path: Path) -> None:
    reloaded, using = open_or_create_keyring(tmp_path), open_or_create_keyring(tmp_path)
    assert not reloaded.reload()
    before = reloaded.active(KeyUse.SIGNING)

    output_of(run_in_process(ROTATE, tmp_path))

    assert reloaded.reload()
    assert not reloaded.reload()
    assert using.active(KeyUse.SIGNING).id != before.id
    assert using.find(before.id) == using.keys.find(before.id) != before  # now it is old


def test_an_unknown_key_id_reloads_the_file(tmp_path: Path) -> None:
    ring = open_or_create_keyring(tmp_path)
    output_of(run_in_process(ROTATE, tmp_path))
    [unknown] = [
        key for key in open_or_create_keyring(tmp_path).keys.for_use(KeyUse.SIGNING) if key.state is KeyState.NEXT
    ]

    assert ring.find(unknown.id) == unknown
    assert ring.find("unknown") is None


def test_a_change_during_a_read_is_seen_at_the_next_use(tmp_path: Path) -> None:
    class ChangingPath(PosixPath):
        """A file that changes right after it was read."""

        def read_bytes(self) -> bytes:
            content = Path(self).read_bytes()
            rotate_ring(keyring_from_file(Path(self)))
            return content

    open_or_create_keyring(tmp_path)

    ring = keyring_from_file(ChangingPath(tmp_path / KEY_FILE_NAME))
    ring.path = tmp_path / KEY_FILE_NAME

    assert ring.active(KeyUse.SIGNING) == open_or_create_keyring(tmp_path).active(KeyUse.SIGNING)


@pytest.mark.parametrize("invalid_content", ["", "{}", '{"keys": []}', None])
def test_an_unreadable_file_keeps_the_keys_and_is_logged_once(tmp_path: Path, invalid_content: str | None) -> None:
    ring = open_or_create_keyring(tmp_path)
    before, valid_content = ring.keys, (tmp_path / KEY_FILE_NAME).read_text()
    (tmp_path / KEY_FILE_NAME).unlink()
    if invalid_content is not None:
        (tmp_path / KEY_FILE_NAME).write_text(invalid_content)

    with capture_logs() as logs:
        assert ring.active(KeyUse.AUDIT) == before.active(KeyUse.AUDIT)
        assert ring.keys == before
        assert not ring.reload()
    assert [line["event"] for line in logs] == ["keys unreadable"]

    (tmp_path / KEY_FILE_NAME).write_text(valid_content)
    assert ring.reload()
    assert ring.keys == before


def test_the_error_for_an_unwritable_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match=r"keys\.json cannot be written: (Not a directory|File exists)"):
        open_or_create_keyring(tmp_path / "file")

    ring = open_or_create_keyring(tmp_path / "data")
    (tmp_path / "data" / "keys.lock").unlink()
    (tmp_path / "data" / "keys.lock").mkdir()
    with pytest.raises(SetupError, match=r"keys\.json cannot be written: Is a directory"):
        rotate_ring(ring)


def test_keys_from_the_settings_cannot_be_changed() -> None:
    ring = keyring_from_setting(encode_key_set(KeySet.generate(datetime.now(UTC))).decode())

    with pytest.raises(SetupError, match="PABAL_KEYS"):
        rotate_ring(ring)
    assert not ring.reload()


SECRET = "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0ISEhISE"
ENTRY = {"id": "s1", "use": "signing", "state": "active", "since": "2025-12-01T00:00:00Z", "secret": SECRET}


def key_document(**fields: str) -> str:
    entry = ENTRY | fields
    return '{"keys":[{' + ",".join(f'"{name}":"{value}"' for name, value in entry.items()) + "}]}"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (SECRET, "malformed"),
        ("{", "truncated"),
        (key_document()[:-3], "truncated"),
        (key_document() + SECRET, "trailing"),
        (f'["{SECRET}"]', "Expected `object`"),
        (f'{{"{SECRET}":[]}}', "unknown field"),
        (key_document(use=SECRET), r"enum value - at `\$\.keys\[0\]\.use`"),
        (key_document(state=SECRET), r"enum value - at `\$\.keys\[0\]\.state`"),
        (key_document(state=f"x' - at {SECRET}"), "enum value"),
        (key_document(since=SECRET), "datetime"),
        (key_document(since="2025-12-01T00:00:00"), "timezone"),
        (key_document(**{SECRET: ""}), "unknown field"),
        (key_document(id=SECRET), "the id of key 1"),
        (key_document(secret=SECRET + "="), "the secret of key 1 is not base64url"),
        (key_document(id="s2", secret=SECRET[:-4]), "exactly one encryption key must be active"),
        (key_document(), "exactly one encryption key must be active"),
        ("\udcff" + SECRET, "can't encode"),
    ],
)
def test_the_error_for_a_malformed_setting_is_one_line_without_secrets(setting: str, message: str) -> None:
    with pytest.raises(InvalidSettings, match=message) as error:
        keyring_from_setting(setting)

    text = str(error.value)
    assert text.startswith("PABAL_KEYS: cannot be read: ")
    assert "\n" not in text
    assert SECRET[:-4] not in text
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__


def test_errors_and_logs_show_no_secret(tmp_path: Path) -> None:
    with capture_logs() as logs:
        ring = open_or_create_keyring(tmp_path)
        output_of(run_in_process(ROTATE, tmp_path))
        ring.reload()
        (tmp_path / KEY_FILE_NAME).write_bytes(encode_key_set(ring.keys).replace(b'"signing"', b'"else"'))
        ring.reload()
    entry = KeyRecord("s1", KeyUse.SIGNING, KeyState.ACTIVE, datetime.now(UTC), SECRET)

    assert [line["event"] for line in logs] == ["keys generated", "keys changed", "keys unreadable"]
    text = f"{logs} {ring!r} {ring.keys} {entry!r} {entry} {KeyDocument([entry])!r}"
    assert [secret for secret in [SECRET, *secrets_of(ring)] if secret in text] == []
