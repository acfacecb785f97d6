import asyncio
import json
import logging
import time
from collections.abc import Generator
from datetime import datetime

import pytest
import structlog

from pabal.core.log import (
    LogFormat,
    configure_logging,
    get_logger,
    log_frequent_line,
    redact_log_text,
    set_log_request_id,
)

SECRETS = {
    "a bearer": ("Authorization: Bearer abc.def-123", "abc.def-123"),
    "a basic": ("basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    "an address": ("postgresql://hub:hunter2@db:5432/pabal", "hunter2"),
    "an address with a slash in its password": ("postgresql://hub:hunt/er2@db/pabal", "er2"),
    "an address with a token for a password": (f"postgresql://hub:{'t' * 3000}ail@db/pabal", "tail"),
    "a session in a path": (f"GET /v1/sessions/{'0a' * 32}/status", "0a0a"),
    "a session after two slashes": (f"GET /v1/sessions//{'0a' * 32}/status", "0a0a"),
    "a token in a query": ("GET /v1/events?x=1&token=s3cr3t-token HTTP/1.1", "s3cr3t-token"),
    "a cookie": ("cookie: a=b; pabal_session=Q2hlZXNl; c=d", "Q2hlZXNl"),
    "the cookie of a person": ("cookie: a=b; pabal_me=Q2hlZXNl; c=d", "Q2hlZXNl"),
    "the header of the webhook": ("refused: X-Pabal-Secret: Q2hlZXNl", "Q2hlZXNl"),
    "a token prefix": ("leaked pbr_0123456789abcdef here", "0123456789abcdef"),
    "a JWT": ("eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl", "c2lnbmF0dXJl"),
}


@pytest.fixture(autouse=True)
def _restore_logging() -> Generator[None]:
    root, library = logging.getLogger(), logging.getLogger("uvicorn")
    saved = root.handlers[:], root.level, library.level
    yield
    root.handlers[:], root.level, library.level = saved
    structlog.reset_defaults()


@pytest.mark.parametrize(("text", "secret"), SECRETS.values(), ids=SECRETS)
def test_secrets_are_redacted_by_pattern(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redact_log_text(text)
    assert "***" in redact_log_text(text)


REPEATED_PARTS = (
    "://",
    "://:",
    "eyJ",
    "eyJ-",
    "eyJ.a",
    "bearer ",
    "/sessions/",
    "&token=",
    "pbr_",
    "whsec_",
    "pabal_form=",
    "x-a-",
    "x-" + "a" * 40,
)


@pytest.mark.parametrize("part", REPEATED_PARTS)
def test_redaction_of_untrusted_text_takes_linear_time(part: str) -> None:
    text = part * (60_000 // len(part))
    started = time.process_time()

    redact_log_text(text)

    assert time.process_time() - started < 1


def test_harmless_text_is_not_changed() -> None:
    text = "GET /v1/sessions/create took 12 ms from 10.0.0.1:5432, see https://example.org/a@b"

    assert redact_log_text(text) == text


LOCAL_SECRET = "hidden-six"


def fail_with_secret(password: str) -> None:
    """Fail with a secret in the message and another in a local variable."""
    raise ValueError(f"{len(password)} refused Bearer hidden-seven")


@pytest.mark.parametrize("form", ["json", "pretty"])
def test_no_secret_reaches_the_log(form: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("debug", form)
    logger = get_logger()

    logger.info("seen", token="hidden-one", nested={"password": "hidden-two", "path": "?token=hidden-three"})
    logger.info("seen", many=["Bearer hidden-four"])
    logging.getLogger("some.library").warning("connecting to %s", "postgresql://u:hidden-five@h/d")
    try:
        fail_with_secret(LOCAL_SECRET)
    except ValueError:
        logger.exception("request failed")

    output = capsys.readouterr()
    assert output.out == ""
    assert "request failed" in output.err
    assert "ValueError" in output.err
    assert "hidden" not in output.err


def test_every_line_is_a_json_object_also_those_of_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")

    get_logger().info("event settled", number=12, name="파발")
    logging.getLogger("some.library").warning("one %s", "thing")
    get_logger().debug("below the level")

    hub_line, library_line = map(json.loads, capsys.readouterr().err.splitlines())
    assert (hub_line["event"], hub_line["level"], hub_line["name"]) == ("event settled", "info", "파발")
    assert (library_line["event"], library_line["level"]) == ("one thing", "warning")


def test_control_characters_are_escaped() -> None:
    assert redact_log_text("/\x1b[31mEVIL\r\n") == "/\\x1b[31mEVIL\\x0d\n"


@pytest.mark.anyio
async def test_a_frequent_line_is_the_same_as_one_of_a_logger(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    fields = {"path": "/?token=hidden-one", "client": "\x1b[31m", "status": 200, "ms": 1.5}

    set_log_request_id("request-12345678")
    get_logger().info("request answered", **fields)
    log_frequent_line("request answered", **fields)
    get_logger().info("event settled")

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["request answered", "request answered", "event settled"]
    times = [datetime.fromisoformat(line.pop("timestamp")) for line in lines]
    assert times == sorted(times)
    assert [*lines[0].items()] == [*lines[1].items()]
    assert "hidden" not in str(lines)


@pytest.mark.anyio
async def test_frequent_lines_of_one_iteration_are_written_together(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")

    for number in range(3):
        log_frequent_line("request answered", number=number)
    before = capsys.readouterr().err
    await asyncio.sleep(0)

    assert before == ""
    assert [json.loads(line)["number"] for line in capsys.readouterr().err.splitlines()] == [0, 1, 2]


@pytest.mark.anyio
async def test_a_level_above_info_logs_no_frequent_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("warning", "json")
    log_frequent_line("request answered")
    await asyncio.sleep(0)
    assert capsys.readouterr().err == ""
