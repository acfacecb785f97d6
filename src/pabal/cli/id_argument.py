"""Ids as arguments: whole, as a prefix, or in the short form that lists show."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any
from uuid import UUID

from cyclopts import Parameter, Token

from pabal.core.errors import NotFound
from pabal.core.short_id import MAX_LISTED_IDS, IdPattern, ambiguous_id, parse_id_pattern
from pabal.db.tx import Tx

MatchIds = Callable[[Tx, IdPattern, int], Awaitable[list[UUID]]]


def parse_id_argument(_type: Any, tokens: Sequence[Token]) -> IdPattern:
    token = tokens[0]
    pattern = parse_id_pattern(token.value)
    if pattern is None:
        name = "" if token.keyword else "ID: "  # the parser names an option, but not an argument
        raise ValueError(f"{name}must be an id, its first 8 or more characters, or its short form 01234567…abcdef")
    return pattern


ID_FORMS = "Id, its first 8 or more characters, or its short form 01a1e213…ea569f."
IdArgument = Annotated[
    IdPattern, Parameter(name="ID", converter=parse_id_argument, accepts_keys=False, n_tokens=1, help=ID_FORMS)
]
IdOption = Annotated[
    IdPattern | None, Parameter(converter=parse_id_argument, accepts_keys=False, n_tokens=1, metavar="ID")
]


async def resolve_id(tx: Tx, pattern: IdPattern, noun: str, match_ids: MatchIds) -> UUID:
    """Return the one id that matches. A whole id is returned without a look at the table."""
    if pattern.low == pattern.high:
        return pattern.low
    ids = await match_ids(tx, pattern, MAX_LISTED_IDS + 1)
    if not ids:
        raise NotFound(f"No {noun} matches {pattern.text}")
    if len(ids) > 1:
        raise ambiguous_id(pattern.text, ids)
    return ids[0]
