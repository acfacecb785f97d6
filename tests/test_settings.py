from datetime import timedelta
from pathlib import Path

import pytest

from pabal.core.errors import InvalidSettings
from pabal.settings import Settings, load_settings, variable_name


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variables set, and an empty working directory."""
    for name in Settings.model_fields:
        monkeypatch.delenv(variable_name(name), raising=False)
    monkeypatch.chdir(tmp_path)


def test_the_defaults_are_local_and_embedded() -> None:
    settings = load_settings()

    assert (settings.host, settings.port, settings.uses_embedded_server) == ("127.0.0.1", 8700, True)


def test_the_command_line_overrides_the_environment_which_overrides_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text("PABAL_PORT=1001\nPABAL_HOST=10.0.0.1\nPABAL_LOG_LEVEL=debug\n")
    monkeypatch.setenv("PABAL_PORT", "1002")
    monkeypatch.setenv("PABAL_HOST", "10.0.0.2")

    settings = load_settings(port=1003, host=None)

    assert (settings.port, settings.host, settings.log_level) == (1003, "10.0.0.2", "debug")


def test_all_errors_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PABAL_PORT", "many")
    monkeypatch.setenv("PABAL_CONNECT_TIMEOUT", "soon")
    monkeypatch.setenv("PABAL_STATEMENT_TIMEOUT", "99999999999999d")
    monkeypatch.setenv("PABAL_TRUSTED_PROXIES", "10.0.0.0/8, the-proxy")
    monkeypatch.setenv("PABAL_CALLBACK_ALLOW", "http://127.0.0.1:99999")
    monkeypatch.setenv("PABAL_DATABASE_DIRECT_URL", "mysql://user:hunter2@host/db")
    monkeypatch.setenv("PABAL_WEBHOOK_SECRET_PREVIOUS", "old")

    with pytest.raises(InvalidSettings) as raised:
        load_settings()

    messages = [str(error) for error in raised.value.errors]
    assert {line.split(":")[0] for line in messages} == {
        "PABAL_PORT",
        "PABAL_CONNECT_TIMEOUT",
        "PABAL_STATEMENT_TIMEOUT",
        "PABAL_TRUSTED_PROXIES",
        "PABAL_CALLBACK_ALLOW",
        "PABAL_DATABASE_DIRECT_URL",
        "PABAL_WEBHOOK_SECRET_PREVIOUS",
    }
    assert [line for line in messages if "requires PABAL_DATABASE_URL" in line]
    assert not [line for line in messages if "hunter2" in line]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", timedelta(seconds=90)),
        ("250ms", timedelta(milliseconds=250)),
        ("1.5s", timedelta(seconds=1.5)),
        ("15m", timedelta(minutes=15)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
    ],
)
def test_durations_have_units(text: str, expected: timedelta) -> None:
    assert load_settings(statement_timeout=text).statement_timeout == expected


@pytest.mark.parametrize("text", ["0", "0s", "-5s"])
def test_a_timeout_must_be_positive(text: str) -> None:
    with pytest.raises(InvalidSettings, match="PABAL_CONNECT_TIMEOUT"):
        load_settings(connect_timeout=text)


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.setenv(variable_name(name), "")

    settings = load_settings()

    assert settings.model_fields_set == set()


@pytest.mark.parametrize(
    "origin", ["ftp://host", "http://", "https://host/path", "https://user@host", "https://host?x", "host"]
)
def test_an_origin_has_only_a_scheme_a_host_and_a_port(origin: str) -> None:
    with pytest.raises(InvalidSettings, match="PABAL_CALLBACK_ALLOW"):
        load_settings(callback_allow=origin)


def test_lists_are_separated_by_commas() -> None:
    settings = load_settings(
        callback_allow="https://one.example, http://127.0.0.1:9000,", trusted_proxies="10.0.0.0/8,::1"
    )

    assert settings.callback_allow == ["https://one.example", "http://127.0.0.1:9000"]
    assert settings.trusted_proxies == ["10.0.0.0/8", "::1"]


def test_a_short_password_is_refused_and_not_quoted() -> None:
    with pytest.raises(InvalidSettings, match="PABAL_ADMIN_PASSWORD: must have at least 8") as raised:
        load_settings(admin_password="s3cret!")

    assert "s3cret!" not in str(raised.value)


def test_printing_the_settings_redacts_secrets() -> None:
    settings = load_settings(database_url="postgresql://hub:hunter2@db/pabal", webhook_secret="hush-hush")

    assert "hunter2" not in repr(settings)
    assert "hush-hush" not in repr(settings)
