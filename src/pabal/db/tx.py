"""A transaction, and the six ways to ask something of it."""

import operator
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from asyncpg import InterfaceError, PostgresError, Record
from asyncpg.pool import PoolConnectionProxy

from pabal.db.bells import Bell, Ring
from pabal.db.faults import our_words
from pabal.db.queries import Query

Row = TypeVar("Row")
if TYPE_CHECKING:
    Connection = PoolConnectionProxy[Record]


class Tx:
    """What a verb takes first: all that is asked of it happens together, or not at all.

    `one`, `maybe` and `all` read rows into the frozen dataclass or struct they are given; its fields name the columns.
    """

    __slots__ = ("_connection", "counted", "rung")

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self.rung: set[Ring] = set()
        self.counted: dict[tuple[str, str], int] = {}

    async def one(self, row: type[Row], query: Query, **given: object) -> Row:
        found = await self.maybe(row, query, **given)
        if found is None:
            raise LookupError(f"{query.name} found nothing")
        return found

    async def maybe(self, row: type[Row], query: Query, **given: object) -> Row | None:
        with our_words():
            record = await self._connection.fetchrow(query.sql, *query.arguments(given))
        return None if record is None else reader(row)(record)

    async def all(self, row: type[Row], query: Query, **given: object) -> list[Row]:
        with our_words():
            records = await self._connection.fetch(query.sql, *query.arguments(given))
        return [*map(reader(row), records)]

    async def column(self, query: Query, **given: object) -> list[Any]:
        """The first column of every row."""
        with our_words():
            records = await self._connection.fetch(query.sql, *query.arguments(given))
        return [record[0] for record in records]

    async def value(self, query: Query, **given: object) -> Any:
        with our_words():
            return await self._connection.fetchval(query.sql, *query.arguments(given))

    async def run(self, query: Query, **given: object) -> int:
        """Run it for its effect; the number of rows it touched."""
        with our_words():
            status = await self._connection.execute(query.sql, *query.arguments(given))
        count = status.rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0

    @asynccontextmanager
    async def together(self) -> AsyncGenerator[None]:
        """What is asked within happens together or not at all, also where each statement is its own transaction."""
        work, before = self._connection.transaction(), self.counted.copy()
        with our_words():
            await work.start()
        try:
            yield
        except BaseException:
            self.counted = before
            await _undo(work)
            raise
        with our_words():
            await work.commit()

    def ring(self, bell: Bell, topic: str = "") -> None:
        """Wake whoever waits for this bell, or for this topic of it, once the transaction has committed."""
        self.rung.add(Ring(bell, topic))

    def count(self, lane: str, what: str, number: int) -> None:
        """Have it counted, once this has committed, that so many of a lane became this."""
        if number:
            self.counted[lane, what] = self.counted.get((lane, what), 0) + number


async def _undo(work: Any) -> None:
    try:
        await work.rollback()
    except (OSError, InterfaceError, PostgresError):
        return  # the connection is gone, and the transaction with it


@cache
def reader(row: type[Row]) -> Callable[[Record], Row]:
    make = cast("Callable[..., Row]", row)
    shape = cast("Any", row)
    names = [*shape.__struct_fields__] if issubclass(row, msgspec.Struct) else [field.name for field in fields(shape)]
    if len(names) == 1:
        only = names[0]
        return lambda record: make(record[only])
    columns = operator.itemgetter(*names)
    return lambda record: make(*columns(record))
