from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pabal import status
from pabal.audit.chain_head import ChainHeadFile
from pabal.audit.checks import check_head_file
from pabal.core.finding import Finding, FindingLevel
from pabal.core.ids import new_id
from pabal.db import migrate
from pabal.db.migrate import revert_migrations
from pabal.db.pool import ServerInfo
from pabal.doctor.database_checks import check_postgres_version
from pabal.doctor.doctor import run_checks
from pabal.doctor.settings_checks import (
    check_callback_origins,
    check_interpreter,
    check_keys,
    check_listen_address,
    check_trusted_proxies,
    check_webhook_secret,
)
from pabal.hub import DatabaseUrls, Hub
from pabal.keys.envelope import EnvelopeLocation, encrypt_envelope
from pabal.keys.key import KeySet, encode_key_set
from pabal.keys.keyring import open_or_create_keyring
from pabal.keys.webhook_secret import ensure_webhook_secret
from pabal.settings import Settings
from support.audit_log import AuditLog, SealingHost
from support.envelopes import insert_access_token


def settings_with(**values: Any) -> Settings:
    return Settings(_env_file=None, **values)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (check_listen_address(settings_with()), FindingLevel.GOOD),
        (check_listen_address(settings_with(host="::1")), FindingLevel.GOOD),
        (check_listen_address(settings_with(host="localhost")), FindingLevel.GOOD),
        (check_listen_address(settings_with(host="0.0.0.0")), FindingLevel.WARNING),
        (
            check_listen_address(settings_with(host="0.0.0.0", public_url="http://hub.example.org")),
            FindingLevel.WARNING,
        ),
        (check_listen_address(settings_with(host="0.0.0.0", public_url="https://hub.example.org")), FindingLevel.GOOD),
        (check_webhook_secret(settings_with()), FindingLevel.WARNING),
        (check_webhook_secret(settings_with(webhook_secret="hush")), FindingLevel.WARNING),
        (check_webhook_secret(settings_with(webhook_secret="hush" * 4)), FindingLevel.GOOD),
        (check_webhook_secret(settings_with(webhook_open=True)), FindingLevel.WARNING),
        (check_callback_origins(settings_with()), FindingLevel.GOOD),
        (check_callback_origins(settings_with(callback_allow="http://127.0.0.1")), FindingLevel.WARNING),
        (check_trusted_proxies(settings_with(trusted_proxies="10.0.0.0/8")), FindingLevel.GOOD),
        (check_trusted_proxies(settings_with(trusted_proxies="10.0.0.0/8,::/0")), FindingLevel.BAD),
        (check_interpreter((3, 11, 9)), FindingLevel.WARNING),
        (check_interpreter((3, 11, 10)), FindingLevel.GOOD),
        (check_interpreter((3, 12, 5)), FindingLevel.WARNING),
        (check_interpreter((3, 12, 6)), FindingLevel.GOOD),
        (check_interpreter((3, 13, 0)), FindingLevel.GOOD),
        (check_trusted_proxies(settings_with()), FindingLevel.GOOD),
        (check_trusted_proxies(settings_with(), "10.0.0.7"), FindingLevel.WARNING),
        (check_trusted_proxies(settings_with(public_url="https://hub.example.org")), FindingLevel.WARNING),
        (check_trusted_proxies(settings_with(public_url="http://hub.example.org")), FindingLevel.WARNING),
        (check_trusted_proxies(settings_with(public_url="http://10.0.0.7:8700", host="10.0.0.7")), FindingLevel.GOOD),
        (
            check_trusted_proxies(settings_with(public_url="https://hub.example.org", trusted_proxies="10.0.0.7")),
            FindingLevel.GOOD,
        ),
        (check_postgres_version(ServerInfo(140012, superuser=False, pooler=False)), FindingLevel.BAD),
        (check_postgres_version(ServerInfo(150004, superuser=False, pooler=False)), FindingLevel.GOOD),
    ],
)
def test_every_problem_comes_with_advice(finding: Finding, level: FindingLevel) -> None:
    assert finding.level is level
    assert bool(finding.advice) is (level is not FindingLevel.GOOD)
    assert finding.seen


def key_levels(settings: Settings) -> dict[str, FindingLevel]:
    return {finding.what: finding.level for finding in check_keys(settings)}


@pytest.mark.parametrize("name", ["passwords.json", "keys.json", "webhook-secret"])
def test_a_secret_file_readable_by_others_is_bad(tmp_path: Path, name: str) -> None:
    settings = settings_with(data_dir=tmp_path)
    assert key_levels(settings) == {"keys": FindingLevel.GOOD}

    open_or_create_keyring(tmp_path)
    (tmp_path / "passwords.json").touch(0o600)
    ensure_webhook_secret(settings)
    assert key_levels(settings) == {"keys": FindingLevel.GOOD}

    (tmp_path / name).chmod(0o640)
    problems = [finding for finding in check_keys(settings) if finding.level is FindingLevel.BAD]
    assert [finding.advice for finding in problems] == [f"chmod 600 {tmp_path / name}"]


def test_a_key_file_beside_a_shared_database_is_a_warning(tmp_path: Path) -> None:
    url = "postgresql://db/pabal"
    open_or_create_keyring(tmp_path)
    key_set = encode_key_set(KeySet.generate(datetime.now(UTC))).decode()

    assert key_levels(settings_with(data_dir=tmp_path)) == {"keys": FindingLevel.GOOD}
    assert key_levels(settings_with(data_dir=tmp_path, database_url=url)) == {"keys": FindingLevel.WARNING}
    assert key_levels(settings_with(data_dir=tmp_path, database_url=url, keys=key_set)) == {"keys": FindingLevel.GOOD}
    assert [finding.seen for finding in check_keys(settings_with(keys=key_set))] == ["from PABAL_KEYS"]


def test_an_old_signing_key_is_a_warning(tmp_path: Path) -> None:
    def with_signing_key_age(days: int) -> Settings:
        return settings_with(keys=encode_key_set(KeySet.generate(datetime.now(UTC) - timedelta(days=days))).decode())

    assert key_levels(with_signing_key_age(89)) == {"keys": FindingLevel.GOOD}
    assert key_levels(with_signing_key_age(91)) == {"keys": FindingLevel.GOOD, "signing key": FindingLevel.WARNING}


def test_unreadable_keys_are_bad(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("{}")
    (tmp_path / "keys.json").chmod(0o600)

    for settings, source in ((settings_with(data_dir=tmp_path), "keys.json"), (settings_with(keys="{}"), "PABAL_KEYS")):
        [finding] = check_keys(settings)
        assert finding.level is FindingLevel.BAD
        assert source in finding.seen


@pytest.mark.anyio
async def test_values_under_missing_keys_are_bad(database_urls: DatabaseUrls, hub: Hub, settings: Settings) -> None:
    async def check_encrypted_values() -> Finding:
        findings = await run_checks(settings, database_urls)
        return next(finding for finding in findings if finding.what == "encrypted values")

    row = new_id()
    await insert_access_token(
        database_urls,
        row,
        encrypt_envelope(hub.key_ring, "a token", EnvelopeLocation("service_tokens", "access_token", row)),
    )
    assert (await check_encrypted_values()).seen == "1, all readable with the current keys"

    await insert_access_token(database_urls, new_id(), "v1.elost.nonce.sealed")
    await insert_access_token(database_urls, new_id(), "eyJhbGciOiJ.was-never.encrypted")

    finding = await check_encrypted_values()
    assert (finding.level, finding.seen) == (FindingLevel.BAD, "2 of 3 cannot be read with the current keys")
    assert "elost" in finding.advice
    assert "was-never" not in finding.advice


def test_disk_space_is_checked_before_the_folder_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "not" / "yet"

    assert "GiB free" in status.check_free_space(folder).seen
    monkeypatch.setattr(status, "MIN_FREE_DISK", 1 << 60)
    assert status.check_free_space(folder).level is FindingLevel.WARNING


@pytest.mark.anyio
async def test_pending_migrations_are_a_warning(database_urls: DatabaseUrls, settings: Settings) -> None:
    assert database_urls.direct
    [*_, previous, _newest] = migrate.load_migrations()
    await revert_migrations(database_urls.direct, to=previous.version)

    findings = {finding.what: finding for finding in await run_checks(settings, database_urls)}

    assert (findings["schema"].level, findings["schema"].advice) == (FindingLevel.WARNING, "run `pabal migrate up`")
    assert findings["schema"].seen == "migrations pending: 1"
    assert findings["database"].level is FindingLevel.GOOD
    assert findings["doorbell"].seen == "NOTIFY reaches LISTEN"


@pytest.mark.anyio
async def test_the_audit_chain_is_checked_against_the_head_of_the_host(
    database_urls: DatabaseUrls, hub: Hub, settings: Settings
) -> None:
    async def check() -> dict[str, tuple[FindingLevel, str]]:
        findings = await run_checks(settings, database_urls)
        return {item.what: (item.level, item.seen) for item in findings if item.what.startswith("audit")}

    ledger, head_file = AuditLog(hub, database_urls, hub.key_ring), ChainHeadFile(settings.data_dir)
    new = await check()
    await ledger.write_sealed(2)
    unknown = await check()
    await SealingHost(hub, settings.data_dir).seal()
    known = await check()
    await ledger.tamper("delete from pabal.audit_seals")
    cut = await check()
    head_file.path.write_text("{")
    damaged = await check()

    assert new == {
        "audit head": (FindingLevel.GOOD, f"none yet in {head_file.path}"),
        "audit chain": (FindingLevel.GOOD, "none yet"),
    }
    assert unknown["audit chain"][0] is FindingLevel.WARNING
    assert {level for level, _ in known.values()} == {FindingLevel.GOOD}
    assert cut["audit chain"][0] is FindingLevel.BAD
    assert "which this host has seen" in cut["audit chain"][1]
    assert damaged["audit head"][0] is FindingLevel.BAD
    assert "is damaged" in damaged["audit head"][1]


def test_a_head_that_cannot_be_stored_is_bad() -> None:
    finding = check_head_file(Path("/proc/sys"))  # read-only also for root

    assert finding.level is FindingLevel.BAD
    assert "cannot be written" in finding.seen
    assert "PABAL_DATA_DIR" in finding.advice
