"""`pabal key`: no secret is shown unless asked for, and every change is in the audit log."""

import asyncio
import json
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pabal.core.ids import new_id
from pabal.db.doorbell.channels import Channel
from pabal.hub import DatabaseUrls, Hub
from pabal.keys.envelope import decrypt_envelope
from pabal.keys.key import KeyState, KeyUse
from pabal.keys.keyring import KeyRing, keyring_from_setting, open_or_create_keyring
from pabal.settings import Settings
from support.clusters import open_connection
from support.envelopes import insert_access_token, insert_envelopes, load_envelopes
from support.pabal_process import pabal, pabal_json, pabal_process
from support.wait import wait_until

USES = ["signing", "encryption", "audit"]


def keys(
    *args: str, folder: Path, database_urls: DatabaseUrls, code: int = 0, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """`pabal key` on the database of the test."""
    direct = database_urls.direct or database_urls.main
    variables |= {"PABAL_DATABASE_URL": database_urls.main, "PABAL_DATABASE_DIRECT_URL": direct}
    run = pabal_process if "FORCE_COLOR" in variables else pabal  # a progress bar needs a terminal of its own
    return run("key", *args, folder=folder, code=code, **variables)


def told_by(*args: str, folder: Path, database_urls: DatabaseUrls, **variables: str) -> Any:
    return json.loads(keys(*args, "--json", folder=folder, database_urls=database_urls, code=0, **variables).stdout)


def secrets_of(document: str) -> list[str]:
    return [key["secret"] for key in json.loads(document)["keys"]]


def in_file(folder: Path) -> KeyRing:
    return open_or_create_keyring(folder / "data")


def old_key(folder: Path, use: KeyUse) -> str:
    [old] = [key.id for key in in_file(folder).keys.for_use(use) if key.state is KeyState.OLD]
    return old


async def audit_entries(database_urls: DatabaseUrls) -> list[tuple[str, str, dict[str, Any]]]:
    """The audit entries about keys, oldest first."""
    async with open_connection(database_urls.direct or database_urls.main) as conn:
        rows = await conn.fetch(
            "select actor, action, subject, details from pabal.audit_log where action like 'key%' order by id"
        )
    assert all(row["actor"].startswith("cli:") for row in rows)
    return [(row["action"], row["subject"], json.loads(row["details"])) for row in rows]


class TestWithoutADatabase:
    def test_generate_prints_one_document(self, folder: Path) -> None:
        made = pabal("key", "generate", folder=folder)

        [document] = made.stdout.splitlines()
        assert len(keyring_from_setting(document).keys.all_keys) == 6
        [line] = made.stderr.splitlines()
        assert "secrets" in line
        assert "PABAL_KEYS" in line
        assert pabal("key", "generate", folder=folder).stdout != made.stdout
        assert not (folder / "data").exists()

    def test_list_shows_everything_but_the_secrets(self, folder: Path) -> None:
        document = pabal("key", "generate", folder=folder).stdout.strip()
        before = json.loads(document)["keys"]

        result = pabal_json("key", "list", folder=folder, PABAL_KEYS=document)["items"]
        table = pabal("key", "list", folder=folder, PABAL_KEYS=document)

        assert sorted(result, key=lambda key: key["id"]) == sorted(
            [{name: key[name] for name in ("id", "use", "state", "since")} for key in before], key=lambda key: key["id"]
        )
        assert all(key["id"] in table.stdout for key in before)
        shown = table.stdout + table.stderr + json.dumps(result)
        assert [secret for secret in secrets_of(document) if secret in shown] == []

    def test_list_creates_no_keys(self, folder: Path) -> None:
        refused = pabal("key", "list", folder=folder, code=1)

        assert refused.stderr == "pabal: There are no keys yet. The first `pabal up` creates them\n"
        assert not (folder / "data").exists()

    def test_a_broken_file_is_one_line(self, folder: Path) -> None:
        (folder / "data").mkdir()
        (folder / "data" / "keys.json").write_text("{}")

        refused = pabal("key", "list", folder=folder, code=1)

        [line] = refused.stderr.splitlines()
        assert line.endswith("keys.json is not a valid key file: Object missing required field `keys`")

    @pytest.mark.parametrize(
        ("args", "result"),
        [
            (["rotate", "--use", "nonsense"], 'Invalid value "nonsense" for --use'),
            (["retire"], "ID"),
            (["nonsense"], 'Unknown command "nonsense"'),
        ],
    )
    def test_a_mistyped_command_is_one_line(self, folder: Path, args: list[str], result: str) -> None:
        refused = pabal("key", *args, folder=folder, code=2)

        [line] = refused.stderr.splitlines()
        assert result in line


@pytest.mark.anyio
class TestWithAFile:
    async def test_rotate_changes_all_keys_or_the_named_uses(self, folder: Path, database_urls: DatabaseUrls) -> None:
        first = told_by("rotate", folder=folder, database_urls=database_urls)["items"]
        before = in_file(folder).keys

        second = told_by(
            "rotate", "--use", "audit", "--use", "signing", "--use", "audit", folder=folder, database_urls=database_urls
        )["items"]
        after = in_file(folder).keys
        table = keys("rotate", "--use", "encryption", folder=folder, database_urls=database_urls)

        assert [turn["use"] for turn in first] == USES
        assert {turn["use"]: turn["active"] for turn in first} == {use: before.active(use).id for use in KeyUse}
        assert [(turn["use"], turn["active"], turn["old"]) for turn in second] == [
            (use, after.active(use).id, before.active(use).id) for use in (KeyUse.AUDIT, KeyUse.SIGNING)
        ]
        assert after.active(KeyUse.ENCRYPTION) == before.active(KeyUse.ENCRYPTION)
        assert before.active(KeyUse.ENCRYPTION).id in table.stdout
        assert "pabal key rewrap" in table.stderr
        assert await audit_entries(database_urls) == [
            ("key.rotated", turn["active"], {"use": turn["use"], "before": turn["old"], "from": "keys.json"})
            for turn in [
                *first,
                *second,
                {
                    "use": "encryption",
                    "active": in_file(folder).active(KeyUse.ENCRYPTION).id,
                    "old": before.active(KeyUse.ENCRYPTION).id,
                },
            ]
        ]

    async def test_a_rotation_that_cannot_be_audited_does_not_happen(
        self, folder: Path, database_urls: DatabaseUrls
    ) -> None:
        keys("rotate", folder=folder, database_urls=database_urls)
        before = in_file(folder).keys
        async with open_connection(database_urls.direct or database_urls.main) as owner:
            await owner.execute("alter table pabal.audit_log add constraint full_up check (action is null) not valid")

        keys("rotate", folder=folder, code=1, database_urls=database_urls)

        assert in_file(folder).keys == before
        assert not (folder / "data" / "keys.new").exists()

    async def test_a_rotation_that_cannot_be_stored_is_not_audited(
        self, folder: Path, database_urls: DatabaseUrls
    ) -> None:
        keys("rotate", folder=folder, database_urls=database_urls)
        (folder / "data" / "keys.lock").unlink()
        (folder / "data" / "keys.lock").mkdir()

        refused = keys("rotate", folder=folder, code=1, database_urls=database_urls)

        assert refused.stderr.endswith("keys.json cannot be written: Is a directory\n")
        assert len(await audit_entries(database_urls)) == 3

    async def test_a_running_hub_reloads_its_keys(
        self, folder: Path, database_urls: DatabaseUrls, hub: Hub, settings: Settings
    ) -> None:
        before = hub.key_ring.active(KeyUse.SIGNING)
        await wait_until(lambda: hub.doorbell.listening)

        with hub.doorbell.listen(Channel.TOKENS) as listener:
            await asyncio.to_thread(
                keys, "rotate", "--data-dir", str(settings.data_dir), folder=folder, database_urls=database_urls
            )
            assert await listener.wait(timedelta(seconds=10))

        hub.key_ring.reload()
        matches = hub.key_ring.find(before.id)
        assert matches
        assert matches.state is KeyState.OLD

    async def test_rewrap_then_retire(self, folder: Path, database_urls: DatabaseUrls) -> None:
        keys("rotate", "--use", "signing", folder=folder, database_urls=database_urls)
        held = await insert_envelopes(database_urls, in_file(folder), 3)
        await insert_access_token(database_urls, lost := new_id(), "v1.elost.nonce.sealed")
        keys("rotate", folder=folder, database_urls=database_urls)
        old, now = old_key(folder, KeyUse.ENCRYPTION), in_file(folder).active(KeyUse.ENCRYPTION).id

        early = keys("retire", old, "--force", folder=folder, code=1, database_urls=database_urls)
        done = keys("rewrap", "--json", folder=folder, database_urls=database_urls)
        again = keys("rewrap", folder=folder, FORCE_COLOR="1", database_urls=database_urls)
        waits = keys("retire", old, folder=folder, code=1, database_urls=database_urls)
        gone = told_by("retire", old, "--force", folder=folder, database_urls=database_urls)

        assert early.stderr == f"pabal: {len(held)} values are encrypted under {old}. Run `pabal key rewrap` first\n"
        result = json.loads(done.stdout)
        assert (result["rewrapped"], result["left"], result["unreadable"]) == (len(held), 0, 1)
        assert result["named"] == [{"table": "service_tokens", "column": "access_token", "row": str(lost)}]
        assert str(lost) in done.stderr
        assert "0 rewrapped" in again.stdout
        assert "rewrapping" in again.stderr  # the bar
        assert "--force" in waits.stderr
        assert gone == {"retired": old}
        ring = in_file(folder)
        assert ring.find(old) is None
        matches = await load_envelopes(database_urls)
        assert {place: decrypt_envelope(ring, matches[place], place) for place in held} == held
        assert (await audit_entries(database_urls))[-2:] == [
            ("keys.rewrapped", now, {"rewrapped": len(held), "unreadable": 1, "left": 0}),
            ("key.retired", old, {"use": "encryption", "forced": True, "from": "keys.json"}),
        ]

    async def test_only_an_old_key_is_retired(self, folder: Path, database_urls: DatabaseUrls) -> None:
        keys("rotate", "--use", "signing", folder=folder, database_urls=database_urls)
        before = in_file(folder).keys
        old, active = old_key(folder, KeyUse.SIGNING), before.active(KeyUse.SIGNING).id

        refused = [
            keys("retire", item, folder=folder, code=1, database_urls=database_urls).stderr
            for item in (active, "s0", old)
        ]

        assert refused == [
            f"pabal: {active} is active; only an old key can be retired: rotate first\n",
            "pabal: No such key: s0\n",
            f"pabal: {old} was rotated less than 1h ago; tokens it signed may still be in use. Wait, or use --force\n",
        ]
        assert in_file(folder).keys == before
        assert keys("retire", old, "--force", folder=folder, database_urls=database_urls).stdout == f"{old} retired\n"
        assert [action for action, _, _ in await audit_entries(database_urls)] == ["key.rotated", "key.retired"]


@pytest.mark.anyio
class TestFromTheSettings:
    async def test_rotate_and_retire_print_the_new_setting(self, folder: Path, database_urls: DatabaseUrls) -> None:
        first = pabal("key", "generate", folder=folder).stdout.strip()

        rotated = keys("rotate", "--use", "signing", folder=folder, PABAL_KEYS=first, database_urls=database_urls)
        [second] = rotated.stdout.splitlines()
        before, after = keyring_from_setting(first), keyring_from_setting(second)
        old = before.active(KeyUse.SIGNING).id
        retired = keys("retire", old, "--force", folder=folder, PABAL_KEYS=second, database_urls=database_urls)
        [third] = retired.stdout.splitlines()

        assert after.keys.find(old)
        assert after.active(KeyUse.SIGNING).id != old
        assert after.active(KeyUse.AUDIT) == before.active(KeyUse.AUDIT)
        assert keyring_from_setting(third).keys == after.keys.without(old)
        assert all("PABAL_KEYS" in line for line in [*rotated.stderr.splitlines(), *retired.stderr.splitlines()])
        assert [secret for secret in secrets_of(third) if secret in rotated.stderr + retired.stderr] == []
        assert not (folder / "data" / "keys.json").exists()
        written = await audit_entries(database_urls)
        assert [(action, subject, facts["from"]) for action, subject, facts in written] == [
            ("key.rotated", after.active(KeyUse.SIGNING).id, "PABAL_KEYS"),
            ("key.retired", old, "PABAL_KEYS"),
        ]
        assert [secret for secret in secrets_of(third) if secret in str(written)] == []

    async def test_rewrap_uses_the_keys_of_the_setting(self, folder: Path, database_urls: DatabaseUrls) -> None:
        first = pabal("key", "generate", folder=folder).stdout.strip()
        held = await insert_envelopes(database_urls, keyring_from_setting(first), 2)
        second = keys("rotate", "--json", folder=folder, PABAL_KEYS=first, database_urls=database_urls).stdout.strip()

        result = told_by("rewrap", folder=folder, PABAL_KEYS=second, database_urls=database_urls)

        assert result == {"rewrapped": len(held), "left": 0, "unreadable": 0, "named": []}
        ring = keyring_from_setting(second)
        matches = await load_envelopes(database_urls)
        assert {place: decrypt_envelope(ring, matches[place], place) for place in matches} == held

    @pytest.mark.parametrize("command", [["list"], ["rotate"], ["rewrap"], ["retire", "e1"]])
    async def test_a_malformed_setting_is_one_line(
        self, folder: Path, database_urls: DatabaseUrls, command: list[str]
    ) -> None:
        document = pabal("key", "generate", folder=folder).stdout.strip()
        broken = document.replace('"use":"audit"', f'"use":"{secrets_of(document)[0]}"')

        refused = keys(*command, folder=folder, code=2, PABAL_KEYS=broken, database_urls=database_urls)

        [line] = refused.stderr.splitlines()
        assert line.startswith("pabal: PABAL_KEYS: cannot be read: ")
        assert refused.stdout == ""
        assert [secret for secret in secrets_of(document) if secret in line] == []
