"""Whatever a story can say has a twin in Korean, with the same places, and no twin is left over."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from string import Formatter

import pytest

from pabal.console.i18n.messages import KOREAN, WORDS
from pabal.core import messages
from pabal.trace.notification_entries import NOTIFICATION_ACTION_TEXTS

SOURCE = Path(messages.__file__).parents[1]
LETTER = re.compile(r"[a-z]", re.IGNORECASE)
HANGUL = re.compile("[가-힣]")


def written(path: Path) -> Iterator[str]:
    """The patterns a module makes phrases of: each stands in the call, or in what the call names."""
    tree = ast.parse(path.read_text())
    names = {
        each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == messages.__name__
        for each in node.names
    }
    for call in ast.walk(tree):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id in names & {"Message", "message_table"}
        ):
            for given in call.args[:1] if call.func.id == "Message" else call.args:
                yield from patterns_in(given, path)


def patterns_in(given: ast.expr, path: Path) -> Iterator[str]:
    match given:
        case ast.Constant(value=str(pattern)):
            yield pattern
        case ast.Starred(value=ast.Name(id=name)):
            module = ".".join(("pabal", *path.relative_to(SOURCE).with_suffix("").parts))
            yield from map(str, getattr(import_module(module), name))
        case _:
            pytest.fail(f"{path.name} makes a phrase of {ast.unparse(given)}, which nobody can translate")


@pytest.fixture(scope="module")
def patterns() -> set[str]:
    spans = re.findall(r'Message\("([^"]+)"', Path(messages.__file__).read_text())
    return {*spans, *(pattern for path in SOURCE.rglob("*.py") for pattern in written(path))}


def places(pattern: str) -> list[int]:
    """Which parts a pattern shows, in order of their numbers."""
    fields = [field for _, field, _, _ in Formatter().parse(pattern) if field is not None]
    return sorted(int(field) if field else place for place, field in enumerate(fields))


def test_all_that_stories_say_can_be_said_in_korean(patterns: set[str]) -> None:
    assert {
        "{} min {} s",
        "moved to the dead letters: {}; dead letter {}",
        "QUEUED",
        "user_dm",
        "night_waits",
        "resolved",
    } <= patterns
    assert sorted({each for each in patterns if LETTER.search(each)} - {*KOREAN, *WORDS}) == []


def test_what_happened_is_never_told_past_the_phrases() -> None:
    told = [*(SOURCE / "trace").glob("*_entries.py")]

    assert len(told) == 3
    for path in told:
        assert [
            ast.unparse(each) for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.JoinedStr)
        ] == []


def test_no_twin_is_left_over(patterns: set[str]) -> None:
    assert sorted({*KOREAN, *WORDS} - patterns) == []
    assert sorted({*KOREAN} & {*WORDS}) == []


def test_what_is_done_to_a_notification_is_a_word_of_its_story() -> None:
    written = "".join(path.read_text() for path in (SOURCE / "notifications").rglob("*.py"))
    done = {*re.findall(r'record_action\(\s*tx, \w+, "((?:notification|preference)\.\w+)"', written)}

    assert "preference.overridden" in done
    assert done == NOTIFICATION_ACTION_TEXTS.keys()


@pytest.mark.parametrize("pattern", [*KOREAN, *WORDS])
def test_a_twin_shows_the_same_parts(pattern: str) -> None:
    for twin in [KOREAN[pattern]] if pattern in KOREAN else WORDS[pattern]:
        assert places(twin) == places(pattern) == [*range(len(places(pattern)))]


def test_twins_are_korean() -> None:
    spoken = [*KOREAN.values(), *(korean for korean, _ in WORDS.values())]

    assert [says for says in spoken if LETTER.search(says) and not HANGUL.search(says)] == ["{}ms", "Discord DM"]
    assert [says for says in spoken if says.endswith(".")] == []
