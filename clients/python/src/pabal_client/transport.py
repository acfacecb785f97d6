"""Authentication, retries and errors, without any I/O.

A flow is a generator that yields the next step (send a request, sleep) and receives the response. The two clients
differ only in how they run the steps.
"""

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from random import random
from typing import Any, TypeVar

import msgspec

from pabal_client.errors import ERRORS_BY_STATUS, ApiError, HubUnavailableError, RateLimitError

ResultT = TypeVar("ResultT")

MAX_ATTEMPTS = 5
FIRST_DELAY, MAX_DELAY = 0.2, 10.0
MAX_RETRY_AFTER = 60.0
"""Wait at most this many seconds for a Retry-After; beyond that the caller decides."""
RENEWAL_MARGIN = 60.0
"""Renew an access token this many seconds before it expires."""
RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
MAX_DETAIL_CHARS = 200


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send a request. Fields that may hold a secret are not in its repr."""

    method: str
    path: str
    body: bytes | None = field(default=None, repr=False)
    form: Mapping[str, str] | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    basic_auth: tuple[str, str] | None = field(default=None, repr=False)
    extra_timeout: float = 0.0
    """Seconds to add to the timeout, for a long poll."""


@dataclass(frozen=True, slots=True)
class SleepFor:
    """Wait before the next step."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RunExclusively:
    """Run a flow under a lock. Callers that waited for the lock check whether it is still needed."""

    flow: "Callable[[], Flow[object]]"


@dataclass(frozen=True, slots=True)
class HubResponse:
    """A response; status 0 if there was none."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_unsent: bool = False
    """Whether the hub cannot have received the request: there was no connection."""


NO_RESPONSE = HubResponse(0, {}, b"")
"""For steps without a response."""

FlowStep = SendRequest | SleepFor | RunExclusively
Flow = Generator[FlowStep, HubResponse, ResultT]


class FetchedTokens(msgspec.Struct, frozen=True):
    access_token: str
    expires_in: float
    refresh_token: str | None = None

    def __repr__(self) -> str:
        return "FetchedTokens(…)"


class ServiceCredentials:
    """The name and secret of a service, and its current tokens."""

    def __init__(self, service: str, secret: str) -> None:
        self.service = service
        self._secret = secret
        self._access_token = ""
        self._refresh_token: str | None = None
        self._valid_until = 0.0

    def token(self, *, rejected: str = "") -> Flow[str]:
        """Return a valid access token other than the one that the hub rejected."""
        if not self._is_valid(rejected):
            yield RunExclusively(lambda: self._renew(rejected))
        return self._access_token

    def _is_valid(self, rejected: str) -> bool:
        return self._access_token != rejected and time.monotonic() < self._valid_until

    def _renew(self, rejected: str) -> Flow[None]:
        """Use the refresh token; if that fails, use the secret.

        A refresh token is sent only once: the hub treats a second use as theft and revokes all its tokens.
        """
        if self._is_valid(rejected):  # another caller renewed it while we waited
            return
        refresh_token, self._refresh_token = self._refresh_token, None
        if refresh_token:
            response = yield self._token_request({"grant_type": "refresh_token", "refresh_token": refresh_token})
            if response.status == 200:  # noqa: PLR2004 an HTTP status
                self._store_tokens(response)
                return
        response = yield from retry_flow(self._token_request({"grant_type": "client_credentials"}))
        raise_for_response(response)
        self._store_tokens(response)

    def _token_request(self, form: Mapping[str, str]) -> SendRequest:
        return self.secret_request("/oauth/token", form)

    def secret_request(self, path: str, form: Mapping[str, str]) -> SendRequest:
        """A form that is authenticated with the secret instead of a token."""
        return SendRequest("POST", path, form=form, basic_auth=(self.service, self._secret))

    def _store_tokens(self, response: HubResponse) -> None:
        tokens = decode_response(FetchedTokens, response.body)
        self._access_token, self._refresh_token = tokens.access_token, tokens.refresh_token
        self._valid_until = time.monotonic() + max(tokens.expires_in - RENEWAL_MARGIN, tokens.expires_in / 2)


def call_flow(credentials: ServiceCredentials, request: SendRequest) -> Flow[bytes]:
    """Call an endpoint with a token, with retries; return the body of a successful response.

    Every request is safe to repeat: events have an idempotency key, settling twice has no effect, and events claimed by
    a lost response become due again when their lease ends.
    """
    token = yield from credentials.token()
    response = yield from retry_flow(with_bearer_token(request, token))
    if response.status == 401:  # noqa: PLR2004 the token was revoked, or the hub has new keys
        token = yield from credentials.token(rejected=token)
        response = yield from retry_flow(with_bearer_token(request, token))
    raise_for_response(response)
    return response.body


def retry_flow(request: SendRequest) -> Flow[HubResponse]:
    """Send a request; repeat it if there was no response or the status is retryable."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        response = yield request
        if (response.status and response.status not in RETRYABLE_STATUSES) or attempt == MAX_ATTEMPTS:
            return response
        delay = response_retry_delay(response, attempt, random())  # noqa: S311 jitter, not a secret
        if delay > MAX_RETRY_AFTER:
            return response
        yield SleepFor(delay)
    raise AssertionError  # the last attempt returns


def response_retry_delay(response: HubResponse, attempt: int, jitter: float) -> float:
    """Retry-After if the hub sends it, otherwise exponential backoff."""
    retry_after = retry_after_seconds(response.headers.get("retry-after", ""))
    backoff = min(FIRST_DELAY * 2 ** (attempt - 1), MAX_DELAY) * (0.8 + 0.4 * jitter)
    return backoff if retry_after is None else retry_after


def retry_after_seconds(text: str) -> float | None:
    """Parse Retry-After: seconds or a date, 0 if it has passed; None if it is neither."""
    text = text.strip()
    if text.isdecimal():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
        return max(until.replace(tzinfo=until.tzinfo or UTC).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError, IndexError, OverflowError):  # all of these come from the parser
        return None


def with_bearer_token(request: SendRequest, token: str) -> SendRequest:
    content_type = {"content-type": "application/json"} if request.form is None else {}
    return replace(request, headers={"authorization": f"Bearer {token}", **content_type})


def decode_response(response_type: type[ResultT], body: bytes) -> ResultT:
    """Decode the body of a response. One that does not decode came from a proxy, not from the hub."""
    try:
        return msgspec.json.decode(body, type=response_type)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise HubUnavailableError("the response is not from a hub") from None


def raise_for_response(response: HubResponse) -> None:
    """Raise the error of a response; return if it was successful."""
    if 200 <= response.status < 300:  # noqa: PLR2004 an HTTP status
        return
    retry_after = retry_after_seconds(response.headers.get("retry-after", ""))
    if response.status == 0 or response.status >= 500:  # noqa: PLR2004 an HTTP status
        excerpt = response.body.decode(errors="replace")[:MAX_DETAIL_CHARS]
        detail = f"the hub returned HTTP {response.status}: {excerpt}" if response.status else excerpt
        raise HubUnavailableError(detail, retry_after)
    try:
        body = msgspec.json.decode(response.body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = {}
    code = str(body.get("code") or body.get("error") or "refused")
    texts = (body.get(name) for name in ("detail", "error_description", "message"))
    detail = str(next(filter(None, texts), f"the hub returned HTTP {response.status}"))
    error = ERRORS_BY_STATUS.get(response.status, ApiError)(response.status, code, detail, body.get("mistakes"))
    if isinstance(error, RateLimitError):
        error.retry_after = max(retry_after or 0.0, 1.0)
    raise error
