"""Options that several commands share."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from cyclopts import CycloptsError, Parameter, Token
from cyclopts.validators import Number

from pabal.core.duration import parse_duration
from pabal.core.errors import Invalid


def parse_duration_option(_type: Any, tokens: Sequence[Token]) -> timedelta:
    """Parse a duration as the settings do, for `Parameter(metavar="DURATION", converter=parse_duration_option)`."""
    return parse_duration(tokens[0].value)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Connection:
    """The database a command works on."""

    data_dir: Annotated[
        Path | None, Parameter(help="Directory of the embedded database and the keys. [PABAL_DATA_DIR]")
    ] = None
    database_url: Annotated[str | None, Parameter(help="URL of an external PostgreSQL. [PABAL_DATABASE_URL]")] = None


DEFAULT_CONNECTION = Connection()

Host = Annotated[str | None, Parameter(help="Address to listen on. [PABAL_HOST]")]
Port = Annotated[int | None, Parameter(help="Port to listen on. [PABAL_PORT]")]
Json = Annotated[bool, Parameter(name="--json", negative="", show_default=False, help="Print one JSON document.")]
JsonLines = Annotated[
    bool, Parameter(name="--json", negative="", show_default=False, help="Print one JSON document per line.")
]
Limit = Annotated[int, Parameter(help="Maximum number of rows.", validator=Number(gte=1, lte=1000))]
Cursor = Annotated[str | None, Parameter(help="Continue after the page that printed this cursor.")]
SkipConfirmation = Annotated[
    bool, Parameter(name="--yes", negative="", show_default=False, help="Do not ask for confirmation.")
]
JsonPayload = Annotated[
    str,
    Parameter(allow_leading_hyphen=True, help="A JSON object; @FILE reads it from a file, - from standard input."),
]


class UsageError(CycloptsError):
    """The arguments are wrong. The command has done nothing and exits with 2."""

    def __init__(self, text: str) -> None:
        super().__init__(msg=text)  # pyright: ignore[reportUnknownMemberType] its attributes are untyped


@contextmanager
def refuse_arguments(option: str) -> Generator[None]:
    """Report what a check of the option's value refuses as a usage error."""
    try:
        yield
    except Invalid as error:
        raise UsageError("; ".join(f"{option} {problem.why}" for problem in error.errors)) from None


def nothing_to_change(*options: str) -> UsageError:
    """The usage error of a `set` command without an option that changes something."""
    return UsageError(f"Nothing to change: give {' or '.join(options)}")


def flag(help: str, name: str | None = None) -> Any:
    """Declare an option without a value, which is off unless it is given."""
    return Parameter(name=name, negative="", show_default=False, help=help)


def repeatable(help: str) -> Any:
    """Declare an option that may be given several times. Each occurrence takes one value."""
    return Parameter(negative="", help=f"{help} Repeat for more.")
