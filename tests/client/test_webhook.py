"""Verification of webhooks."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from pabal.events.subscriptions import new_webhook_secret
from pabal.outside.webhook import sign_webhook
from pabal_client import WebhookVerificationError, verify_webhook
from pabal_client.webhook import webhook_signature

SECRET, OTHER = new_webhook_secret(), new_webhook_secret()
BODY = '{"event_type": "order.paid", "payload": {"이름": "파발"}}'.encode()


def signed(*secrets: str, at: datetime | None = None, body: bytes = BODY) -> dict[str, str]:
    return sign_webhook(secrets or (SECRET,), "msg-1", at or datetime.now(UTC), body)


def test_verification_returns_the_event() -> None:
    assert verify_webhook(SECRET, signed(), BODY) == {"event_type": "order.paid", "payload": {"이름": "파발"}}
    assert verify_webhook(SECRET, signed(), BODY.decode())["event_type"] == "order.paid"


def test_the_standardwebhooks_library_accepts_the_signature() -> None:
    at = datetime.now(UTC)
    headers = {
        "Webhook-Id": "msg-1",
        "WEBHOOK-TIMESTAMP": str(int(at.timestamp())),
        "webhook-Signature": Webhook(SECRET).sign("msg-1", at, BODY.decode()),
    }

    assert verify_webhook(SECRET, headers, BODY) == Webhook(SECRET).verify(BODY, headers)


@pytest.mark.parametrize("ours", [[SECRET], [OTHER, SECRET], (SECRET, OTHER)])
@pytest.mark.parametrize("theirs", [[SECRET], [OTHER, SECRET], [SECRET, OTHER]])
def test_during_a_rotation_either_secret_verifies(ours: list[str], theirs: list[str]) -> None:
    assert verify_webhook(ours, signed(*theirs), BODY)


def test_a_signature_with_another_secret_is_refused() -> None:
    for headers in (signed(OTHER), signed(OTHER) | {"webhook-signature": ""}, {}):
        with pytest.raises(WebhookVerificationError):
            verify_webhook(SECRET, headers, BODY)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_each_header_is_required_and_signed(name: str) -> None:
    headers = signed()
    with pytest.raises(WebhookVerificationError, match=name):
        verify_webhook(SECRET, {key: value for key, value in headers.items() if key != name}, BODY)
    now = str(int(time.time()) - 1)
    other = {"webhook-id": "msg-2", "webhook-timestamp": now, "webhook-signature": headers["webhook-signature"][:-2]}
    with pytest.raises(WebhookVerificationError):
        verify_webhook(SECRET, headers | {name: other[name]}, BODY)


@given(st.integers(0, len(BODY) - 1), st.integers(1, 255))
def test_a_changed_byte_breaks_the_signature(index: int, by: int) -> None:
    body = bytearray(BODY)
    body[index] ^= by
    with pytest.raises(WebhookVerificationError):
        verify_webhook(SECRET, signed(), bytes(body))


@pytest.mark.parametrize("minutes", [-6, 6])
def test_an_old_or_future_timestamp_is_refused(minutes: int) -> None:
    headers = signed(at=datetime.now(UTC) + timedelta(minutes=minutes))

    with pytest.raises(WebhookVerificationError, match="webhook-timestamp"):
        verify_webhook(SECRET, headers, BODY)
    assert verify_webhook(SECRET, headers, BODY, tolerance=600)


@pytest.mark.parametrize(
    "odd_headers",
    [
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": "9" * 5000},
        {"webhook-timestamp": "-1"},
        {"webhook-timestamp": "١٢٣"},
        {"webhook-signature": "v1"},
        {"webhook-signature": "v1,"},
        {"webhook-signature": "v2," + "A" * 44},
        {"webhook-signature": "v1,이름"},
        {"webhook-id": "\udc80"},
    ],
)
def test_odd_headers_are_refused_and_break_nothing(odd_headers: Mapping[str, str]) -> None:
    with pytest.raises(WebhookVerificationError):
        verify_webhook(SECRET, signed() | dict(odd_headers), BODY)


@pytest.mark.parametrize("body", [b"[]", b"", b"{", b"\xff"])
def test_a_signed_body_that_is_not_an_object_is_refused(body: bytes) -> None:
    headers = signed()
    by_hand = webhook_signature(SECRET, b"msg-1." + headers["webhook-timestamp"].encode() + b"." + body)

    with pytest.raises(WebhookVerificationError, match="not a JSON object"):
        verify_webhook(SECRET, headers | {"webhook-signature": f"v1,{by_hand.decode()}"}, body)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_?", "no secret of ours"])
def test_an_invalid_secret_is_a_value_error_that_does_not_quote_it(secret: str) -> None:
    with pytest.raises(ValueError) as error:
        verify_webhook(secret, signed(), BODY)

    assert str(error.value) == "not a webhook secret: it must look like whsec_…"
