"""Named queries: SQL in a file beside the module that runs it.

Each statement in a file begins with `-- name: word`. Parameters are written `:word` and are numbered `$1`, `$2`… at
import. Comments, strings, quoted identifiers, dollar quotes, casts and slices are not touched.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

QUERY_HEADER = re.compile(r"^--\s*name:\s*(?P<name>\w+)\s*$", re.MULTILINE)

SQL_TOKEN = re.compile(
    r"""
      --[^\n]*                      # a comment
    | /\*.*?\*/                     # a block comment
    | '(?:[^']|'')*'                # a string
    | "(?:[^"]|"")*"                # a quoted identifier
    | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
    | ::                            # a cast
    | (?<!\w):(?P<name>[a-z_]\w*)   # a parameter; `a[1:n]` is a slice
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Query:
    """One statement and its parameters, in the order of their numbers."""

    name: str
    sql: str
    parameters: tuple[str, ...]
    source: str

    def bind(self, arguments: dict[str, object]) -> list[object]:
        """Order keyword arguments by parameter number. A missing or unexpected one is a TypeError."""
        try:
            values = [arguments[name] for name in self.parameters]
        except KeyError as missing:
            raise TypeError(f"query {self.name} needs {missing.args[0]}") from None
        if len(arguments) != len(values):
            surplus = ", ".join(sorted(arguments.keys() - set(self.parameters)))
            raise TypeError(f"query {self.name} does not take {surplus}")
        return values


class Queries:
    """The statements of one file: `Q.claim`, `Q.settle`."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._queries = {query.name: query for query in parse_queries(source.read_text(encoding="utf-8"), source.name)}

    def __getattr__(self, name: str) -> Query:
        try:
            return self._queries[name]
        except KeyError:
            raise AttributeError(f"{self._source.name} has no query named {name}") from None

    def __iter__(self) -> Iterator[Query]:
        return iter(self._queries.values())


def load_queries(module_file: str) -> Queries:
    """Load the `.sql` file beside a module: `Q = load_queries(__file__)`."""
    return Queries(Path(module_file).with_suffix(".sql"))


def parse_queries(text: str, source: str = "") -> Iterator[Query]:
    headers = list(QUERY_HEADER.finditer(text))
    ends = [header.start() for header in headers[1:]] + [len(text)]
    for header, end in zip(headers, ends, strict=True):
        sql, parameters = number_parameters(text[header.end() : end].strip().rstrip(";"))
        yield Query(header["name"], sql, parameters, source)


def number_parameters(sql: str) -> tuple[str, tuple[str, ...]]:
    """Replace `:word` by `$n`; a repeated word keeps its number."""
    parameters: list[str] = []

    def number_parameter(token: re.Match[str]) -> str:
        name = token["name"]
        if name is None:
            return token[0]
        if name not in parameters:
            parameters.append(name)
        return f"${parameters.index(name) + 1}"

    return SQL_TOKEN.sub(number_parameter, sql), tuple(parameters)
