"""The transport's decisions: retries, delays, errors and limits."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from pabal_client.errors import ApiError, ConflictError, HubUnavailableError, PayloadTooLargeError, RateLimitError
from pabal_client.outcomes import Dead, Retry, Snooze
from pabal_client.requests import nack_from_result
from pabal_client.transport import (
    NO_RESPONSE,
    HubResponse,
    SendRequest,
    SleepFor,
    raise_for_response,
    retry_after_seconds,
    retry_flow,
)

SENT = SendRequest("POST", "/v1/queue/events", b"{}")
GOOD = HubResponse(202, {}, b"{}")


def test_a_request_is_retried_after_retry_after() -> None:
    flow = retry_flow(SENT)

    assert next(flow) == SENT
    assert flow.send(HubResponse(503, {"retry-after": "7"}, b"")) == SleepFor(7.0)
    assert flow.send(NO_RESPONSE) == SENT
    with pytest.raises(StopIteration) as end:
        flow.send(GOOD)
    assert end.value.value == GOOD


def test_a_long_retry_after_is_raised_to_the_caller() -> None:
    flow = retry_flow(SENT)
    next(flow)
    late = HubResponse(429, {"retry-after": "3600"}, b'{"code": "too_many", "detail": "slowly"}')

    with pytest.raises(StopIteration) as end:
        flow.send(late)
    with pytest.raises(RateLimitError) as refused:
        raise_for_response(end.value.value)

    assert refused.value.retry_after == 3600.0


def test_without_a_response_the_delays_grow_until_the_last_attempt() -> None:
    flow = retry_flow(SENT)
    pauses: list[float] = []
    step = next(flow)
    with pytest.raises(StopIteration) as end:
        while True:
            assert step == SENT
            wait = flow.send(NO_RESPONSE)
            assert isinstance(wait, SleepFor)
            pauses.append(wait.seconds)
            step = flow.send(NO_RESPONSE)

    assert end.value.value == NO_RESPONSE
    assert [0.16 * 2**n <= pause <= 0.24 * 2**n for n, pause in enumerate(pauses)] == [True] * 4


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 500])
def test_a_permanent_error_is_not_retried(status: int) -> None:
    flow = retry_flow(SENT)
    next(flow)

    with pytest.raises(StopIteration):
        flow.send(HubResponse(status, {"retry-after": "1"}, b""))


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", "Wed, 99 Nov 2025 99:99:99 GMT", ",", "٣ "])
def test_an_invalid_retry_after_is_ignored(text: str) -> None:
    assert retry_after_seconds(text) in {None, 3.0}


def test_retry_after_may_be_a_date() -> None:
    wish = retry_after_seconds(format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True))

    assert wish is not None
    assert 10 < wish <= 20


def test_a_retry_after_in_the_past_is_no_negative_delay() -> None:
    past = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)

    with pytest.raises(HubUnavailableError) as refused:
        raise_for_response(HubResponse(503, {"retry-after": past}, b"busy"))

    assert refused.value.retry_after == 0.0


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (
            HubResponse(409, {}, b'{"code": "conflict", "detail": "no longer"}'),
            ConflictError,
            "409 conflict: no longer",
        ),
        (HubResponse(413, {}, b'{"code": "too_large", "detail": "huge"}'), PayloadTooLargeError, "413 too_large: huge"),
        (HubResponse(418, {}, b"short and stout"), ApiError, "418 refused: the hub returned HTTP 418"),
        (HubResponse(301, {}, b""), ApiError, "301 refused: the hub returned HTTP 301"),
        (
            HubResponse(502, {}, b"\xff<html>"),
            HubUnavailableError,
            "the hub returned HTTP 502: \N{REPLACEMENT CHARACTER}<html>",
        ),
        (HubResponse(0, {}, b"ConnectError: refused"), HubUnavailableError, "ConnectError: refused"),
    ],
)
def test_a_response_is_raised_as_its_error_class(answer: HubResponse, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as refused:
        raise_for_response(answer)

    assert str(refused.value) == text
    assert type(refused.value) is kind


def test_secrets_are_not_in_the_repr() -> None:
    send = SendRequest(
        "POST", "/", b"body-secret", {"x": "form-secret"}, {"y": "header-secret"}, ("shop", "basic-secret")
    )

    assert "secret" not in repr(send)


@pytest.mark.parametrize(
    ("value", "outcome", "after"),
    [
        (Dead("never"), "dead", None),
        (Snooze("later", 5), "snooze", 5),
        (Snooze("later", 1e9), "snooze", 86_400.0),
        (Retry("again"), "retry", None),
        (Retry("again", 0), "retry", 0.0),
        (Retry("again", -3), "retry", 0.0),
        (ValueError("bad"), "retry", None),
    ],
)
def test_an_outcome_is_clamped_to_the_limits_of_the_api(value: object, outcome: str, after: float | None) -> None:
    nack = nack_from_result(value)

    assert nack is not None
    assert (nack.outcome, nack.retry_after) == (outcome, after)


def test_an_error_is_cut_and_cleaned_before_it_is_sent() -> None:
    odd = nack_from_result(type("E" * 200, (Exception,), {})("x" * 10_000 + "a\0b\udc80"))

    assert odd is not None
    assert len(odd.error) == 8000
    assert len(odd.error_code or "") == 100
    assert (odd.error_stack or "").endswith("xa\ufffdb?\n")
    assert nack_from_result("anything else") is None
