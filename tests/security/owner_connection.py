"""A connection of the database's owner on the loop of a served hub."""

from typing import Any, Self

import asyncpg

from pabal.hub import DatabaseUrls
from support.loop_thread import LoopThread


class OwnerConnection:
    """Changes rows that the hub itself may not change."""

    def __init__(self, served: LoopThread, urls: DatabaseUrls) -> None:
        self._served = served
        self._connection: asyncpg.Connection[Any] = served.run(asyncpg.connect(urls.direct or urls.main))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._served.run(self._connection.close())

    def execute(self, statement: str, *arguments: Any) -> None:
        self._served.run(self._connection.execute(statement, *arguments))

    def reset_limits(self) -> None:
        """A request that exceeds a rate limit would not reach the code behind it."""
        self.execute("delete from pabal.limits")
