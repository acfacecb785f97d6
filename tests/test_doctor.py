from pathlib import Path
from typing import Any

import pytest

from pabal import doctor
from pabal.db import migrate
from pabal.doctor import Finding, Level
from pabal.settings import Settings
from pabal.wiring import Roads


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


def test_keys_that_others_can_read_are_bad(tmp_path: Path) -> None:
    settings = about(data_dir=tmp_path)
    assert doctor.keys(settings).level is Level.GOOD

    kept = tmp_path / "passwords.json"
    kept.touch(0o600)
    assert doctor.keys(settings).level is Level.GOOD
    kept.chmod(0o640)
    assert doctor.keys(settings).level is Level.BAD


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
