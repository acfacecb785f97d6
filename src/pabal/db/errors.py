"""Translates the driver's exceptions into ours. No other module handles them.

PabalError
├── Unavailable (core)          no connection, a lost connection, or a statement timeout
└── DatabaseError               the database rejected the statement
    ├── UniqueViolation         a unique constraint
    ├── ForeignKeyViolation     a foreign key
    ├── CheckViolation          a check constraint, a length or a type
    └── RetryableError          a deadlock, a serialisation failure or an outdated plan: nothing was changed, try again
"""

from collections.abc import Generator
from contextlib import contextmanager

import asyncpg

from pabal.core.errors import DATABASE_UNAVAILABLE, PabalError, Unavailable


class DatabaseError(PabalError):
    """The database rejected the statement. `constraint` is the name of the violated constraint, if any."""

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
    asyncpg.InternalClientError,  # the connection broke in the middle of a message
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # shutting down, or the statement timeout
    asyncpg.InsufficientResourcesError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.ReadOnlySQLTransactionError,  # a primary that became a standby
)

CONFIGURATION_ERRORS = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    ValueError,  # the driver cannot parse the URL
)

ERROR_CLASSES: tuple[tuple[type[asyncpg.PostgresError], type[DatabaseError]], ...] = (
    (asyncpg.UniqueViolationError, UniqueViolation),
    (asyncpg.ForeignKeyViolationError, ForeignKeyViolation),
    (asyncpg.IntegrityConstraintViolationError, CheckViolation),
    (asyncpg.DataError, CheckViolation),
    (asyncpg.TransactionRollbackError, RetryableError),
    (asyncpg.LockNotAvailableError, RetryableError),
    (asyncpg.InvalidCachedStatementError, RetryableError),  # prepared before a migration, run in a transaction after it
)


@contextmanager
def translate_errors() -> Generator[None]:
    try:
        yield
    except asyncpg.DataError as error:  # also raised by the driver, before it sends anything
        raise CheckViolation(str(error)) from error
    except CONNECTION_ERRORS as error:
        raise Unavailable(f"{DATABASE_UNAVAILABLE}{summarize_error(error)}") from error
    except asyncpg.PostgresError as error:
        for driver_class, our_class in ERROR_CLASSES:
            if isinstance(error, driver_class):
                raise our_class(summarize_error(error), getattr(error, "constraint_name", None)) from error
        raise DatabaseError(summarize_error(error)) from error


def summarize_error(error: BaseException) -> str:
    """The first line of an error. Further lines may contain the statement's parameters."""
    first_line = str(error).split("\n", 1)[0]
    return first_line or type(error).__name__


def is_configuration_error(error: Unavailable) -> bool:
    """Whether the server refused the login or the database, or the URL is invalid: waiting does not help."""
    return isinstance(error.__cause__, CONFIGURATION_ERRORS)
