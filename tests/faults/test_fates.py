"""The oracle of the soak explains a message only if the hub's record agrees with what the user has seen."""

import pytest

from faults.fates import MessageRecord, explain

pytestmark = pytest.mark.unit


def record(status: str, state: str | None, *, is_shown: bool = False, reason: str | None = None) -> MessageRecord:
    return MessageRecord("u1-1", status, reason, state, is_shown, "connection broke")


@pytest.mark.parametrize(
    ("message", "times_shown", "fate"),
    [
        (record("ACKED", "sent"), 1, "answered"),
        (record("ACKED", "late", is_shown=True), 1, "late answer, shown with another one"),
        (record("ACKED", "late"), 0, "late answer, kept for the user"),
        (record("ACKED", "unknown"), 0, "outcome unknown: connection broke"),
        (record("ACKED", "refused"), 1, "refused: connection broke"),
        (record("EXPIRED", "awaited", reason="queue_life"), 0, "no answer, only the waiting text; queue_life"),
        (record("CANCELLED", None, reason="unpaired"), 0, "no answer; unpaired"),
    ],
)
def test_a_message_whose_record_agrees_is_explained(message: MessageRecord, times_shown: int, fate: str) -> None:
    assert explain(message, times_shown) == fate


@pytest.mark.parametrize(
    ("message", "times_shown"),
    [
        (record("ACKED", "sent"), 0),
        (record("ACKED", "sent"), 2),
        (record("ACKED", "late", is_shown=True), 0),
        (record("ACKED", "late"), 1),
        (record("ACKED", "sending"), 0),
        (record("ACKED", None, reason="acked"), 0),
        (record("DELIVERED", None), 0),
        (record("DELIVERED", "awaited"), 0),
        (record("QUEUED", None), 0),
    ],
)
def test_a_message_without_an_end_or_with_another_one_is_not(message: MessageRecord, times_shown: int) -> None:
    assert explain(message, times_shown) is None
