"""Logging to standard error: a short event name and facts, in one format, with secrets redacted."""

import asyncio
import atexit
import logging
import re
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, cast

import msgspec
import structlog
from structlog.typing import FilteringBoundLogger, Processor

from pabal.core.errors import DATABASE_UNAVAILABLE
from pabal.core.log_options import LogFormat
from pabal.core.redact import redact_text

SECRET_FIELD_NAME = re.compile(
    r"token|secret|password|authorization|cookie|callback_url|(^|_)key$|dsn|database_url", re.IGNORECASE
)
REQUEST_ID = ContextVar("request", default="")
encode_log_line = msgspec.json.Encoder(enc_hook=str).encode
MAX_CACHED_LENGTH = 1000
"""Longer texts are not cached: a thousand of them would fill the memory."""
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def get_logger() -> FilteringBoundLogger:
    return cast("FilteringBoundLogger", structlog.get_logger())


def configure_logging(level: str, log_format: LogFormat) -> None:
    """Configure structlog and the standard library. Called once, by the command line."""
    pretty = log_format == "pretty" or (log_format == "auto" and sys.stderr.isatty())
    shared: list[Processor] = [
        *([] if level == "debug" else [drop_outage_details]),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,  # before redaction; without local variables
        redact_secrets,
        add_request_id,  # after redaction: values that differ in every line would not be cached
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback) if pretty else render_json_line
    )
    writer = LogWriter(logging.getLevelNamesMapping()[level.upper()])
    structlog.configure(  # bypasses the standard library, whose records cost more than the rest of a line
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(writer.level),
        logger_factory=writer.as_logger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(max(root.level, logging.WARNING))
    logging.getLogger("asyncio").setLevel(max(root.level, logging.WARNING))


def drop_outage_details(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Drop a line that says only that the database is unavailable: the pool logs the outage, once for all of them."""
    error = event.get("error")
    if isinstance(error, str) and error.startswith(DATABASE_UNAVAILABLE):
        raise structlog.DropEvent
    return event


class LogWriter:
    """Writes to standard error: lines of `write_soon` together at the end of the loop's iteration, others at once."""

    def __init__(self, level: int) -> None:
        self.level = level
        self._lines: list[str] = []
        atexit.register(self.flush)

    def as_logger(self, *_: object) -> "LogWriter":
        """The logger that structlog creates for every line."""
        return self

    def write(self, line: str) -> None:
        self._lines.append(line)
        self.flush()

    msg = debug = info = warning = error = critical = exception = write

    def write_soon(self, line: str) -> None:
        self._lines.append(line)
        if len(self._lines) == 1:
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            with suppress(OSError, ValueError):  # the reader of the log has gone, or the stream is closed
                sys.stderr.write("\n".join(lines) + "\n")
                sys.stderr.flush()


def log_frequent_line(event: str, **fields: Any) -> None:
    """Log at level info, in the event loop. As JSON, the line costs a quarter of what a logger takes for it."""
    config = structlog.get_config()
    writer: object = getattr(config["logger_factory"], "__self__", None)
    if not isinstance(writer, LogWriter) or config["processors"][-1] is not render_json_line:
        get_logger().info(event, **fields)
    elif writer.level <= logging.INFO:
        values = redact_secrets(None, "", fields)
        values["event"] = event
        add_request_id(None, "", values)
        values["level"] = "info"
        values["timestamp"] = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        writer.write_soon(encode_log_line(values).decode())


def set_log_request_id(request_id: str) -> None:
    """Add the request id to every further line of the current task."""
    REQUEST_ID.set(request_id)


def add_request_id(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if request := REQUEST_ID.get():
        event["request"] = request if request.isalnum() else redact_log_text(request)  # clients may send their own id
    return event


def render_json_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    return encode_log_line(event).decode()


def redact_secrets(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Redact secrets, by field name and by pattern."""
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
            members = cast("dict[object, Any]", value)
            return {
                key: "***" if is_secret_name(str(key)) else redact_log_value(member) for key, member in members.items()
            }
        case list() | tuple():
            return [redact_log_value(item) for item in cast("list[Any]", value)]
        case _:
            return value


@lru_cache(1000)
def is_secret_name(name: str) -> bool:
    return SECRET_FIELD_NAME.search(name) is not None


def redact_log_text(text: str) -> str:
    """Redact secrets and escape control characters, which a terminal would interpret."""
    return redact_short_text(text) if len(text) <= MAX_CACHED_LENGTH else escape_control_characters(redact_text(text))


@lru_cache(1000)  # most texts are logged again and again
def redact_short_text(text: str) -> str:
    return escape_control_characters(redact_text(text))


def escape_control_characters(text: str) -> str:
    return CONTROL_CHARACTERS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
