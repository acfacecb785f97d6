"""What goes over the wire and how often: decided here, without sending anything.

A flow is a generator that yields what is to be done next (send this, wait so long) and is given the answer. The two
clients differ only in how they do it.
"""

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from random import random
from typing import Any, TypeVar

import msgspec

from pabal.client.errors import ERRORS_BY_STATUS, ApiError, HubUnavailableError, RateLimitError

ResultT = TypeVar("ResultT")

MAX_ATTEMPTS = 5
FIRST_DELAY, MAX_DELAY = 0.2, 10.0
MAX_RETRY_AFTER = 60.0
"""Seconds we wait at most when the hub asks us to; longer is the caller's decision."""
RENEWAL_MARGIN = 60.0
"""Seconds before its end that an access token is renewed."""
RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
MAX_DETAIL_CHARS = 200


@dataclass(frozen=True, slots=True)
class SendRequest:
    """A request to be sent. What may hold a secret is not shown."""

    method: str
    path: str
    body: bytes | None = field(default=None, repr=False)
    form: Mapping[str, str] | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    basic_auth: tuple[str, str] | None = field(default=None, repr=False)
    extra_timeout: float = 0.0
    """Seconds the hub may take besides what any answer takes: a long poll's."""


@dataclass(frozen=True, slots=True)
class SleepFor:
    """Some time to pass first."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RunExclusively:
    """A flow that one caller runs at a time; the others wait, and then look whether it is still needed."""

    flow: "Callable[[], Flow[object]]"


@dataclass(frozen=True, slots=True)
class HubResponse:
    """What came back; status 0 when nothing did."""

    status: int
    headers: Mapping[str, str]
    body: bytes


NO_RESPONSE = HubResponse(0, {}, b"")
"""The answer to a step that has none."""

FlowStep = SendRequest | SleepFor | RunExclusively
Flow = Generator[FlowStep, HubResponse, ResultT]


class FetchedTokens(msgspec.Struct, frozen=True):
    access_token: str
    expires_in: float
    refresh_token: str | None = None

    def __repr__(self) -> str:
        return "Tokens(…)"


class ServiceCredentials:
    """A service's name and secret, and the tokens they brought."""

    def __init__(self, service: str, secret: str) -> None:
        self.service = service
        self._secret = secret
        self._access_token = ""
        self._refresh_token: str | None = None
        self._valid_until = 0.0

    def token(self, *, rejected: str = "") -> Flow[str]:
        """An access token that is good for a while, and not the one the hub has refused."""
        if not self._is_valid(rejected):
            yield RunExclusively(lambda: self._renew(rejected))
        return self._access_token

    def _is_valid(self, rejected: str) -> bool:
        return self._access_token != rejected and time.monotonic() < self._valid_until

    def _renew(self, rejected: str) -> Flow[None]:
        """Refresh; if that does not help, begin anew with the secret.

        A refresh token is shown once: showing it again later would look like theft, and end every token it brought.
        """
        if self._is_valid(rejected):  # somebody else has been here while we waited
            return
        spent, self._refresh_token = self._refresh_token, None
        if spent:
            answer = yield self._token_request({"grant_type": "refresh_token", "refresh_token": spent})
            if answer.status == 200:  # noqa: PLR2004 the only good answer
                self._store_tokens(answer)
                return
        answer = yield from retry_flow(self._token_request({"grant_type": "client_credentials"}))
        raise_for_response(answer)
        self._store_tokens(answer)

    def _token_request(self, form: Mapping[str, str]) -> SendRequest:
        return SendRequest("POST", "/oauth/token", form=form, basic_auth=(self.service, self._secret))

    def _store_tokens(self, response: HubResponse) -> None:
        tokens = decode_response(FetchedTokens, response.body)
        self._access_token, self._refresh_token = tokens.access_token, tokens.refresh_token
        self._valid_until = time.monotonic() + max(tokens.expires_in - RENEWAL_MARGIN, tokens.expires_in / 2)


def call_flow(credentials: ServiceCredentials, request: SendRequest) -> Flow[bytes]:
    """One call of a door, with a token, repeated while that helps; the body of a good answer.

    Every call of ours may be sent twice: what is published has a key, what is settled is settled, and what was claimed
    by an answer that got lost falls due again.
    """
    token = yield from credentials.token()
    answer = yield from retry_flow(with_bearer_token(request, token))
    if answer.status == 401:  # noqa: PLR2004 revoked meanwhile, or the hub has new keys
        token = yield from credentials.token(rejected=token)
        answer = yield from retry_flow(with_bearer_token(request, token))
    raise_for_response(answer)
    return answer.body


def retry_flow(request: SendRequest) -> Flow[HubResponse]:
    """Send it again when nobody answered or the hub asks to come back later."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        answer = yield request
        if (answer.status and answer.status not in RETRYABLE_STATUSES) or attempt == MAX_ATTEMPTS:
            return answer
        pause = response_retry_delay(answer, attempt, random())  # noqa: S311 jitter, not a secret
        if pause > MAX_RETRY_AFTER:
            return answer
        yield SleepFor(pause)
    raise AssertionError  # the last attempt returned


def response_retry_delay(response: HubResponse, attempt: int, jitter: float) -> float:
    """As long as the hub asks for, else longer each time."""
    asked = retry_after_seconds(response.headers.get("retry-after", ""))
    backoff = min(FIRST_DELAY * 2 ** (attempt - 1), MAX_DELAY) * (0.8 + 0.4 * jitter)
    return max(asked, 0.0) if asked is not None else backoff


def retry_after_seconds(text: str) -> float | None:
    """Seconds, or a date; None for what is neither."""
    text = text.strip()
    if text.isdecimal():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
        return until.replace(tzinfo=until.tzinfo or UTC).timestamp() - time.time()
    except (TypeError, ValueError, IndexError, OverflowError):  # the parser falls over in all of these ways
        return None


def with_bearer_token(request: SendRequest, token: str) -> SendRequest:
    return replace(request, headers={"authorization": f"Bearer {token}", "content-type": "application/json"})


def decode_response(response_type: type[ResultT], body: bytes) -> ResultT:
    """A good answer. One that is not what a hub says came from something in between."""
    try:
        return msgspec.json.decode(body, type=response_type)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise HubUnavailableError("the answer is not a hub's") from None


def raise_for_response(response: HubResponse) -> None:
    """Raise what the hub refused with; nothing for a good answer."""
    if 200 <= response.status < 300:  # noqa: PLR2004 HTTP's own
        return
    asked = retry_after_seconds(response.headers.get("retry-after", ""))
    if response.status == 0 or response.status >= 500:  # noqa: PLR2004 HTTP's own
        said = response.body.decode(errors="replace")[:MAX_DETAIL_CHARS]
        raise HubUnavailableError(f"the hub answered {response.status}: {said}" if response.status else said, asked)
    try:
        told = msgspec.json.decode(response.body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        told = {}
    code = str(told.get("code") or told.get("error") or "refused")
    detail = str(told.get("detail") or told.get("error_description") or f"the hub answered {response.status}")
    error = ERRORS_BY_STATUS.get(response.status, ApiError)(response.status, code, detail, told.get("mistakes"))
    if isinstance(error, RateLimitError):
        error.retry_after = max(asked or 0.0, 1.0)
    raise error
