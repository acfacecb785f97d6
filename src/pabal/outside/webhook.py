"""Signed webhooks (Standard Webhooks), and the outcome of each response."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import assert_never

from standardwebhooks import Webhook
from standardwebhooks.webhooks import EmptyWebhookSecretError

from pabal.core.log import redact_log_text
from pabal.outside.http import HttpClient, HttpResponse, NoResponse, NotSent, NotSentCause
from pabal.queue.outcome import DONE, Dead, Done, Retry, Unsent, UnsentScope

MIN_RETRY_AFTER, MAX_RETRY_AFTER = timedelta(seconds=1), timedelta(hours=1)
MAX_EXCERPT_LENGTH = 200
MAX_DESCRIBED_BODY = 4096
RETRY_AFTER_SECONDS = re.compile(r"[0-9]+")
TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

UNSENT_SCOPES = {
    NotSentCause.URL: UnsentScope.TARGET,
    NotSentCause.REQUEST: UnsentScope.ROW,
    NotSentCause.CLIENT: UnsentScope.HUB,
}
"""The causes on our side. What the receiver causes is a failed attempt."""

WebhookOutcome = Done | Retry | Dead | Unsent
"""Dead is a 410: the receiver wants no more events, now or ever. Unsent is a fault on our side."""


def sign_webhook(secrets: Sequence[str], message_id: str, sent_at: datetime, body: bytes) -> dict[str, str]:
    """Return the three signature headers. During a rotation both secrets sign; the receiver may use either."""
    sent_at = sent_at.astimezone(UTC)  # the library ignores the time zone
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
    """Post a signed message. Receivers deduplicate by `message_id`.

    A `traceparent` that is not valid is left out, as W3C Trace Context requires; the body still has it.
    """
    try:
        signature = sign_webhook(secrets, message_id, sent_at, body)
    except (ValueError, EmptyWebhookSecretError):  # the text of the error may contain the secret
        return Unsent("the signing secret is not valid", "secret_invalid", UnsentScope.TARGET)
    headers = {"content-type": "application/json"} | signature
    if traceparent is not None and TRACEPARENT.fullmatch(traceparent):
        headers["traceparent"] = traceparent
    result = await http_client.post(url, body, headers, time_limit=time_limit)
    match result:
        case HttpResponse():
            return read_webhook_response(result, sent_at)
        case NotSent(error, cause) if cause in UNSENT_SCOPES:
            return Unsent(f"not sent: {error}", "not_sent", UNSENT_SCOPES[cause])
        case NotSent(error):
            return Retry(f"not sent: {error}", code="not_sent")
        case NoResponse(error):
            return Retry(error, code="no_answer")
        case _:
            assert_never(result)


def read_webhook_response(response: HttpResponse, now: datetime) -> Done | Retry | Dead:
    """Map a response to an outcome. A 2xx status is enough, even if the body is cut off."""
    error, code = describe_response(response), f"http_{response.status}"
    match response.status:
        case status if 200 <= status < 300:  # noqa: PLR2004 a family of statuses
            return DONE
        case HTTPStatus.GONE:
            return Dead(error, code=code)
        case HTTPStatus.TOO_MANY_REQUESTS | HTTPStatus.SERVICE_UNAVAILABLE:
            return Retry(error, delay=parse_retry_after_header(response.headers.get("retry-after", ""), now), code=code)
        case status if 300 <= status < 400:  # noqa: PLR2004 a family of statuses
            return Retry(f"HTTP {status}: redirects are not followed", code=code)
        case _:
            return Retry(error, code=code)


def parse_retry_after_header(value: str, now: datetime) -> timedelta | None:
    """Parse Retry-After (seconds or a date), clamped to the limits; None if it is not valid."""
    value = value.strip()
    if RETRY_AFTER_SECONDS.fullmatch(value):
        is_too_long = len(value.lstrip("0")) > len(str(MAX_RETRY_AFTER // MIN_RETRY_AFTER))
        return MAX_RETRY_AFTER if is_too_long else clamp_retry_after(timedelta(seconds=int(value)))
    try:
        until = parsedate_to_datetime(value)
        return clamp_retry_after(until.replace(tzinfo=until.tzinfo or UTC) - now)
    except (ValueError, TypeError, OverflowError, IndexError):  # all of these come from the parser
        return None


def clamp_retry_after(delay: timedelta) -> timedelta:
    return min(max(delay, MIN_RETRY_AFTER), MAX_RETRY_AFTER)


def describe_response(response: HttpResponse) -> str:
    """The status and the beginning of the body, redacted and printable."""
    text = redact_log_text(" ".join(response.body[:MAX_DESCRIBED_BODY].decode(errors="replace").split()))
    excerpt = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return f"HTTP {response.status}{': ' if excerpt else ''}{excerpt}"[:MAX_EXCERPT_LENGTH]
