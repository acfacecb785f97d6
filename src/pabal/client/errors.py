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


class ApiError(ClientError):
    def __init__(self, status: int, code: str, detail: str, mistakes: list[dict[str, Any]] | None = None) -> None:
        self.status = status
        self.code = code
        self.detail = detail
        self.mistakes = mistakes or []
        super().__init__(f"{status} {code}: {detail}")


class ValidationFailedError(ApiError):
    pass


class AuthenticationError(ApiError):
    pass


class PermissionDeniedError(ApiError):
    pass


class NotFoundError(ApiError):
    pass


class ConflictError(ApiError):
    pass


class PayloadTooLargeError(ValidationFailedError):
    pass


class RateLimitError(ApiError):
    retry_after: float = 1.0


class HubUnavailableError(ClientError):
    """`retry_after` is when the hub asked us to come back, in seconds, if that was longer than we wait by ourselves."""

    def __init__(self, detail: str, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(detail)


class WebhookVerificationError(ClientError):
    pass


ERRORS_BY_STATUS: dict[int, type[ApiError]] = {
    400: ValidationFailedError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    413: PayloadTooLargeError,
    429: RateLimitError,
}
