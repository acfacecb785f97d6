"""Everything Pabal raises on purpose.

PabalError
├── Refused                 the caller asked for something that cannot be
│   ├── Invalid             a field is missing or wrong; it is named
│   ├── Unauthenticated     nobody we know
│   │   ├── UnknownClient   no such service, or not its secret
│   │   └── BadToken        an access token that is not, or no longer, good
│   ├── Forbidden           somebody we know, who may not
│   │   ├── OutOfScope      the token does not carry the permission this needs
│   │   └── AccountDisabled the bot owner's account is switched off
│   ├── BadGrant            a refresh token that is not, or no longer, good
│   ├── BadScope            nothing of what was asked for may be given
│   ├── OtherGrant          a way of asking for tokens we do not know
│   ├── NotFound            not there, or somebody else's
│   │   └── MessageNotFound no such message, or another account's
│   ├── NotAllowed          there, but not for this method
│   ├── Conflict            true once, no longer
│   │   ├── LeaseLost       the lease ended and somebody else may hold the row
│   │   ├── NotPaired       a session that has no user
│   │   └── AlreadyReplied  a message has one reply
│   ├── CallbackExpired     Kakao takes no answer any more; ours is kept for later
│   ├── CallbackFailed      Kakao refused the answer
│   ├── CallbackUnknown     Kakao was sent the answer and said nothing
│   ├── TooLarge            more bytes than the door takes
│   └── TooMany             come back after `retry_after`
├── Unreadable              an encrypted value that no key here opens, or not in this row
├── Unavailable             the database is away, or did not answer in time
└── Failed                  the hub cannot run like this; one line says why
    ├── Misconfigured       settings that cannot be, all of them at once
    ├── PortTaken           somebody else listens where we would
    ├── MigrationRefused    the schema is not one we may touch
    └── EmbeddedFailed      the embedded Postgres would not start
"""

from dataclasses import dataclass
from datetime import timedelta


class PabalError(Exception):
    """Something Pabal says on purpose; its text is meant to be read by a person."""

    code = "error"


class Refused(PabalError):
    code = "refused"


@dataclass(frozen=True, slots=True)
class Mistake:
    """One field and what is wrong with it."""

    field: str
    why: str

    def __str__(self) -> str:
        return f"{self.field}: {self.why}"


class Invalid(Refused):
    code = "invalid"

    def __init__(self, *mistakes: Mistake) -> None:
        self.mistakes = mistakes
        super().__init__("; ".join(map(str, mistakes)))

    @classmethod
    def one(cls, field: str, why: str) -> "Invalid":
        return cls(Mistake(field, why))


class Unauthenticated(Refused):
    code = "unauthenticated"


class UnknownClient(Unauthenticated):
    """The same words for a service nobody knows, a wrong secret and a disabled service."""

    code = "invalid_client"

    def __init__(self) -> None:
        super().__init__("the service is not known, or this is not its secret")


class BadToken(Unauthenticated):
    code = "invalid_token"


class Forbidden(Refused):
    code = "forbidden"


class OutOfScope(Forbidden):
    code = "insufficient_scope"

    def __init__(self, needs: str) -> None:
        self.needs = needs
        super().__init__(f"the token does not carry the permission {needs}")


class AccountDisabled(Forbidden):
    code = "account_disabled"

    def __init__(self) -> None:
        super().__init__("the account is disabled")


class BadGrant(Refused):
    code = "invalid_grant"


class BadScope(Refused):
    code = "invalid_scope"


class OtherGrant(Refused):
    code = "unsupported_grant_type"


class NotFound(Refused):
    code = "not_found"


class MessageNotFound(NotFound):
    """The same words for a message nobody knows, another account's, and one of another conversation."""

    code = "message_not_found"

    def __init__(self) -> None:
        super().__init__("there is no such message")


class NotAllowed(Refused):
    code = "not_allowed"


class Conflict(Refused):
    code = "conflict"


class LeaseLost(Conflict):
    code = "lease_lost"


class NotPaired(Conflict):
    code = "session_not_paired"

    def __init__(self) -> None:
        super().__init__("no user is paired with this session")


class AlreadyReplied(Conflict):
    code = "already_replied"

    def __init__(self) -> None:
        super().__init__("the message was answered already")


class CallbackExpired(Refused):
    code = "callback_expired"

    def __init__(self) -> None:
        super().__init__("Kakao takes no answer to this message any more; it is kept and shown with the next one")


class CallbackFailed(Refused):
    code = "callback_failed"


class CallbackUnknown(Refused):
    code = "callback_unknown"


class TooLarge(Refused):
    code = "too_large"

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"the body is larger than {limit} bytes")


class TooMany(Refused):
    code = "too_many"

    def __init__(self, what: str, retry_after: timedelta) -> None:
        self.retry_after = retry_after
        super().__init__(f"too many {what}; try again in {max(1, round(retry_after.total_seconds()))} s")


class Unreadable(PabalError):
    code = "unreadable"


class Unavailable(PabalError):
    code = "unavailable"


class Failed(PabalError):
    code = "failed"


class Misconfigured(Failed):
    code = "misconfigured"

    def __init__(self, *mistakes: Mistake) -> None:
        self.mistakes = mistakes
        super().__init__("\n".join(map(str, mistakes)))


class PortTaken(Failed):
    code = "port_taken"


class MigrationRefused(Failed):
    code = "migration_refused"


class EmbeddedFailed(Failed):
    code = "embedded_failed"
