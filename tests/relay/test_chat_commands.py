"""Parsing of chat commands and pairing codes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pabal.relay.pairing.codes import CODE_ALPHABET, format_pairing_code, parse_pairing_code, random_pairing_code
from pabal.relay.webhook.commands import ChatCommand, ChatCommandName, parse_chat_command


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/pair ABCD-2345", ChatCommand(ChatCommandName.PAIR, "ABCD-2345")),
        ("  /PAIR   abcd2345 \n", ChatCommand(ChatCommandName.PAIR, "abcd2345")),
        ("/pair\nABCD 2345", ChatCommand(ChatCommandName.PAIR, "ABCD 2345")),
        ("/pair", ChatCommand(ChatCommandName.PAIR)),
        ("/unpair", ChatCommand(ChatCommandName.UNPAIR)),
        ("/Status ", ChatCommand(ChatCommandName.STATUS)),
        ("/help", ChatCommand(ChatCommandName.HELP)),
        ("/code", ChatCommand(ChatCommandName.CODE)),
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
def test_commands_are_recognised_and_other_texts_are_not(text: str, command: ChatCommand | None) -> None:
    assert parse_chat_command(text, "/") == command


@pytest.mark.parametrize(("prefix", "text"), [("!", "!help"), ("Hub:", "hUB:help"), ("ß", "ßHELP")])
def test_the_command_prefix_is_configurable(prefix: str, text: str) -> None:
    assert parse_chat_command(text, prefix) == ChatCommand(ChatCommandName.HELP)
    assert parse_chat_command("/help", prefix) is None


@pytest.mark.parametrize(
    "text",
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
def test_a_code_is_parsed_in_any_notation(text: str) -> None:
    assert parse_pairing_code(text) == "ABCD-2345"


@pytest.mark.parametrize(
    "text", ["ABCD-234", "ABCD-23456", "ABCD-234O", "ABCD-2341", "ABCI-2345", "ABCD-234!", "", "-"]
)
def test_other_input_is_not_a_code(text: str) -> None:
    assert parse_pairing_code(text) is None


@given(st.text())
def test_any_input_parses_to_a_valid_code_or_none(text: str) -> None:
    code = parse_pairing_code(text)

    assert code is None or (len(code) == 9 and {*code} <= {*CODE_ALPHABET, "-"})


@given(st.text(CODE_ALPHABET, min_size=8, max_size=8))
def test_every_code_parses_to_itself(characters: str) -> None:
    assert parse_pairing_code(format_pairing_code(characters).lower()) == format_pairing_code(characters)


def test_new_codes_use_the_whole_alphabet() -> None:
    codes = {random_pairing_code() for _ in range(500)}

    assert len(codes) == 500
    assert {*"".join(codes)} == {*CODE_ALPHABET, "-"}
    assert not {*"IO01"} & {*CODE_ALPHABET}
