"""A transaction, and the five ways to ask something of it."""

import operator
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from asyncpg import Record
from asyncpg.pool import PoolConnectionProxy

from pabal.db.bells import Bell
from pabal.db.faults import our_words
from pabal.db.queries import Query

Row = TypeVar("Row")
NOTHING: AbstractAsyncContextManager[object] = nullcontext()
if TYPE_CHECKING:
    Connection = PoolConnectionProxy[Record]


class Tx:
    """What a verb takes first: all that is asked of it happens together, or not at all.

    `one`, `maybe` and `all` read rows into the frozen dataclass they are given; its fields name the columns.
    """

    __slots__ = ("_connection", "_each_alone", "rung")

    def __init__(self, connection: "Connection", *, each_alone: bool = False) -> None:
        self._connection = connection
        self._each_alone = each_alone
        self.rung: set[Bell] = set()

    async def one(self, row: type[Row], query: Query, **given: object) -> Row:
        found = await self.maybe(row, query, **given)
        if found is None:
            raise LookupError(f"{query.name} found nothing")
        return found

    async def maybe(self, row: type[Row], query: Query, **given: object) -> Row | None:
        with our_words():
            async with self._bounds():
                record = await self._connection.fetchrow(query.sql, *query.arguments(given))
        return None if record is None else reader(row)(record)

    async def all(self, row: type[Row], query: Query, **given: object) -> list[Row]:
        with our_words():
            async with self._bounds():
                records = await self._connection.fetch(query.sql, *query.arguments(given))
        return [*map(reader(row), records)]

    async def value(self, query: Query, **given: object) -> Any:
        with our_words():
            async with self._bounds():
                return await self._connection.fetchval(query.sql, *query.arguments(given))

    async def run(self, query: Query, **given: object) -> int:
        """Run it for its effect; the number of rows it touched."""
        with our_words():
            async with self._bounds():
                status = await self._connection.execute(query.sql, *query.arguments(given))
        count = status.rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0

    def ring(self, bell: Bell) -> None:
        """Wake whoever waits for this bell, once the transaction has committed."""
        self.rung.add(bell)

    def _bounds(self) -> AbstractAsyncContextManager[object]:
        """Give a lone statement a transaction behind a pooler.

        The driver parses it in one breath and runs it in the next; in between the pooler may have changed servers.
        """
        return self._connection.transaction() if self._each_alone else NOTHING


@cache
def reader(row: type[Row]) -> Callable[[Record], Row]:
    make = cast("Callable[..., Row]", row)
    names = [field.name for field in fields(cast("Any", row))]
    if len(names) == 1:
        only = names[0]
        return lambda record: make(record[only])
    columns = operator.itemgetter(*names)
    return lambda record: make(*columns(record))
