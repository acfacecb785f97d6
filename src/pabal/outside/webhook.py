"""Signed webhooks, as Standard Webhooks has them, and how their answers are read."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import assert_never

from standardwebhooks import Webhook

from pabal.core.log import redact_log_text
from pabal.outside.http import HttpClient, HttpResponse, NoResponse, NotSent
from pabal.queue.outcome import DONE, Dead, Done, Retry

MIN_RETRY_AFTER, MAX_RETRY_AFTER = timedelta(seconds=1), timedelta(hours=1)
MAX_ERROR_LENGTH = 200
RETRY_AFTER_SECONDS = re.compile(r"[0-9]+")


WebhookOutcome = Done | Retry | Dead
"""Dead is a 410: the receiver wants no more of this, now or ever."""


def sign_webhook(secrets: Sequence[str], message_id: str, sent_at: datetime, body: bytes) -> dict[str, str]:
    """The three headers. While a secret is being changed both sign, and the receiver may know either."""
    sent_at = sent_at.astimezone(UTC)  # the library takes the wall clock's digits for UTC
    signatures = [Webhook(secret).sign(message_id, sent_at, body.decode()) for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(sent_at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


async def post_webhook(
    http_client: HttpClient,
    url: str,
    secrets: Sequence[str],
    *,
    message_id: str,
    sent_at: datetime,
    body: bytes,
    time_limit: timedelta,
    traceparent: str | None = None,
) -> WebhookOutcome:
    """Post a message and read the answer. `message` is the id a receiver deduplicates by; the trace goes on there.

    An address we refuse is tried again like one that is away: a resolver may be wrong for a moment, and the attempts
    end by themselves.
    """
    headers = {"content-type": "application/json"} | sign_webhook(secrets, message_id, sent_at, body)
    if traceparent:
        headers["traceparent"] = traceparent
    exchange = await http_client.post(url, body, headers, time_limit=time_limit)
    match exchange:
        case HttpResponse() as answer:
            return read_webhook_response(answer, sent_at)
        case NotSent(why):
            return Retry(f"not sent: {why}", code="not_sent")
        case NoResponse(why):
            return Retry(why, code="no_answer")
        case _:
            assert_never(exchange)


def read_webhook_response(response: HttpResponse, now: datetime) -> WebhookOutcome:
    """Read an answer. A 2xx is done even if its body never ends: the status is the answer."""
    why, code = describe_response(response), f"http_{response.status}"
    match response.status:
        case status if 200 <= status < 300:  # noqa: PLR2004 a family of statuses
            return DONE
        case HTTPStatus.GONE:
            return Dead(why, code=code)
        case HTTPStatus.TOO_MANY_REQUESTS | HTTPStatus.SERVICE_UNAVAILABLE:
            return Retry(why, delay=parse_retry_after_header(response.headers.get("retry-after", ""), now), code=code)
        case status if 300 <= status < 400:  # noqa: PLR2004 a family of statuses
            return Retry(f"answered {status}; redirects are not followed", code=code)
        case _:
            return Retry(why, code=code)


def parse_retry_after_header(value: str, now: datetime) -> timedelta | None:
    """How long they ask us to wait, within reason; None when they did not say it in a way we can read."""
    value = value.strip()
    if RETRY_AFTER_SECONDS.fullmatch(value):
        many = len(value.lstrip("0")) > len(str(MAX_RETRY_AFTER // MIN_RETRY_AFTER))
        return MAX_RETRY_AFTER if many else clamp_retry_after(timedelta(seconds=int(value)))
    try:
        until = parsedate_to_datetime(value)
        return clamp_retry_after(until.replace(tzinfo=until.tzinfo or UTC) - now)
    except (ValueError, TypeError, OverflowError, IndexError):  # the parser falls over in all of these ways
        return None


def clamp_retry_after(delay: timedelta) -> timedelta:
    return min(max(delay, MIN_RETRY_AFTER), MAX_RETRY_AFTER)


def describe_response(response: HttpResponse) -> str:
    """The status and the beginning of the body: enough for a person, safe for a terminal."""
    said = " ".join(response.body[: 4 * MAX_ERROR_LENGTH].decode(errors="replace").split())
    plain = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in redact_log_text(said))
    return f"answered {response.status}{': ' if plain else ''}{plain}"[:MAX_ERROR_LENGTH]
