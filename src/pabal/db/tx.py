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

from pabal.db.channels import Channel, Wakeup
from pabal.db.errors import translate_errors
from pabal.db.queries import Query

RowType = TypeVar("RowType")
if TYPE_CHECKING:
    PooledConnection = PoolConnectionProxy[Record]


class Tx:
    """What a verb takes first: all that is asked of it happens together, or not at all.

    `one`, `maybe` and `all` read rows into the frozen dataclass or struct they are given; its fields name the columns.
    """

    __slots__ = ("_connection", "outcome_counts", "wakeups")

    def __init__(self, connection: "PooledConnection") -> None:
        self._connection = connection
        self.wakeups: set[Wakeup] = set()
        self.outcome_counts: dict[tuple[str, str], int] = {}

    async def one(self, row_type: type[RowType], query: Query, **arguments: object) -> RowType:
        found = await self.maybe(row_type, query, **arguments)
        if found is None:
            raise LookupError(f"{query.name} found nothing")
        return found

    async def maybe(self, row_type: type[RowType], query: Query, **arguments: object) -> RowType | None:
        with translate_errors():
            record = await self._connection.fetchrow(query.sql, *query.bind(arguments))
        return None if record is None else row_reader(row_type)(record)

    async def all(self, row_type: type[RowType], query: Query, **arguments: object) -> list[RowType]:
        with translate_errors():
            records = await self._connection.fetch(query.sql, *query.bind(arguments))
        return [*map(row_reader(row_type), records)]

    async def column(self, query: Query, **arguments: object) -> list[Any]:
        """The first column of every row."""
        with translate_errors():
            records = await self._connection.fetch(query.sql, *query.bind(arguments))
        return [record[0] for record in records]

    async def value(self, query: Query, **arguments: object) -> Any:
        with translate_errors():
            return await self._connection.fetchval(query.sql, *query.bind(arguments))

    async def run(self, query: Query, **arguments: object) -> int:
        """Run it for its effect; the number of rows it touched."""
        with translate_errors():
            status = await self._connection.execute(query.sql, *query.bind(arguments))
        count = status.rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0

    @asynccontextmanager
    async def atomic(self) -> AsyncGenerator[None]:
        """What is asked within happens together or not at all, also where each statement is its own transaction."""
        work, before = self._connection.transaction(), self.outcome_counts.copy()
        with translate_errors():
            await work.start()
        try:
            yield
        except BaseException:
            self.outcome_counts = before
            await _rollback(work)
            raise
        with translate_errors():
            await work.commit()

    def notify(self, channel: Channel, topic: str = "") -> None:
        """Wake whoever waits for this bell, or for this topic of it, once the transaction has committed."""
        self.wakeups.add(Wakeup(channel, topic))

    def count_outcomes(self, lane: str, outcome: str, number: int) -> None:
        """Have it counted, once this has committed, that so many of a lane became this."""
        if number:
            self.outcome_counts[lane, outcome] = self.outcome_counts.get((lane, outcome), 0) + number


async def _rollback(work: Any) -> None:
    try:
        await work.rollback()
    except (OSError, InterfaceError, PostgresError):
        return  # the connection is gone, and the transaction with it


@cache
def row_reader(row_type: type[RowType]) -> Callable[[Record], RowType]:
    make = cast("Callable[..., RowType]", row_type)
    shape = cast("Any", row_type)
    names = (
        [*shape.__struct_fields__] if issubclass(row_type, msgspec.Struct) else [field.name for field in fields(shape)]
    )
    if len(names) == 1:
        only = names[0]
        return lambda record: make(record[only])
    columns = operator.itemgetter(*names)
    return lambda record: make(*columns(record))
