"""What the driver raises, in our words: the only place that reads its exceptions.

PabalError
├── Unavailable      (core) no connection, a lost one, a statement that took too long
└── DatabaseError           the statement reached the database and it said no
    ├── UniqueViolation    a unique constraint
    ├── ForeignKeyViolation       a foreign key
    ├── CheckViolation        a check, a length, a type
    └── RetryableError    a deadlock or serialisation failure: nothing was done, try again
"""

from collections.abc import Generator
from contextlib import contextmanager

import asyncpg

from pabal.core.errors import PabalError, Unavailable


class DatabaseError(PabalError):
    """The database refused the statement. `constraint` names the rule, so a verb can tell what it means."""

    code = "broken"

    def __init__(self, message: str, constraint: str | None = None) -> None:
        self.constraint = constraint
        super().__init__(message)


class UniqueViolation(DatabaseError):
    code = "duplicate"


class ForeignKeyViolation(DatabaseError):
    code = "orphan"


class CheckViolation(DatabaseError):
    code = "unfit"


class RetryableError(DatabaseError):
    code = "contended"


CONNECTION_ERRORS = (
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

ERROR_CLASSES: tuple[tuple[type[asyncpg.PostgresError], type[DatabaseError]], ...] = (
    (asyncpg.UniqueViolationError, UniqueViolation),
    (asyncpg.ForeignKeyViolationError, ForeignKeyViolation),
    (asyncpg.IntegrityConstraintViolationError, CheckViolation),
    (asyncpg.DataError, CheckViolation),
    (asyncpg.TransactionRollbackError, RetryableError),
    (asyncpg.LockNotAvailableError, RetryableError),
)


@contextmanager
def translate_errors() -> Generator[None]:
    try:
        yield
    except asyncpg.DataError as error:  # also raised by the driver itself, before anything is sent
        raise CheckViolation(str(error)) from error
    except CONNECTION_ERRORS as error:
        raise Unavailable(f"the database is not available: {summarize_error(error)}") from error
    except asyncpg.PostgresError as error:
        for theirs, ours in ERROR_CLASSES:
            if isinstance(error, theirs):
                raise ours(summarize_error(error), getattr(error, "constraint_name", None)) from error
        raise DatabaseError(summarize_error(error)) from error


def summarize_error(error: BaseException) -> str:
    """One line, never a statement's parameters."""
    first_line = str(error).split("\n", 1)[0]
    return first_line or type(error).__name__
