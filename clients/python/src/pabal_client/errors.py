"""The errors of the client.

ClientError
├── ApiError                     the hub refused the request; see `status`, `code` and `detail`
│   ├── ValidationFailedError    a field is missing or invalid; see `mistakes`
│   │   └── PayloadTooLargeError the body is larger than the hub accepts
│   ├── AuthenticationError      wrong service name or secret
│   ├── PermissionDeniedError    the service lacks the permission
│   ├── NotFoundError            does not exist, or belongs to another service
│   ├── ConflictError            the state does not allow it
│   └── RateLimitError           try again after `retry_after` seconds
├── HubUnavailableError          no valid response after all retries; the request may or may not have been processed
└── WebhookVerificationError     the signature of a webhook is wrong or too old
"""

from typing import Any


class ClientError(Exception):
    """The base class of all errors of this package."""


class ApiError(ClientError):
    def __init__(self, status: int, code: str, detail: str, mistakes: list[dict[str, Any]] | None = None) -> None:
        self.status = status
        self.code = code
        self.detail = detail
        self.mistakes = mistakes or []
        super().__init__(f"{status} {code}: {detail}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles with its fields: `args` holds the text only."""
        return type(self), (self.status, self.code, self.detail, self.mistakes), self.__dict__


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
    """`retry_after`: the delay in seconds that the hub asked for, if it is longer than the client waits by itself."""

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
