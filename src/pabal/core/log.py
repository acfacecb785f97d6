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

Format = Literal["auto", "json", "pretty"]

SECRET_NAME = re.compile(
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

REQUEST = ContextVar("request", default="")
encode = msgspec.json.Encoder(enc_hook=str).encode
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def get_logger() -> FilteringBoundLogger:
    return cast("FilteringBoundLogger", structlog.get_logger())


def configure(level: str, form: Format) -> None:
    """Called once, by the command line, before anything speaks."""
    pretty = form == "pretty" or (form == "auto" and sys.stderr.isatty())
    shared: list[Processor] = [
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,  # to text first, so that it is covered too; never with local variables
        hide_secrets,
        with_request,  # what is new in every line and holds no secret comes behind: covering it would cost the most
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: Processor = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback) if pretty else as_json
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
def speaking_of(request: str) -> Generator[None]:
    """Whatever is logged in this block, by whomever, says for which request."""
    before = REQUEST.set(request)
    try:
        yield
    finally:
        REQUEST.reset(before)


def with_request(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if request := REQUEST.get():
        event["request"] = request if request.isalnum() else cover(request)  # one of theirs may be anything
    return event


def as_json(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    return encode(event).decode()


def hide_secrets(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Cover what must not be read in a log, by the name of the field and by the look of the text."""
    for name, value in event.items():
        event[name] = "***" if names_a_secret(name) else covered(value)
    return event


def covered(value: Any) -> Any:
    match value:
        case str():
            return cover(value)
        case int() | float() | None:
            return value
        case dict():
            facts = cast("dict[object, Any]", value)
            return {key: "***" if names_a_secret(str(key)) else covered(each) for key, each in facts.items()}
        case list() | tuple():
            return [covered(each) for each in cast("list[Any]", value)]
        case _:
            return value


@lru_cache(1000)
def names_a_secret(name: str) -> bool:
    return SECRET_NAME.search(name) is not None


@lru_cache(1000)  # most of what is said is said again and again
def cover(text: str) -> str:
    """Cover secrets, and show control characters instead of sending them to somebody's terminal."""
    covered = SECRET_TEXT.sub(lambda found: next((part for part in found.groups() if part), "") + "***", text)
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", covered)
