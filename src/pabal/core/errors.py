"""Everything Pabal raises on purpose.

PabalError
├── RequestError                 the caller asked for something that cannot be
│   ├── Invalid             a field is missing or wrong; it is named
│   ├── Unauthenticated     nobody we know
│   │   ├── InvalidClient   no such service, or not its secret
│   │   └── InvalidToken        an access token that is not, or no longer, good
│   ├── Forbidden           somebody we know, who may not
│   │   ├── InsufficientScope      the token does not carry the permission this needs
│   │   └── AccountDisabled the bot owner's account is switched off
│   ├── InvalidGrant            a refresh token that is not, or no longer, good
│   ├── InvalidScope            nothing of what was asked for may be given
│   ├── UnsupportedGrantType          a way of asking for tokens we do not know
│   ├── NotFound            not there, or somebody else's
│   │   └── MessageNotFound no such message, or another account's
│   ├── MethodNotAllowed          there, but not for this method
│   ├── Conflict            true once, no longer
│   │   ├── LeaseLost       the lease ended and somebody else may hold the row
│   │   ├── SessionNotPaired       a session that has no user
│   │   └── AlreadyReplied  a message has one reply
│   ├── CallbackExpired     Kakao takes no answer any more; ours is kept for later
│   ├── CallbackFailed      Kakao refused the answer
│   ├── CallbackUnconfirmed     Kakao was sent the answer and said nothing
│   ├── BodyTooLarge            more bytes than the door takes
│   └── RateLimited             come back after `retry_after`
├── DecryptionError              an encrypted value that no key here opens, or not in this row
├── Unavailable             the database is away, or did not answer in time
└── SetupError                  the hub cannot run like this; one line says why
    ├── InvalidSettings       settings that cannot be, all of them at once
    ├── PortInUse           somebody else listens where we would
    ├── MigrationError    the schema is not one we may touch
    └── EmbeddedServerError      the embedded Postgres would not start
"""

from dataclasses import dataclass
from datetime import timedelta


class PabalError(Exception):
    """Something Pabal says on purpose; its text is meant to be read by a person."""

    code = "error"


class RequestError(PabalError):
    code = "refused"


@dataclass(frozen=True, slots=True)
class FieldError:
    """One field and what is wrong with it."""

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
    def of_field(cls, field: str, why: str) -> "Invalid":
        return cls(FieldError(field, why))


class Unauthenticated(RequestError):
    code = "unauthenticated"


class InvalidClient(Unauthenticated):
    """The same words for a service nobody knows, a wrong secret and a disabled service."""

    code = "invalid_client"

    def __init__(self) -> None:
        super().__init__("the service is not known, or this is not its secret")


class InvalidToken(Unauthenticated):
    code = "invalid_token"


class Forbidden(RequestError):
    code = "forbidden"


class InsufficientScope(Forbidden):
    code = "insufficient_scope"

    def __init__(self, permission: str) -> None:
        self.permission = permission
        super().__init__(f"the token does not carry the permission {permission}")


class AccountDisabled(Forbidden):
    code = "account_disabled"

    def __init__(self) -> None:
        super().__init__("the account is disabled")


class InvalidGrant(RequestError):
    code = "invalid_grant"


class InvalidScope(RequestError):
    code = "invalid_scope"


class UnsupportedGrantType(RequestError):
    code = "unsupported_grant_type"


class NotFound(RequestError):
    code = "not_found"


class MessageNotFound(NotFound):
    """The same words for a message nobody knows, another account's, and one of another conversation."""

    code = "message_not_found"

    def __init__(self) -> None:
        super().__init__("there is no such message")


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
        super().__init__("the message was answered already")


class CallbackExpired(RequestError):
    code = "callback_expired"

    def __init__(self) -> None:
        super().__init__("Kakao takes no answer to this message any more; it is kept and shown with the next one")


class CallbackFailed(RequestError):
    code = "callback_failed"


class CallbackUnconfirmed(RequestError):
    code = "callback_unknown"


class BodyTooLarge(RequestError):
    code = "too_large"

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"the body is larger than {limit} bytes")


class RateLimited(RequestError):
    code = "too_many"

    def __init__(self, limit_name: str, retry_after: timedelta) -> None:
        self.retry_after = retry_after
        super().__init__(f"too many {limit_name}; try again in {max(1, round(retry_after.total_seconds()))} s")


class DecryptionError(PabalError):
    code = "unreadable"


class Unavailable(PabalError):
    code = "unavailable"


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
