import copy
import pickle
from dataclasses import asdict, dataclass
from datetime import timedelta

import msgspec
import pytest

from pabal.core.messages import Message, duration_message, join_messages, message_table

NESTED = Message("attempt {} failed: {}", 1, Message("no {}", "{}"))


@dataclass(frozen=True, slots=True)
class Line:
    says: str


def test_a_message_is_its_text_and_keeps_pattern_and_arguments() -> None:
    assert NESTED == "attempt 1 failed: no {}"
    assert f"{NESTED}!" == "attempt 1 failed: no {}!"
    assert NESTED.pattern == "attempt {} failed: {}"
    number, reason = NESTED.parts
    assert number == 1
    assert isinstance(reason, Message)
    assert reason.parts == ("{}",)


def test_an_argument_is_never_used_as_a_pattern() -> None:
    assert Message("died: {}", "{0.__class__} {} {x}") == "died: {0.__class__} {} {x}"


def test_a_copy_is_the_same_message() -> None:
    for copied in (
        copy.copy(NESTED),
        copy.deepcopy(NESTED),
        pickle.loads(pickle.dumps(NESTED)),
        asdict(Line(NESTED))["says"],
    ):
        assert isinstance(copied, Message)
        assert (copied, copied.pattern, copied.parts) == (NESTED, NESTED.pattern, NESTED.parts)


def test_a_message_is_encoded_as_its_text() -> None:
    assert msgspec.json.encode(asdict(Line(NESTED)), enc_hook=str) == b'{"says":"attempt 1 failed: no {}"}'


def test_messages_are_joined_with_commas() -> None:
    table = message_table("sent", "failed")

    joined = join_messages(table.values())

    assert (joined, joined.pattern, joined.parts) == ("sent, failed", "{}, {}", ("sent", "failed"))
    assert join_messages([]) == ""
    assert table["sent"].pattern == "sent"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.25, "250 ms"),
        (1.26, "1.3 s"),
        (59, "59 s"),
        (1799.9, "30 min 0 s"),
        (61, "1 min 1 s"),
        (3600, "1 h 0 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations_have_at_most_two_units(seconds: float, text: str) -> None:
    assert duration_message(timedelta(seconds=seconds)) == text
