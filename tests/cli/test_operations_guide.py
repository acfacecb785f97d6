"""The commands of docs/operations.md do what it says: backup, both restores, a rotation of keys."""

import re
import shlex
from pathlib import Path

from support.pabal_process import fresh_folder, pabal, pabal_json, run_hub

GUIDE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def guide_command(start: str, folder: Path) -> list[str]:
    """The only command of the guide that begins so, with its files in the folder."""
    [line] = [line for block in BLOCKS for line in block.splitlines() if line.startswith(f"pabal {start}")]
    for path, place in (
        ("/backup/", "backup/"),
        ("/etc/pabal/passphrase", "passphrase"),
        ("/var/lib/pabal-new", "new-data"),
    ):
        line = line.replace(path, f"{folder / place}{'/' if place.endswith('/') else ''}")
    return shlex.split(line)[1:]


def test_a_hub_is_backed_up_and_restored_as_the_guide_says(folder: Path) -> None:
    (folder / "backup").mkdir()
    (folder / "passphrase").write_text("correct horse battery\n")
    with run_hub(folder) as hub:
        pabal("service", "add", "shop", "--permission", "write", folder=folder)
        pabal("event", "publish", "order.paid", "--source", "shop", folder=folder)
        pabal(*guide_command("backup", folder), folder=folder)
        hub.end()

    restored = pabal_json(*guide_command("restore /backup/hub-2026-05-03.pabal --data-dir", folder), folder=folder)
    assert restored["audit"] == "intact"
    assert (folder / "new-data" / "keys.json").read_bytes() == (folder / "data" / "keys.json").read_bytes()
    with fresh_folder() as other:
        accepting = guide_command("restore /backup/hub-2026-05-03.pabal --accept-audit", folder)
        pabal(*accepting, folder=other, PABAL_BACKUP_PASSPHRASE="correct horse battery")
        [event] = pabal_json("event", "list", "--type", "order.paid", folder=other)["items"]
        assert event["source_service"] == "shop"


def test_keys_are_rotated_as_the_guide_says(folder: Path) -> None:
    [row] = [line for line in GUIDE.splitlines() if line.startswith("| keys that sign, encrypt and seal |")]
    rotate, rewrap, retire, list_keys = (shlex.split(command)[1:] for command in re.findall(r"`(pabal [^`]+)`", row))
    with run_hub(folder):
        keys = pabal_json(*list_keys, folder=folder)["items"]
        old = {key["id"] for key in keys if key["state"] == "active" and key["use"] != "audit"}
        pabal(*rotate, folder=folder)
        pabal(*rewrap, folder=folder)
        for key_id in old:
            command = [key_id if part == "ID" else part for part in retire]
            assert "Wait, or use --force" in pabal(*command, folder=folder, code=1).stderr, "the guide says an hour"
            pabal(*command, "--force", folder=folder)
        left = {key["id"] for key in pabal_json(*list_keys, folder=folder)["items"]}

    assert len(old) == 2
    assert left.isdisjoint(old)
