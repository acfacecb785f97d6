"""Which texts are commands, and which are the bot's to read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pabal.relay.command import Command, Verb, command_in
from pabal.relay.spelling import ALPHABET, code_in, new_code, spelled


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/pair ABCD-2345", Command(Verb.PAIR, "ABCD-2345")),
        ("  /PAIR   abcd2345 \n", Command(Verb.PAIR, "abcd2345")),
        ("/pair\nABCD 2345", Command(Verb.PAIR, "ABCD 2345")),
        ("/pair", Command(Verb.PAIR)),
        ("/unpair", Command(Verb.UNPAIR)),
        ("/Status ", Command(Verb.STATUS)),
        ("/help", Command(Verb.HELP)),
        ("/code", Command(Verb.CODE)),
        ("/help me with my homework", None),
        ("/unpair them", None),
        ("/ help", None),
        ("/", None),
        ("", None),
        ("/pairs ABCD-2345", None),
        ("/weather", None),
        ("help", None),
        ("say /help", None),
    ],
)
def test_a_command_is_recognised_and_nothing_else(text: str, command: Command | None) -> None:
    assert command_in(text, "/") == command


@pytest.mark.parametrize(("prefix", "text"), [("!", "!help"), ("Hub:", "hUB:help"), ("ß", "ßHELP")])
def test_the_prefix_is_the_owners_choice(prefix: str, text: str) -> None:
    assert command_in(text, prefix) == Command(Verb.HELP)
    assert command_in("/help", prefix) is None


@pytest.mark.parametrize(
    "typed",
    [
        "ABCD-2345",
        "abcd2345",
        " ab cd 23 45 ",
        "ABCD—2345",
        "ABCD\u22122345",
        "\uff21\uff22\uff23\uff24\uff0d\uff12\uff13\uff14\uff15",
        "A-B-C-D-2-3-4-5",
    ],
)
def test_a_code_is_read_however_it_is_typed(typed: str) -> None:
    assert code_in(typed) == "ABCD-2345"


@pytest.mark.parametrize(
    "typed", ["ABCD-234", "ABCD-23456", "ABCD-234O", "ABCD-2341", "ABCI-2345", "ABCD-234!", "", "-"]
)
def test_what_cannot_be_a_code_is_none(typed: str) -> None:
    assert code_in(typed) is None


@given(st.text())
def test_whatever_is_typed_is_a_code_of_ours_or_none(typed: str) -> None:
    read = code_in(typed)

    assert read is None or (len(read) == 9 and {*read} <= {*ALPHABET, "-"})


@given(st.text(ALPHABET, min_size=8, max_size=8))
def test_every_code_is_read_as_it_was_spelled(letters: str) -> None:
    assert code_in(spelled(letters).lower()) == spelled(letters)


def test_new_codes_use_every_letter_and_no_other() -> None:
    made = {new_code() for _ in range(500)}

    assert len(made) == 500
    assert {*"".join(made)} == {*ALPHABET, "-"}
    assert not {*"IO01"} & {*ALPHABET}
