"""What a call may raise.

ClientError
├── Refused             the hub said no; `status`, `code` and `detail` say why
│   ├── Invalid         a field is missing or wrong; `mistakes` names it
│   │   └── TooLarge    more bytes than the hub takes
│   ├── Unauthenticated the service or its secret is not known
│   ├── Forbidden       the service may not do this
│   ├── NotFound        not there, or somebody else's
│   ├── Conflict        true once, no longer
│   └── TooMany         come back after `retry_after` seconds
├── Unavailable         no good answer, however often we asked: what was asked for may or may not have happened
└── Unverified          a webhook that the hub did not sign, or signed too long ago
"""

from typing import Any


class ClientError(Exception):
    """Something that went wrong between a service and its hub."""


class Refused(ClientError):
    def __init__(self, status: int, code: str, detail: str, mistakes: list[dict[str, Any]] | None = None) -> None:
        self.status = status
        self.code = code
        self.detail = detail
        self.mistakes = mistakes or []
        super().__init__(f"{status} {code}: {detail}")


class Invalid(Refused):
    pass


class Unauthenticated(Refused):
    pass


class Forbidden(Refused):
    pass


class NotFound(Refused):
    pass


class Conflict(Refused):
    pass


class TooLarge(Invalid):
    pass


class TooMany(Refused):
    retry_after: float = 1.0


class Unavailable(ClientError):
    """`retry_after` is when the hub asked us to come back, in seconds, if that was longer than we wait by ourselves."""

    def __init__(self, why: str, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(why)


class Unverified(ClientError):
    pass


KINDS: dict[int, type[Refused]] = {
    400: Invalid,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    429: TooMany,
}
