from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from envelopes import put_access
from pabal import doctor
from pabal.core.ids import new_id
from pabal.db import migrate
from pabal.doctor import Finding, Level
from pabal.keys.document import text
from pabal.keys.envelope import Place, seal
from pabal.keys.key import Keys
from pabal.keys.ring import from_folder
from pabal.settings import Settings
from pabal.wiring import Hub, Roads


def about(**said: Any) -> Settings:
    return Settings(_env_file=None, **said)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (doctor.listens(about()), Level.GOOD),
        (doctor.listens(about(host="::1")), Level.GOOD),
        (doctor.listens(about(host="localhost")), Level.GOOD),
        (doctor.listens(about(host="0.0.0.0")), Level.WARNING),
        (doctor.listens(about(host="0.0.0.0", public_url="http://hub.example.org")), Level.WARNING),
        (doctor.listens(about(host="0.0.0.0", public_url="https://hub.example.org")), Level.GOOD),
        (doctor.webhook(about()), Level.WARNING),
        (doctor.webhook(about(webhook_secret="hush")), Level.GOOD),
        (doctor.callbacks(about()), Level.GOOD),
        (doctor.callbacks(about(callback_allow="http://127.0.0.1")), Level.WARNING),
        (doctor.proxies(about(trusted_proxies="10.0.0.0/8")), Level.GOOD),
        (doctor.proxies(about(trusted_proxies="10.0.0.0/8,::/0")), Level.BAD),
        (doctor.version(doctor.Ground(140012, superuser=False, pooler=False)), Level.BAD),
        (doctor.version(doctor.Ground(150004, superuser=False, pooler=False)), Level.GOOD),
    ],
)
def test_a_finding_is_good_or_says_what_to_do(finding: Finding, level: Level) -> None:
    assert finding.level is level
    assert bool(finding.advice) is (level is not Level.GOOD)
    assert finding.seen


def levels(settings: Settings) -> dict[str, Level]:
    return {finding.what: finding.level for finding in doctor.keys(settings)}


@pytest.mark.parametrize("name", ["passwords.json", "keys.json"])
def test_keys_that_others_can_read_are_bad(tmp_path: Path, name: str) -> None:
    settings = about(data_dir=tmp_path)
    assert levels(settings) == {"keys": Level.GOOD}

    from_folder(tmp_path)
    (tmp_path / "passwords.json").touch(0o600)
    assert levels(settings) == {"keys": Level.GOOD}

    (tmp_path / name).chmod(0o640)
    told = [finding for finding in doctor.keys(settings) if finding.level is Level.BAD]
    assert [finding.advice for finding in told] == [f"chmod 600 {tmp_path / name}"]


def test_keys_in_a_folder_do_not_go_with_a_database_for_several_hosts(tmp_path: Path) -> None:
    url = "postgresql://db/pabal"
    from_folder(tmp_path)
    brought = text(Keys.made(datetime.now(UTC))).decode()

    assert levels(about(data_dir=tmp_path)) == {"keys": Level.GOOD}
    assert levels(about(data_dir=tmp_path, database_url=url)) == {"keys": Level.WARNING}
    assert levels(about(data_dir=tmp_path, database_url=url, keys=brought)) == {"keys": Level.GOOD}
    assert [finding.seen for finding in doctor.keys(about(keys=brought))] == ["from PABAL_KEYS"]


def test_a_key_that_has_signed_for_long_is_told(tmp_path: Path) -> None:
    def signing_for(days: int) -> Settings:
        return about(keys=text(Keys.made(datetime.now(UTC) - timedelta(days=days))).decode())

    assert levels(signing_for(89)) == {"keys": Level.GOOD}
    assert levels(signing_for(91)) == {"keys": Level.GOOD, "signing key": Level.WARNING}


def test_keys_that_cannot_be_read_are_bad(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("{}")
    (tmp_path / "keys.json").chmod(0o600)

    for settings, where in ((about(data_dir=tmp_path), "keys.json"), (about(keys="{}"), "PABAL_KEYS")):
        [finding] = doctor.keys(settings)
        assert finding.level is Level.BAD
        assert where in finding.seen


@pytest.mark.anyio
async def test_values_under_keys_that_are_not_here_are_bad(roads: Roads, hub: Hub, settings: Settings) -> None:
    async def finding() -> Finding:
        return {each.what: each for each in await doctor.examine(settings, roads)}["encrypted values"]

    row = new_id()
    await put_access(roads, row, seal(hub.keys, "a token", Place("service_tokens", "access_token", row)))
    assert (await finding()).seen == "1, all under keys that are here"

    await put_access(roads, new_id(), "v1.elost.nonce.sealed")
    await put_access(roads, new_id(), "eyJhbGciOiJ.was-never.encrypted")

    found = await finding()
    assert (found.level, found.seen) == (Level.BAD, "2 of 3 are under no key that is here")
    assert "elost" in found.advice
    assert "was-never" not in found.advice


def test_the_disk_is_looked_at_even_before_the_folder_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = about(data_dir=tmp_path / "not" / "yet")

    assert "GiB free" in doctor.disk(settings).seen
    monkeypatch.setattr(doctor, "LITTLE_DISK", 1 << 60)
    assert doctor.disk(settings).level is Level.WARNING


@pytest.mark.anyio
async def test_a_schema_that_is_behind_is_told(roads: Roads, settings: Settings) -> None:
    assert roads.direct
    [*_, before, _last] = migrate.shipped()
    await migrate.down(roads.direct, to=before.version)

    told = {finding.what: finding for finding in await doctor.examine(settings, roads)}

    assert (told["schema"].level, told["schema"].advice) == (Level.WARNING, "run `pabal migrate up`")
    assert told["schema"].seen == "1 migrations pending"
    assert told["database"].level is Level.GOOD
    assert told["doorbell"].seen == "NOTIFY reaches LISTEN"
