"""The error history of an event: the hub's own entries, and those that another program wrote before an adoption."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from pabal.events.error_history import FailedAttempt, parse_error_history

BEGAN = "2026-03-01T12:00:00+00:00"
FAILED = "2026-03-01T12:00:02.5+00:00"


def test_an_entry_of_the_hub_keeps_all_its_fields() -> None:
    entry = {"at": FAILED, "code": "net", "began": BEGAN, "error": "boom", "worker": "w1", "attempt": 2}

    [attempt] = [*(parse_error_history([entry]) or ())]

    assert (attempt.attempt, attempt.worker, attempt.error, attempt.code) == (2, "w1", "boom", "net")
    assert (attempt.at, attempt.took) == (
        datetime(2026, 3, 1, 12, 0, 2, 500_000, tzinfo=UTC),
        timedelta(seconds=2, milliseconds=500),
    )
    assert msgspec.json.decode(msgspec.json.encode(attempt)).keys() == entry.keys()


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ({"error": "boom", "timestamp": 7}, "boom"),
        ({"message": "boom"}, '{"message":"boom"}'),
        ({"error": "boom", "at": "2026-03-01T12:00:00"}, '{"error":"boom","at":"2026-03-01T12:00:00"}'),
        ({"error": "boom", "attempt": "two"}, '{"error":"boom","attempt":"two"}'),
        ("boom", "boom"),
        (None, "null"),
    ],
)
def test_what_another_program_wrote_is_kept_as_a_text(entry: object, error: str) -> None:
    assert parse_error_history([entry]) == [FailedAttempt(error)]


def test_a_history_that_is_no_list_is_one_entry() -> None:
    assert parse_error_history(None) is None
    assert parse_error_history({"error": "boom"}) == [FailedAttempt("boom")]
