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

from pabal.client.errors import KINDS, Refused, TooMany, Unavailable

Got = TypeVar("Got")

ATTEMPTS = 5
FIRST, LONGEST = 0.2, 10.0
PATIENCE = 60.0
"""Seconds we wait at most when the hub asks us to; longer is the caller's decision."""
EARLY = 60.0
"""Seconds before its end that an access token is renewed."""
AGAIN = frozenset({429, 502, 503, 504})
LONGEST_TEXT = 200


@dataclass(frozen=True, slots=True)
class Send:
    """A request to be sent. What may hold a secret is not shown."""

    method: str
    path: str
    body: bytes | None = field(default=None, repr=False)
    form: Mapping[str, str] | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    basic: tuple[str, str] | None = field(default=None, repr=False)
    longer: float = 0.0
    """Seconds the hub may take besides what any answer takes: a long poll's."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Some time to pass first."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Alone:
    """A flow that one caller runs at a time; the others wait, and then look whether it is still needed."""

    flow: "Callable[[], Flow[object]]"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; status 0 when nothing did."""

    status: int
    headers: Mapping[str, str]
    body: bytes


NOTHING = Answer(0, {}, b"")
"""The answer to a step that has none."""

Step = Send | Wait | Alone
Flow = Generator[Step, Answer, Got]


class Tokens(msgspec.Struct, frozen=True):
    access_token: str
    expires_in: float
    refresh_token: str | None = None

    def __repr__(self) -> str:
        return "Tokens(…)"


class Credentials:
    """A service's name and secret, and the tokens they brought."""

    def __init__(self, service: str, secret: str) -> None:
        self.service = service
        self._secret = secret
        self._access = ""
        self._refresh: str | None = None
        self._until = 0.0

    def token(self, *, refused: str = "") -> Flow[str]:
        """An access token that is good for a while, and not the one the hub has refused."""
        if not self._good(refused):
            yield Alone(lambda: self._renew(refused))
        return self._access

    def _good(self, refused: str) -> bool:
        return self._access != refused and time.monotonic() < self._until

    def _renew(self, refused: str) -> Flow[None]:
        """Refresh; if that does not help, begin anew with the secret.

        A refresh token is shown once: showing it again later would look like theft, and end every token it brought.
        """
        if self._good(refused):  # somebody else has been here while we waited
            return
        spent, self._refresh = self._refresh, None
        if spent:
            answer = yield self._asked({"grant_type": "refresh_token", "refresh_token": spent})
            if answer.status == 200:  # noqa: PLR2004 the only good answer
                self._keep(answer)
                return
        answer = yield from patiently(self._asked({"grant_type": "client_credentials"}))
        raise_for(answer)
        self._keep(answer)

    def _asked(self, form: Mapping[str, str]) -> Send:
        return Send("POST", "/oauth/token", form=form, basic=(self.service, self._secret))

    def _keep(self, answer: Answer) -> None:
        tokens = read(Tokens, answer.body)
        self._access, self._refresh = tokens.access_token, tokens.refresh_token
        self._until = time.monotonic() + max(tokens.expires_in - EARLY, tokens.expires_in / 2)


def call(credentials: Credentials, send: Send) -> Flow[bytes]:
    """One call of a door, with a token, repeated while that helps; the body of a good answer.

    Every call of ours may be sent twice: what is published has a key, what is settled is settled, and what was claimed
    by an answer that got lost falls due again.
    """
    token = yield from credentials.token()
    answer = yield from patiently(with_token(send, token))
    if answer.status == 401:  # noqa: PLR2004 revoked meanwhile, or the hub has new keys
        token = yield from credentials.token(refused=token)
        answer = yield from patiently(with_token(send, token))
    raise_for(answer)
    return answer.body


def patiently(send: Send) -> Flow[Answer]:
    """Send it again when nobody answered or the hub asks to come back later."""
    for attempt in range(1, ATTEMPTS + 1):
        answer = yield send
        if (answer.status and answer.status not in AGAIN) or attempt == ATTEMPTS:
            return answer
        pause = pause_after(answer, attempt, random())  # noqa: S311 jitter, not a secret
        if pause > PATIENCE:
            return answer
        yield Wait(pause)
    raise AssertionError  # the last attempt returned


def pause_after(answer: Answer, attempt: int, chance: float) -> float:
    """As long as the hub asks for, else longer each time."""
    asked = retry_after(answer.headers.get("retry-after", ""))
    backoff = min(FIRST * 2 ** (attempt - 1), LONGEST) * (0.8 + 0.4 * chance)
    return max(asked, 0.0) if asked is not None else backoff


def retry_after(text: str) -> float | None:
    """Seconds, or a date; None for what is neither."""
    text = text.strip()
    if text.isdecimal():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
        return until.replace(tzinfo=until.tzinfo or UTC).timestamp() - time.time()
    except (TypeError, ValueError, IndexError, OverflowError):  # the parser falls over in all of these ways
        return None


def with_token(send: Send, token: str) -> Send:
    return replace(send, headers={"authorization": f"Bearer {token}", "content-type": "application/json"})


def read(kind: type[Got], body: bytes) -> Got:
    """A good answer. One that is not what a hub says came from something in between."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Unavailable("the answer is not a hub's") from None


def raise_for(answer: Answer) -> None:
    """Raise what the hub refused with; nothing for a good answer."""
    if 200 <= answer.status < 300:  # noqa: PLR2004 HTTP's own
        return
    asked = retry_after(answer.headers.get("retry-after", ""))
    if answer.status == 0 or answer.status >= 500:  # noqa: PLR2004 HTTP's own
        said = answer.body.decode(errors="replace")[:LONGEST_TEXT]
        raise Unavailable(f"the hub answered {answer.status}: {said}" if answer.status else said, asked)
    try:
        told = msgspec.json.decode(answer.body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        told = {}
    code = str(told.get("code") or told.get("error") or "refused")
    detail = str(told.get("detail") or told.get("error_description") or f"the hub answered {answer.status}")
    error = KINDS.get(answer.status, Refused)(answer.status, code, detail, told.get("mistakes"))
    if isinstance(error, TooMany):
        error.retry_after = max(asked or 0.0, 1.0)
    raise error
