"""Commands without a hub: their output, errors and exit codes."""

import json
from pathlib import Path

import pytest

from pabal import __version__
from pabal.core.database_url import split_password
from pabal.settings import Settings, variable_name
from support.pabal_process import pabal, pabal_json

SOME_ID = "01a1e213-0000-7000-8000-000000ea569f"


def test_version(folder: Path) -> None:
    assert pabal_json("version", folder=folder)["pabal"] == __version__
    assert pabal("--version", folder=folder).stdout.startswith(f"pabal {__version__}")


def test_settings_are_shown_without_secrets(folder: Path) -> None:
    (folder / ".env").write_text("PABAL_WEBHOOK_SECRET=hush-hush\nPABAL_STOP_WITHIN=1500ms\n")

    result = pabal_json("settings", folder=folder, PABAL_PORT="8701")
    table = pabal("settings", folder=folder).stdout

    assert result.keys() == {variable_name(name) for name in Settings.model_fields}
    assert result["PABAL_PORT"] == {"value": 8701, "from": "set"}
    assert result["PABAL_HOST"] == {"value": "127.0.0.1", "from": "default"}
    assert result["PABAL_STOP_WITHIN"]["value"] == "1500ms"
    assert result["PABAL_WEBHOOK_SECRET"]["value"] == "***"
    assert "PABAL_WEBHOOK_SECRET" in table
    assert "hush" not in table + json.dumps(result)


def test_all_invalid_settings_are_reported_and_the_exit_code_is_2(folder: Path) -> None:
    variables = {"PABAL_PORT": "many", "PABAL_LOG_LEVEL": "loud", "PABAL_DATABASE_DIRECT_URL": "postgresql://db/pabal"}

    refused = pabal("up", folder=folder, code=2, **variables)

    lines = refused.stderr.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == [
        "PABAL_PORT",
        "PABAL_LOG_LEVEL",
        "PABAL_DATABASE_DIRECT_URL",
    ]
    assert all(line.startswith("pabal: ") for line in lines)
    assert not (folder / "data").exists()


def test_without_a_database_a_command_fails_and_creates_none(folder: Path) -> None:
    for args in (["event", "list"], ["service", "list"], ["trace", "order-7"]):
        [line] = pabal(*args, folder=folder, code=1).stderr.splitlines()

        assert (
            line
            == f"pabal: No hub has run on {folder / 'data'} yet. Start one with `pabal up`, or set PABAL_DATABASE_URL"
        )
    assert not (folder / "data").exists()


@pytest.mark.parametrize(
    ("args", "result"),
    [
        (["nonsense"], 'Unknown command "nonsense"'),
        (["up", "--port", "x"], "Invalid value for --port"),
        (["up", "--nope"], "Unknown option: --nope"),
        (["event", "publish", "order.paid", "{}"], "Unexpected argument: {}. Add --help to see the usage."),
    ],
)
def test_a_mistyped_command_is_one_line_and_the_exit_code_is_2(folder: Path, args: list[str], result: str) -> None:
    refused = pabal(*args, folder=folder, code=2)

    [line] = refused.stderr.splitlines()
    assert result in line
    assert refused.stdout == ""


def test_db_url_needs_a_running_hub(folder: Path) -> None:
    refused = pabal("db", "url", folder=folder, code=1)

    [line] = refused.stderr.splitlines()
    assert "No hub is running" in line
    assert "pabal up" in line


def test_doctor_advises_when_no_hub_runs(folder: Path) -> None:
    result = {finding["what"]: finding for finding in pabal_json("doctor", folder=folder, PABAL_NONSENSE="1")["items"]}

    assert result["database"]["level"] == "warning"
    assert "pabal up" in result["database"]["advice"]
    assert result["disk"]["level"] in {"good", "warning"}
    assert result["settings"]["seen"] == "PABAL_NONSENSE is not a known setting"


def test_an_unreachable_database_is_a_finding_and_the_exit_code_is_1(folder: Path) -> None:
    variables = {
        "PABAL_DATABASE_URL": "postgresql://hub:hunter2@127.0.0.1:1/pabal",
        "PABAL_TRUSTED_PROXIES": "0.0.0.0/0",
    }

    findings = pabal_json("doctor", folder=folder, code=1, **variables)["items"]
    refused = pabal("migrate", "up", folder=folder, code=1, **variables)

    bad = {finding["what"] for finding in findings if finding["level"] == "bad"}
    assert bad == {"database", "trusted proxies"}
    assert all(finding["advice"] for finding in findings if finding["level"] != "good")
    [line] = refused.stderr.splitlines()
    assert line.startswith("pabal: the database is not available")
    assert "hunter2" not in refused.stderr + json.dumps(findings)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["migrate", "down"], "Confirm with --yes"),
        (["adopt"], "confirm with --yes"),
        (["account", "remove", "mina"], "Confirm with --yes"),
        (["rule", "add", "paid"], "A rule needs --events and --template and --to and --channel"),
        (["dead-letter", "replay"], "Name the dead letters to replay, or use --all"),
        (["dead-letter", "replay", SOME_ID, "--all"], "Ids cannot be combined with --all or with filters"),
        (["dead-letter", "replay", SOME_ID, "--type", "a.b"], "Ids cannot be combined with --all or with filters"),
        (["dead-letter", "resolve", "--note", "refunded"], "Name the dead letters to resolve"),
        (["dead-letter", "resolve", SOME_ID, "--note", " "], "--note must not be empty"),
        (["event", "publish", "order.paid", "--source", "shop", "--payload", "[]"], "--payload is not a JSON object"),
        (["event", "publish", "order.paid", "--source", "shop", "--priority", "99"], "--priority must be 1 to 10"),
        (["event", "publish", "Order", "--source", "shop"], "TYPE must be lower-case words"),
        (["subscription", "add", "a.b", "--service", "x", "--retry-schedule", "z"], "--retry-schedule must be"),
        (["person", "preferences", "8", "--set", "x=y"], "--set x: is not one of"),
        (["person", "link", "8", SOME_ID, "--reason", " "], "--reason must be one line"),
        (["pairing", "add", "mina", "--expires", "99h"], "--expires must be positive and at most"),
        (["service", "rotate-secret", "shop", "--expires", "0"], "--expires must be positive"),
        (["audit", "accept-restore", "--reason", ""], "--reason must be 1 to 500 characters"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_refused_before_the_command_connects(folder: Path, args: list[str], text: str) -> None:
    refused = pabal(*args, folder=folder, code=2)

    [line] = refused.stderr.splitlines()
    assert text in line
    assert not (folder / "data").exists()


@pytest.mark.parametrize(
    ("url", "plain", "password"),
    [
        ("postgresql://hub:p%40ss@db:5433/x?sslmode=require", "postgresql://hub@db:5433/x?sslmode=require", "p@ss"),
        ("postgresql://hub@db/x", "postgresql://hub@db/x", None),
        ("postgresql://db/x", "postgresql://db/x", None),
        ("postgresql://u:p@[::1]:5432/x", "postgresql://u@[::1]:5432/x", "p"),
    ],
)
def test_psql_is_not_given_the_password_as_an_argument(url: str, plain: str, password: str | None) -> None:
    assert split_password(url) == (plain, password)
