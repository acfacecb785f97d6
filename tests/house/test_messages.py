"""Every message pattern in the source has a Korean text with the same placeholders, and no Korean text is unused."""

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from string import Formatter

import pytest

from pabal.console import i18n
from pabal.core import messages
from pabal.trace.notification_entries import NOTIFICATION_ACTION_TEXTS

SOURCE = Path(messages.__file__).parents[1]
KOREAN = tomllib.loads((Path(i18n.__file__).parent / "ko" / i18n.MESSAGES_FILE).read_text("utf-8"))
PATTERNS: dict[str, str] = KOREAN["patterns"]
WORDS: dict[str, str] = KOREAN["words"]
ENGLISH_WORDS = i18n.load_messages("en")
LATIN = re.compile(r"[a-z]", re.IGNORECASE)
HANGUL = re.compile("[가-힣]")


def message_patterns(path: Path) -> Iterator[str]:
    """The patterns of all messages that a module creates, as literals in the call or in a constant it names."""
    tree = ast.parse(path.read_text())
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == messages.__name__
        for alias in node.names
    }
    for call in ast.walk(tree):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id in imported & {"Message", "message_table"}
        ):
            for argument in call.args[:1] if call.func.id == "Message" else call.args:
                yield from argument_patterns(argument, path)


def argument_patterns(argument: ast.expr, path: Path) -> Iterator[str]:
    match argument:
        case ast.Constant(value=str(pattern)):
            yield pattern
        case ast.Starred(value=ast.Name(id=name)):
            module = ".".join(("pabal", *path.relative_to(SOURCE).with_suffix("").parts))
            yield from map(str, getattr(import_module(module), name))
        case _:
            pytest.fail(f"{path.name} creates a message of {ast.unparse(argument)}, which cannot be translated")


@pytest.fixture(scope="module")
def patterns() -> set[str]:
    durations = re.findall(r'Message\("([^"]+)"', Path(messages.__file__).read_text())
    return {*durations, *(pattern for path in SOURCE.rglob("*.py") for pattern in message_patterns(path))}


def placeholders(pattern: str) -> list[int]:
    fields = [field for _, field, _, _ in Formatter().parse(pattern) if field is not None]
    return sorted(int(field) if field else index for index, field in enumerate(fields))


def test_every_message_has_a_korean_text(patterns: set[str]) -> None:
    assert {"{} min {} s", "QUEUED", "user_dm", "night_waits", "resolved"} <= patterns
    assert sorted({pattern for pattern in patterns if LATIN.search(pattern)} - {*PATTERNS, *WORDS}) == []


def is_error(node: ast.AST) -> bool:
    return isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and ast.unparse(node.func) == "Invalid.of_field")


def test_the_trace_modules_use_f_strings_only_for_errors() -> None:
    for name in ("events", "relay", "notifications"):
        tree = ast.parse((SOURCE / "trace" / f"{name}.py").read_text())
        errors = {id(part) for node in ast.walk(tree) if is_error(node) for part in ast.walk(node)}
        f_strings = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) and id(node) not in errors]
        assert [ast.unparse(node) for node in f_strings] == [], name


def test_no_korean_text_is_unused(patterns: set[str]) -> None:
    assert sorted({*PATTERNS, *WORDS} - patterns) == []
    assert sorted({*PATTERNS} & {*WORDS}) == []


def test_english_has_a_text_for_every_word() -> None:
    assert ENGLISH_WORDS.keys() == WORDS.keys()


def test_every_recorded_action_on_a_notification_has_a_text() -> None:
    source = "".join(path.read_text() for path in (SOURCE / "notifications").rglob("*.py"))
    actions = {*re.findall(r'record_action\(\s*tx, \w+, "((?:notification|preference)\.\w+)"', source)}

    assert "preference.overridden" in actions
    assert actions == NOTIFICATION_ACTION_TEXTS.keys()


@pytest.mark.parametrize("pattern", [*PATTERNS, *WORDS])
def test_a_korean_text_has_the_placeholders_of_its_pattern(pattern: str) -> None:
    korean = (PATTERNS | WORDS)[pattern]
    assert placeholders(korean) == placeholders(pattern) == [*range(len(placeholders(pattern)))]


def test_korean_texts_are_korean() -> None:
    texts = [*PATTERNS.values(), *WORDS.values()]

    assert [text for text in texts if LATIN.search(text) and not HANGUL.search(text)] == ["{}ms", "Discord DM"]
    assert [text for text in texts if text.endswith(".")] == []
