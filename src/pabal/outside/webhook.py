"""Signed webhooks, as Standard Webhooks has them, and how their answers are read."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import assert_never

from standardwebhooks import Webhook

from pabal.core.log import cover
from pabal.outside.http import Answered, NotSent, Outside, Unknown
from pabal.queue.outcome import DONE, Dead, Done, Retry

SOONEST, LATEST = timedelta(seconds=1), timedelta(hours=1)
LONGEST_WHY = 200
SECONDS = re.compile(r"[0-9]+")


Verdict = Done | Retry | Dead
"""Dead is a 410: the receiver wants no more of this, now or ever."""


def sign(secrets: Sequence[str], message: str, at: datetime, body: bytes) -> dict[str, str]:
    """The three headers. While a secret is being changed both sign, and the receiver may know either."""
    at = at.astimezone(UTC)  # the library takes the wall clock's digits for UTC
    signatures = [Webhook(secret).sign(message, at, body.decode()) for secret in secrets]
    return {
        "webhook-id": message,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


async def deliver(
    outside: Outside,
    url: str,
    secrets: Sequence[str],
    *,
    message: str,
    at: datetime,
    body: bytes,
    within: timedelta,
    traceparent: str | None = None,
) -> Verdict:
    """Post a message and read the answer. `message` is the id a receiver deduplicates by; the trace goes on there.

    An address we refuse is tried again like one that is away: a resolver may be wrong for a moment, and the attempts
    end by themselves.
    """
    headers = {"content-type": "application/json"} | sign(secrets, message, at, body)
    if traceparent:
        headers["traceparent"] = traceparent
    exchange = await outside.post(url, body, headers, within=within)
    match exchange:
        case Answered() as answer:
            return verdict(answer, at)
        case NotSent(why):
            return Retry(f"not sent: {why}", code="not_sent")
        case Unknown(why):
            return Retry(why, code="no_answer")
        case _:
            assert_never(exchange)


def verdict(answer: Answered, at: datetime) -> Verdict:
    """Read an answer. A 2xx is done even if its body never ends: the status is the answer."""
    why, code = excerpt(answer), f"http_{answer.status}"
    match answer.status:
        case status if 200 <= status < 300:  # noqa: PLR2004 a family of statuses
            return DONE
        case HTTPStatus.GONE:
            return Dead(why, code=code)
        case HTTPStatus.TOO_MANY_REQUESTS | HTTPStatus.SERVICE_UNAVAILABLE:
            return Retry(why, after=retry_after(answer.headers.get("retry-after", ""), at), code=code)
        case status if 300 <= status < 400:  # noqa: PLR2004 a family of statuses
            return Retry(f"answered {status}; redirects are not followed", code=code)
        case _:
            return Retry(why, code=code)


def retry_after(written: str, now: datetime) -> timedelta | None:
    """How long they ask us to wait, within reason; None when they did not say it in a way we can read."""
    written = written.strip()
    if SECONDS.fullmatch(written):
        many = len(written.lstrip("0")) > len(str(LATEST // SOONEST))
        return LATEST if many else clamp(timedelta(seconds=int(written)))
    try:
        until = parsedate_to_datetime(written)
        return clamp(until.replace(tzinfo=until.tzinfo or UTC) - now)
    except (ValueError, TypeError, OverflowError, IndexError):  # the parser falls over in all of these ways
        return None


def clamp(span: timedelta) -> timedelta:
    return min(max(span, SOONEST), LATEST)


def excerpt(answer: Answered) -> str:
    """The status and the beginning of the body: enough for a person, safe for a terminal."""
    said = " ".join(answer.body[: 4 * LONGEST_WHY].decode(errors="replace").split())
    plain = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in cover(said))
    return f"answered {answer.status}{': ' if plain else ''}{plain}"[:LONGEST_WHY]
