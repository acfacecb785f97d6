"""All errors that Pabal raises on purpose.

PabalError
├── RequestError                the request cannot be fulfilled
│   ├── Invalid                 fields are missing or wrong; `errors` lists them
│   ├── Unauthenticated         no valid credentials
│   │   ├── InvalidClient       unknown service or wrong secret
│   │   └── InvalidToken        an access token that is malformed, expired or revoked
│   ├── Forbidden               valid credentials without the permission
│   │   ├── InsufficientScope   the token lacks the required permission
│   │   ├── AccountDisabled     the bot owner's account is disabled
│   │   ├── ForeignOrigin       a page of another site sent the request
│   │   └── UnknownHost         the Host header names no host of this hub
│   ├── InvalidGrant            a refresh token that is malformed, expired, revoked or used
│   ├── InvalidScope            none of the requested permissions may be granted
│   ├── UnsupportedGrantType    an unknown OAuth grant type
│   ├── NotFound                does not exist, or belongs to another tenant
│   │   └── MessageNotFound     no such message, or another account's
│   ├── MethodNotAllowed        the path exists, but not with this method
│   ├── Conflict                the current state does not allow it
│   │   ├── LeaseLost           the lease has ended, and another consumer may hold the row
│   │   ├── SessionNotPaired    the session has no user
│   │   └── AlreadyReplied      the message already has its reply
│   ├── CallbackExpired         Kakao no longer accepts a reply; it is kept for the next message
│   ├── CallbackFailed          Kakao rejected the reply
│   ├── CallbackUnconfirmed     the reply was sent, but Kakao did not respond
│   ├── BodyTooLarge            the request body exceeds the endpoint's limit
│   ├── UnsupportedMediaType    the body is not of the type that the endpoint reads
│   └── RateLimited             try again after `retry_after`
├── BackupError                 a backup cannot be written, read or loaded
├── DecryptionError             no key decrypts the value, or it belongs to another row
├── Unavailable                 the database is unavailable or did not respond in time
│   └── SchemaMismatch          another version of Pabal migrated the database
└── SetupError                  the hub cannot start
    ├── InvalidSettings         invalid settings, all of them at once
    ├── PortInUse               another process listens on the port
    ├── MigrationError          the schema cannot be migrated
    └── EmbeddedServerError     the embedded PostgreSQL cannot start
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Self


class PabalError(Exception):
    """An expected error. Its text is written for the user; its `code` is stable."""

    code = "error"


class RequestError(PabalError):
    code = "refused"


@dataclass(frozen=True, slots=True)
class FieldError:
    """A field and the reason it is invalid."""

    field: str
    why: str

    def __str__(self) -> str:
        return f"{self.field}: {self.why}"


class Invalid(RequestError):
    code = "invalid"

    def __init__(self, *errors: FieldError) -> None:
        self.errors = errors
        super().__init__("; ".join(map(str, errors)))

    @classmethod
    def of_field(cls, field: str, why: str) -> Self:
        return cls(FieldError(field, why))


class Unauthenticated(RequestError):
    code = "unauthenticated"


class InvalidClient(Unauthenticated):
    """The same text for an unknown service, a wrong secret and a disabled service."""

    code = "invalid_client"

    def __init__(self) -> None:
        super().__init__("unknown service or wrong secret")


class InvalidToken(Unauthenticated):
    code = "invalid_token"


class Forbidden(RequestError):
    code = "forbidden"


class InsufficientScope(Forbidden):
    code = "insufficient_scope"

    def __init__(self, permission: str) -> None:
        self.permission = permission
        super().__init__(f"the token lacks the permission {permission}")


class AccountDisabled(Forbidden):
    code = "account_disabled"

    def __init__(self) -> None:
        super().__init__("the account is disabled")


class ForeignOrigin(Forbidden):
    code = "foreign_origin"

    def __init__(self) -> None:
        super().__init__(
            "a page of another site sent this request; if it is the hub's page, set PABAL_PUBLIC_URL to its address; "
            "if it is yours, add its origin to PABAL_ALLOWED_ORIGINS"
        )


class UnknownHost(Forbidden):
    code = "unknown_host"

    def __init__(self, host: str) -> None:
        super().__init__(f"{host!r} is not a known host of this hub; add it to PABAL_ALLOWED_HOSTS")


class InvalidGrant(RequestError):
    code = "invalid_grant"


class InvalidScope(RequestError):
    code = "invalid_scope"


class UnsupportedGrantType(RequestError):
    code = "unsupported_grant_type"


class NotFound(RequestError):
    code = "not_found"


class MessageNotFound(NotFound):
    """The same text for an unknown message and for one of another account or conversation."""

    code = "message_not_found"

    def __init__(self) -> None:
        super().__init__("No such message")


class MethodNotAllowed(RequestError):
    code = "not_allowed"


class Conflict(RequestError):
    code = "conflict"


class LeaseLost(Conflict):
    code = "lease_lost"


class SessionNotPaired(Conflict):
    code = "session_not_paired"

    def __init__(self) -> None:
        super().__init__("no user is paired with this session")


class AlreadyReplied(Conflict):
    code = "already_replied"

    def __init__(self) -> None:
        super().__init__("the message already has a reply")


class CallbackExpired(RequestError):
    code = "callback_expired"

    def __init__(self) -> None:
        super().__init__("Kakao no longer accepts a reply to this message; it is shown with the user's next message")


class CallbackFailed(RequestError):
    code = "callback_failed"


class CallbackUnconfirmed(RequestError):
    code = "callback_unknown"


class UnsupportedMediaType(RequestError):
    code = "unsupported_media_type"

    def __init__(self, expected: str) -> None:
        super().__init__(f"the content-type must be {expected}")


class BodyTooLarge(RequestError):
    code = "too_large"

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"the request body is larger than {limit} bytes")


class RateLimited(RequestError):
    code = "too_many"

    def __init__(self, limit_name: str, retry_after: timedelta) -> None:
        self.retry_after = retry_after
        super().__init__(f"too many {limit_name}; try again in {max(1, round(retry_after.total_seconds()))} s")


class BackupError(PabalError):
    code = "backup_failed"


class DecryptionError(PabalError):
    code = "unreadable"


DATABASE_UNAVAILABLE = "the database is not available: "
"""How the text of `Unavailable` begins if the database is the reason."""


class Unavailable(PabalError):
    """Something the hub needs does not respond. `nothing_sent`: surely no statement reached the database."""

    code = "unavailable"

    def __init__(self, detail: str, *, nothing_sent: bool = False) -> None:
        self.nothing_sent = nothing_sent
        super().__init__(detail)


class SchemaMismatch(Unavailable):
    """The database rejected a statement of this version, and its schema is of another one."""

    def __init__(self, known: str, newest: str | None) -> None:
        super().__init__(
            f"the newest migration of the database is {newest or 'none'}, and this process was written for {known}; "
            "restart it with the version of Pabal that migrated the database"
        )


class SetupError(PabalError):
    code = "failed"


class InvalidSettings(SetupError):
    code = "misconfigured"

    def __init__(self, *errors: FieldError) -> None:
        self.errors = errors
        super().__init__("\n".join(map(str, errors)))


class PortInUse(SetupError):
    code = "port_taken"


class MigrationError(SetupError):
    code = "migration_refused"


class EmbeddedServerError(SetupError):
    code = "embedded_failed"
