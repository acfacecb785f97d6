"""What the driver raises, in our words: the only place that reads its exceptions.

PabalError
├── Unavailable      (core) no connection, a lost one, a statement that took too long
└── Broken           the statement reached the database and it said no
    ├── Duplicate    a unique constraint
    ├── Orphan       a foreign key
    ├── Unfit        a check, a length, a type
    └── Contended    a deadlock or serialisation failure: nothing was done, try again
"""

from collections.abc import Generator
from contextlib import contextmanager

import asyncpg

from pabal.core.errors import PabalError, Unavailable


class Broken(PabalError):
    """The database refused the statement. `constraint` names the rule, so a verb can tell what it means."""

    code = "broken"

    def __init__(self, message: str, constraint: str | None = None) -> None:
        self.constraint = constraint
        super().__init__(message)


class Duplicate(Broken):
    code = "duplicate"


class Orphan(Broken):
    code = "orphan"


class Unfit(Broken):
    code = "unfit"


class Contended(Broken):
    code = "contended"


AWAY = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that died between two messages: the driver has lost its thread
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # shutting down, or the statement timeout
    asyncpg.InsufficientResourcesError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.ReadOnlySQLTransactionError,  # a standby that was a primary a moment ago
)

NO: tuple[tuple[type[asyncpg.PostgresError], type[Broken]], ...] = (
    (asyncpg.UniqueViolationError, Duplicate),
    (asyncpg.ForeignKeyViolationError, Orphan),
    (asyncpg.IntegrityConstraintViolationError, Unfit),
    (asyncpg.DataError, Unfit),
    (asyncpg.TransactionRollbackError, Contended),
    (asyncpg.LockNotAvailableError, Contended),
)


@contextmanager
def our_words() -> Generator[None]:
    try:
        yield
    except asyncpg.DataError as error:  # also raised by the driver itself, before anything is sent
        raise Unfit(str(error)) from error
    except AWAY as error:
        raise Unavailable(f"the database is not available: {short(error)}") from error
    except asyncpg.PostgresError as error:
        for theirs, ours in NO:
            if isinstance(error, theirs):
                raise ours(short(error), getattr(error, "constraint_name", None)) from error
        raise Broken(short(error)) from error


def short(error: BaseException) -> str:
    """One line, never a statement's parameters."""
    first_line = str(error).split("\n", 1)[0]
    return first_line or type(error).__name__
