"""A transaction and its six query methods."""

import asyncio
import operator
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import msgspec
from asyncpg import InterfaceError, PostgresError, Record
from asyncpg.pool import PoolConnectionProxy

from pabal.db.doorbell.channels import Channel, Wakeup
from pabal.db.errors import translate_errors
from pabal.db.queries import Query

RowType = TypeVar("RowType")
CountedOutcome = Literal["done", "failed", "dead"]
"""How a row of a lane ended, as the throughput counts it."""
if TYPE_CHECKING:
    DriverConnection = PoolConnectionProxy[Record]


class Tx:
    """A transaction. Every function that changes data takes it as its first argument.

    `one`, `maybe` and `all` read rows into a frozen dataclass or struct whose fields are named like the columns. If
    the metadata of a field has a function `parse`, the field gets its result.
    """

    __slots__ = ("_connection", "_deadline", "outcome_counts", "wakeups")

    def __init__(self, connection: "DriverConnection", deadline: float | None = None) -> None:
        self._connection = connection
        self._deadline = deadline
        """Seconds that one statement may take, COMMIT included; None for the connection's own timeout."""
        self.wakeups: set[Wakeup] = set()
        self.outcome_counts: dict[tuple[str, CountedOutcome], int] = {}

    async def one(self, row_type: type[RowType], query: Query, **arguments: object) -> RowType:
        row = await self.maybe(row_type, query, **arguments)
        if row is None:
            raise LookupError(f"query {query.name} returned no row")
        return row

    async def maybe(self, row_type: type[RowType], query: Query, **arguments: object) -> RowType | None:
        with translate_errors():
            record = await self._connection.fetchrow(query.sql, *query.bind(arguments), timeout=self._deadline)
        return None if record is None else row_reader(row_type)(record)

    async def all(self, row_type: type[RowType], query: Query, **arguments: object) -> list[RowType]:
        with translate_errors():
            records = await self._connection.fetch(query.sql, *query.bind(arguments), timeout=self._deadline)
        return [*map(row_reader(row_type), records)]

    async def column(self, query: Query, **arguments: object) -> list[Any]:
        """The first column of every row."""
        with translate_errors():
            records = await self._connection.fetch(query.sql, *query.bind(arguments), timeout=self._deadline)
        return [record[0] for record in records]

    async def value(self, query: Query, **arguments: object) -> Any:
        with translate_errors():
            return await self._connection.fetchval(query.sql, *query.bind(arguments), timeout=self._deadline)

    async def run(self, query: Query, **arguments: object) -> int:
        """Execute a statement; returns the number of rows it affected."""
        with translate_errors():
            status = await self._connection.execute(query.sql, *query.bind(arguments), timeout=self._deadline)
        count = status.rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0

    @asynccontextmanager
    async def atomic(self) -> AsyncGenerator[None]:
        """Make the statements of a block atomic, also in autocommit mode."""
        transaction, before = self._connection.transaction(), self.outcome_counts.copy()
        with translate_errors():
            async with asyncio.timeout(self._deadline):
                await transaction.start()
        try:
            yield
        except BaseException:
            self.outcome_counts = before
            await _rollback(transaction)
            raise
        with translate_errors():
            async with asyncio.timeout(self._deadline):
                await transaction.commit()

    def notify(self, channel: Channel, topic: str = "") -> None:
        """Wake the listeners of this channel, or of this topic of it, after the commit."""
        self.wakeups.add(Wakeup(channel, topic))

    def count_outcomes(self, lane: str, outcome: CountedOutcome, number: int) -> None:
        """Add to the lane's throughput, after the commit."""
        if number:
            self.outcome_counts[lane, outcome] = self.outcome_counts.get((lane, outcome), 0) + number


async def _rollback(transaction: Any) -> None:
    try:
        await transaction.rollback()
    except (OSError, InterfaceError, PostgresError):
        return  # the connection is lost, which rolls back as well


@cache
def row_reader(row_type: type[RowType]) -> Callable[[Record], RowType]:
    constructor = cast("Callable[..., RowType]", row_type)
    if issubclass(row_type, msgspec.Struct):
        names, parsers = [*row_type.__struct_fields__], dict[str, Callable[[Any], Any]]()
    else:
        columns = fields(cast("Any", row_type))
        names = [column.name for column in columns]
        parsers = {column.name: column.metadata["parse"] for column in columns if "parse" in column.metadata}
    if parsers:
        return lambda record: constructor(
            *(parsers[name](record[name]) if name in parsers else record[name] for name in names)
        )
    if len(names) == 1:
        name = names[0]
        return lambda record: constructor(record[name])
    values = operator.itemgetter(*names)
    return lambda record: constructor(*values(record))
