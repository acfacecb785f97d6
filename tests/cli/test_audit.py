"""`pabal audit`: list and verify the audit log."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pabal.audit.record import AuditEntry, record_audit_entry
from pabal.hub import DatabaseUrls, open_hub
from pabal.settings import Settings
from support.audit_log import AuditLog
from support.pabal_process import pabal, pabal_json

pytestmark = pytest.mark.anyio


@dataclass(frozen=True, slots=True)
class Terminal:
    """Runs audit commands beside a hub."""

    audit_log: AuditLog
    folder: Path
    variables: dict[str, str]

    async def audit(self, *args: str, code: int = 0) -> str:
        done = await asyncio.to_thread(pabal, "audit", *args, folder=self.folder, code=code, **self.variables)
        return done.stdout + done.stderr

    async def read(self, *args: str, code: int = 0) -> Any:
        return await asyncio.to_thread(pabal_json, "audit", *args, folder=self.folder, code=code, **self.variables)


@pytest.fixture
async def terminal(folder: Path, database_urls: DatabaseUrls) -> AsyncGenerator[Terminal]:
    settings = Settings(_env_file=None, data_dir=folder / "data")  # pyright: ignore[reportCallIssue]
    variables = {
        "PABAL_DATABASE_URL": database_urls.main,
        "PABAL_DATABASE_DIRECT_URL": database_urls.direct or "",
        "COLUMNS": "200",
    }
    async with open_hub(settings, database_urls) as hub:
        yield Terminal(AuditLog(hub, database_urls, hub.key_ring), folder, variables)


async def test_entries_are_listed_newest_first_and_in_pages(terminal: Terminal) -> None:
    async with terminal.audit_log.hub.transaction() as tx:
        for actor in ("minu_find", "minu_keep", "\x1b[2Jminu"):
            await record_audit_entry(tx, AuditEntry(actor, "token.issued", "t1", {"family": "f1"}, "10.1.2.3", "r1"))
        await record_audit_entry(tx, AuditEntry("operator:mina", "dead_letter.resolved", "d1"))

    page = await terminal.read("list", "--action", "token.", "--subject", "t1", "--since", "1d", "--limit", "2")
    rest = await terminal.read("list", "--action", "token.", "--limit", "2", "--cursor", page["cursor"])
    table = await terminal.audit("list")

    assert [item["actor"] for item in page["items"]] == ["\x1b[2Jminu", "minu_keep"]
    assert page["items"][0].keys() == {
        "id", "at", "actor", "action", "subject", "details", "client_ip", "request_id"
    }  # fmt: skip
    assert ([item["actor"] for item in rest["items"]], rest["cursor"]) == (["minu_find"], None)
    assert (await terminal.read("list", "--actor", "operator:mina"))["items"][0]["subject"] == "d1"
    assert '{"family":"f1"}' in table
    assert "\N{REPLACEMENT CHARACTER}[2Jminu" in table
    assert "\x1b[2J" not in table
    assert "older: --cursor 2" in await terminal.audit("list", "--limit", "3")


async def test_an_intact_log_verifies_and_prints_its_head(terminal: Terminal) -> None:
    await terminal.audit_log.write_sealed(2, 3)
    await terminal.audit_log.write(1)

    result = await terminal.read("verify")
    head = f"{result['head']['id']}:{result['head']['count']}:{result['head']['digest']}"
    text = await terminal.audit("verify", "--head", head)
    await terminal.audit("verify", "--head", f"{result['head']['id']}:{result['head']['digest']}")
    await terminal.audit("verify", "--head", head.replace(":3:", ":4:"), code=1)

    assert (result["seals"], result["rows"], result["unsealed"], result["broken"], result["breaks"]) == (2, 5, 1, 0, [])
    assert f"head {head}" in text
    assert "5 rows in 2 seals, 1 not sealed yet" in text
    assert "intact" in text
    for key in terminal.audit_log.keys.keys.all_keys:
        assert key.secret.hex() not in text + json.dumps(result)


async def test_each_problem_is_one_line_and_the_exit_code_is_1(terminal: Terminal) -> None:
    await terminal.audit_log.write_sealed(2, 3)
    noted = (await terminal.audit_log.verify()).head
    await terminal.audit_log.tamper(
        "update pabal.audit_log set actor = 'me' where id = 1",
        "delete from pabal.audit_log where id = 2",
        "delete from pabal.audit_seals where id = 2",
    )

    result = await terminal.read("verify", "--head", str(noted), code=1)
    text = await terminal.audit("verify", "--head", str(noted), code=1)

    assert [(row["kind"], row["seal"], row["row"]) for row in result["breaks"]] == [
        ("row_changed", 1, 1),
        ("row_removed", 1, 2),
        ("chain_cut", 2, None),
    ]
    for row in result["breaks"]:
        assert f"pabal: {row['what']}\n" in text
    assert "1 seals are missing after the last one" in text
    assert "broken" in text


async def test_a_cut_chain_is_reported_and_accepted_with_a_reason(terminal: Terminal) -> None:
    """The file of the host tells a restored database from the one it knows."""
    audit_log, head_file = terminal.audit_log, terminal.audit_log.hub.audit_sealer.head_file
    await audit_log.write_sealed(2, 3)
    known = (await audit_log.verify()).head
    assert known
    head_file.advance(None, known)
    await audit_log.tamper("delete from pabal.audit_seals", "delete from pabal.audit_log where id > 2")

    broken = await terminal.read("verify", code=1)
    declined = await terminal.audit("accept-restore", "--reason", "a test", code=1)
    unchanged = head_file.read()
    accepted = await terminal.read("accept-restore", "--reason", " Disk failure ", "--yes")
    again = await terminal.audit("accept-restore", "--reason", "a test", "--yes", code=1)

    assert [row["kind"] for row in broken["breaks"]] == ["chain_cut"]
    assert broken["known_head"]["digest"] == known.digest
    assert f"does not contain seal {known}, which this host has seen" in declined
    assert "Nothing accepted" in declined
    assert unchanged == known
    assert accepted == {"head": None}
    sealed = await audit_log.verify()
    assert head_file.read() == sealed.head
    assert (sealed.rows, sealed.unsealed) == (3, 0), "the two remaining rows and the acceptance"
    assert "Nothing to accept" in again
    [entry] = (await terminal.read("list", "--action", "audit."))["items"]
    assert entry["action"] == "audit.restore_accepted"
    assert entry["actor"].startswith("cli:")
    assert entry["details"]["reason"] == "Disk failure"
    assert str(known) in entry["details"]["problem"]
    assert (await terminal.read("verify"))["broken"] == 0


@pytest.mark.parametrize(
    ("args", "result"),
    [
        (["verify", "--head", "5"], "ID:COUNT:DIGEST"),
        (["verify", "--head", "5:xyz"], "ID:COUNT:DIGEST"),
        (["accept-restore", "--yes"], "--reason"),
        (["list", "--since", "yesterday"], "must be a duration (90s"),
        (["list", "--limit", "0"], "Must be >= 1"),
    ],
)
def test_an_invalid_option_is_one_line(folder: Path, args: list[str], result: str) -> None:
    refused = pabal("audit", *args, folder=folder, code=2)

    [line] = refused.stderr.splitlines()
    assert result in line
    assert not (folder / "data").exists()
