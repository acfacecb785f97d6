"""The database settings of a command: the short way gives the same as the settings model."""

import os
from pathlib import Path

import pytest

from pabal.cli.database_settings import database_settings, load_database_settings
from pabal.cli.options import Connection
from pabal.core.errors import InvalidSettings
from pabal.settings import load_settings

URL = "postgresql://hub:secret@db.example.org:5433/pabal"
DIRECT_URL = "postgresql://owner@db.example.org/pabal"


@pytest.fixture(autouse=True)
def _clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.upper().startswith("PABAL_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"PABAL_DATA_DIR": "~/data"},
        {"PABAL_DATABASE_URL": URL, "PABAL_DATABASE_DIRECT_URL": DIRECT_URL},
        {"pabal_database_url": URL, "PABAL_DATABASE_DIRECT_URL": ""},
        {"PABAL_LOG_LEVEL": "WARNING", "PABAL_LOG_FORMAT": "json"},
        {"PABAL_DATABASE_URL": URL, "PABAL_CONNECT_TIMEOUT": "90s", "PABAL_DATABASE_POOLER": "true"},
    ],
)
def test_a_command_reads_what_the_settings_read(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert load_database_settings(Connection()) == database_settings(load_settings())


def test_a_dotenv_file_is_read() -> None:
    Path(".env").write_text(f"PABAL_DATABASE_URL={URL}\n")

    assert load_database_settings(Connection()).database_url == URL


def test_options_win_over_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PABAL_DATABASE_URL", DIRECT_URL)

    settings = load_database_settings(Connection(data_dir=tmp_path, database_url=URL))

    assert (settings.data_dir, settings.database_url) == (tmp_path, URL)


@pytest.mark.parametrize(
    "variables",
    [
        {"PABAL_DATABASE_URL": "mysql://db/pabal"},
        {"PABAL_DATABASE_URL": "postgresql://hub:a/b@db/pabal"},
        {"PABAL_DATABASE_DIRECT_URL": DIRECT_URL},
        {"PABAL_LOG_LEVEL": "loud"},
    ],
)
def test_an_invalid_value_is_reported_by_the_settings(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(InvalidSettings):
        load_database_settings(Connection())
