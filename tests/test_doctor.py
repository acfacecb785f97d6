from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pabal import doctor
from pabal.core.ids import new_id
from pabal.db import migrate
from pabal.db.migrate import revert_migrations
from pabal.doctor import (
    Finding,
    FindingLevel,
    check_callback_origins,
    check_disk_space,
    check_keys,
    check_listen_address,
    check_postgres_version,
    check_trusted_proxies,
    check_webhook_secret,
    run_checks,
)
from pabal.hub import DatabaseUrls, Hub
from pabal.keys.envelope import EnvelopeLocation, encrypt_envelope
from pabal.keys.key import KeySet, encode_key_set
from pabal.keys.keyring import open_or_create_keyring
from pabal.settings import Settings
from support.envelopes import put_access


def about(**said: Any) -> Settings:
    return Settings(_env_file=None, **said)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (check_listen_address(about()), FindingLevel.GOOD),
        (check_listen_address(about(host="::1")), FindingLevel.GOOD),
        (check_listen_address(about(host="localhost")), FindingLevel.GOOD),
        (check_listen_address(about(host="0.0.0.0")), FindingLevel.WARNING),
        (check_listen_address(about(host="0.0.0.0", public_url="http://hub.example.org")), FindingLevel.WARNING),
        (check_listen_address(about(host="0.0.0.0", public_url="https://hub.example.org")), FindingLevel.GOOD),
        (check_webhook_secret(about()), FindingLevel.WARNING),
        (check_webhook_secret(about(webhook_secret="hush")), FindingLevel.GOOD),
        (check_callback_origins(about()), FindingLevel.GOOD),
        (check_callback_origins(about(callback_allow="http://127.0.0.1")), FindingLevel.WARNING),
        (check_trusted_proxies(about(trusted_proxies="10.0.0.0/8")), FindingLevel.GOOD),
        (check_trusted_proxies(about(trusted_proxies="10.0.0.0/8,::/0")), FindingLevel.BAD),
        (check_postgres_version(doctor.ServerInfo(140012, superuser=False, pooler=False)), FindingLevel.BAD),
        (check_postgres_version(doctor.ServerInfo(150004, superuser=False, pooler=False)), FindingLevel.GOOD),
    ],
)
def test_a_finding_is_good_or_says_what_to_do(finding: Finding, level: FindingLevel) -> None:
    assert finding.level is level
    assert bool(finding.advice) is (level is not FindingLevel.GOOD)
    assert finding.seen


def levels(settings: Settings) -> dict[str, FindingLevel]:
    return {finding.what: finding.level for finding in check_keys(settings)}


@pytest.mark.parametrize("name", ["passwords.json", "keys.json"])
def test_keys_that_others_can_read_are_bad(tmp_path: Path, name: str) -> None:
    settings = about(data_dir=tmp_path)
    assert levels(settings) == {"keys": FindingLevel.GOOD}

    open_or_create_keyring(tmp_path)
    (tmp_path / "passwords.json").touch(0o600)
    assert levels(settings) == {"keys": FindingLevel.GOOD}

    (tmp_path / name).chmod(0o640)
    told = [finding for finding in check_keys(settings) if finding.level is FindingLevel.BAD]
    assert [finding.advice for finding in told] == [f"chmod 600 {tmp_path / name}"]


def test_keys_in_a_folder_do_not_go_with_a_database_for_several_hosts(tmp_path: Path) -> None:
    url = "postgresql://db/pabal"
    open_or_create_keyring(tmp_path)
    brought = encode_key_set(KeySet.generate(datetime.now(UTC))).decode()

    assert levels(about(data_dir=tmp_path)) == {"keys": FindingLevel.GOOD}
    assert levels(about(data_dir=tmp_path, database_url=url)) == {"keys": FindingLevel.WARNING}
    assert levels(about(data_dir=tmp_path, database_url=url, keys=brought)) == {"keys": FindingLevel.GOOD}
    assert [finding.seen for finding in check_keys(about(keys=brought))] == ["from PABAL_KEYS"]


def test_a_key_that_has_signed_for_long_is_told(tmp_path: Path) -> None:
    def signing_for(days: int) -> Settings:
        return about(keys=encode_key_set(KeySet.generate(datetime.now(UTC) - timedelta(days=days))).decode())

    assert levels(signing_for(89)) == {"keys": FindingLevel.GOOD}
    assert levels(signing_for(91)) == {"keys": FindingLevel.GOOD, "signing key": FindingLevel.WARNING}


def test_keys_that_cannot_be_read_are_bad(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("{}")
    (tmp_path / "keys.json").chmod(0o600)

    for settings, where in ((about(data_dir=tmp_path), "keys.json"), (about(keys="{}"), "PABAL_KEYS")):
        [finding] = check_keys(settings)
        assert finding.level is FindingLevel.BAD
        assert where in finding.seen


@pytest.mark.anyio
async def test_values_under_keys_that_are_not_here_are_bad(
    database_urls: DatabaseUrls, hub: Hub, settings: Settings
) -> None:
    async def finding() -> Finding:
        return {each.what: each for each in await run_checks(settings, database_urls)}["encrypted values"]

    row = new_id()
    await put_access(
        database_urls,
        row,
        encrypt_envelope(hub.key_ring, "a token", EnvelopeLocation("service_tokens", "access_token", row)),
    )
    assert (await finding()).seen == "1, all readable with the current keys"

    await put_access(database_urls, new_id(), "v1.elost.nonce.sealed")
    await put_access(database_urls, new_id(), "eyJhbGciOiJ.was-never.encrypted")

    found = await finding()
    assert (found.level, found.seen) == (FindingLevel.BAD, "2 of 3 cannot be read with the current keys")
    assert "elost" in found.advice
    assert "was-never" not in found.advice


def test_the_disk_is_looked_at_even_before_the_folder_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = about(data_dir=tmp_path / "not" / "yet")

    assert "GiB free" in check_disk_space(settings).seen
    monkeypatch.setattr(doctor, "MIN_FREE_DISK", 1 << 60)
    assert check_disk_space(settings).level is FindingLevel.WARNING


@pytest.mark.anyio
async def test_a_schema_that_is_behind_is_told(database_urls: DatabaseUrls, settings: Settings) -> None:
    assert database_urls.direct
    [*_, before, _last] = migrate.load_migrations()
    await revert_migrations(database_urls.direct, to=before.version)

    told = {finding.what: finding for finding in await run_checks(settings, database_urls)}

    assert (told["schema"].level, told["schema"].advice) == (FindingLevel.WARNING, "run `pabal migrate up`")
    assert told["schema"].seen == "1 migrations pending"
    assert told["database"].level is FindingLevel.GOOD
    assert told["doorbell"].seen == "NOTIFY reaches LISTEN"
