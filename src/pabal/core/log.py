"""Log lines: two words and the facts, on standard error, in one format for ours and the libraries', without secrets."""

import logging
import re
import sys
from collections.abc import Generator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Literal, cast

import msgspec
import structlog
from structlog.typing import FilteringBoundLogger, Processor

LogFormat = Literal["auto", "json", "pretty"]

SECRET_FIELD_NAME = re.compile(
    r"token|secret|password|authorization|cookie|callback_url|(^|_)key$|dsn|database_url", re.IGNORECASE
)
SECRET_TEXT = re.compile(
    r"""
      (?P<scheme>\b(?:bearer|basic)\s+)[\w.~+/=-]+      # an Authorization header
    | (?P<url>://[^:/@\s]*+:)(?:[^@\s/]|/(?!/))++(?=@)   # a password inside an address
    | (?P<path>/sessions/++)[0-9a-f]{16,}               # a session token in a path
    | (?P<query>[?&](?:token|code)=)[^&\s"']+
    | (?P<cookie>\bpabal_(?:session|form|person|portal|chat)=)[^;\s"']+
    | \b(?:pbr|pbs|pba|pbp|prt)_[\w-]{8,}                       # our own prefixed tokens
    | \bwhsec_[\w+/=-]{8,}                             # what webhooks are signed with
    | (?<![\w-])eyJ[\w-]++\.[\w-]++\.[\w-]+            # a JWT
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""No part of it goes back over what it has read: a path is looked through, whoever made it up and however long."""

REQUEST_ID = ContextVar("request", default="")
encode_log_line = msgspec.json.Encoder(enc_hook=str).encode
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def get_logger() -> FilteringBoundLogger:
    return cast("FilteringBoundLogger", structlog.get_logger())


def configure_logging(level: str, log_format: LogFormat) -> None:
    """Called once, by the command line, before anything speaks."""
    pretty = log_format == "pretty" or (log_format == "auto" and sys.stderr.isatty())
    shared: list[Processor] = [
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,  # to text first, so that it is covered too; never with local variables
        redact_secrets,
        add_request_id,  # what is new in every line and holds no secret comes behind: covering it would cost the most
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: Processor = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback) if pretty else render_json_line
    )
    structlog.configure(  # past the standard library, whose records cost more than all the rest of a line
        processors=[*shared, last],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(max(root.level, logging.WARNING))
    logging.getLogger("asyncio").setLevel(max(root.level, logging.WARNING))


@contextmanager
def request_log_context(request_id: str) -> Generator[None]:
    """Whatever is logged in this block, by whomever, says for which request."""
    before = REQUEST_ID.set(request_id)
    try:
        yield
    finally:
        REQUEST_ID.reset(before)


def add_request_id(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if request := REQUEST_ID.get():
        event["request"] = request if request.isalnum() else redact_log_text(request)  # one of theirs may be anything
    return event


def render_json_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    return encode_log_line(event).decode()


def redact_secrets(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Cover what must not be read in a log, by the name of the field and by the look of the text."""
    for name, value in event.items():
        event[name] = "***" if is_secret_name(name) else redact_log_value(value)
    return event


def redact_log_value(value: Any) -> Any:
    match value:
        case str():
            return redact_log_text(value)
        case int() | float() | None:
            return value
        case dict():
            facts = cast("dict[object, Any]", value)
            return {key: "***" if is_secret_name(str(key)) else redact_log_value(each) for key, each in facts.items()}
        case list() | tuple():
            return [redact_log_value(each) for each in cast("list[Any]", value)]
        case _:
            return value


@lru_cache(1000)
def is_secret_name(name: str) -> bool:
    return SECRET_FIELD_NAME.search(name) is not None


@lru_cache(1000)  # most of what is said is said again and again
def redact_log_text(text: str) -> str:
    """Cover secrets, and show control characters instead of sending them to somebody's terminal."""
    covered = SECRET_TEXT.sub(lambda found: next((part for part in found.groups() if part), "") + "***", text)
    return CONTROL_CHARACTERS.sub(lambda found: f"\\x{ord(found[0]):02x}", covered)
