"""The glossary and the READMEs agree with the code, the Makefile and the command line."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pabal.cli.app import app
from pabal.core.errors import PabalError
from pabal.db.doorbell.channels import Channel
from pabal.events.consume.lane import LANE as EVENTS
from pabal.notifications.lane import LANE as NOTIFICATIONS
from pabal.queue.outcome import Outcome
from pabal.relay.delivery.lane import LANE as RELAY

ROOT = Path(__file__).parents[2]
WORDS = re.findall(r"^\| \*\*(.+?)\*\* \| (.+?) \|$", (ROOT / "docs" / "words.md").read_text(), re.MULTILINE)
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
CODE = "\n".join(
    path.read_text() for kind in ("*.py", "*.sql", "*.html") for path in (ROOT / "src").rglob(kind)
).lower()
MEANINGLESS_NAME = re.compile(r"(^|_)(utils?|helpers?|common|manager|service|repository|misc)(_|$)")
"""File names that say nothing about the content."""


def test_the_glossary_is_sorted_and_each_entry_is_one_line() -> None:
    names = [name for name, _ in WORDS]

    assert len(names) > 30
    assert names == sorted(names, key=str.lower)
    assert [text for _, text in WORDS if len(text) > 130] == []


@pytest.mark.parametrize("word", [name for name, _ in WORDS])
def test_every_glossary_word_is_used_in_the_code(word: str) -> None:
    assert word.lower().replace(" ", "_") in CODE or word.lower() in CODE


def test_lanes_outcomes_and_channels_are_in_the_glossary() -> None:
    texts = {name.lower(): text for name, text in WORDS}

    for lane in (EVENTS, NOTIFICATIONS, RELAY):
        assert lane.name in texts["lane"]
    for kind in Outcome.__args__:
        assert kind.__name__.lower() in texts["outcome"]
    assert {lane.channel for lane in (EVENTS, NOTIFICATIONS, RELAY)} <= set(Channel)


def test_no_file_has_a_meaningless_name() -> None:
    meaningless = [
        path.relative_to(ROOT)
        for path in (ROOT / "src").rglob("*.py")
        if MEANINGLESS_NAME.search(path.stem) or MEANINGLESS_NAME.search(path.parent.name)
    ]

    assert meaningless == []


def test_the_error_tree_in_the_docstring_is_complete() -> None:
    docstring = (ROOT / "src" / "pabal" / "core" / "errors.py").read_text().split('"""')[1]

    def subclass_names(kind: type[PabalError]) -> set[str]:
        own = {kind.__name__} if kind.__module__ == "pabal.core.errors" else set[str]()
        return own.union(*(subclass_names(child) for child in kind.__subclasses__()))

    assert subclass_names(PabalError) == {"PabalError", *re.findall(r"^[│├└─ ]+([A-Z]\w+)", docstring, re.MULTILINE)}


def documented_commands(program: str) -> set[tuple[str, ...]]:
    """Every command line of a program in the documents, without options."""
    calls: set[tuple[str, ...]] = set()
    for document in DOCUMENTS:
        for call in re.findall(rf"(?:^|`){program} ([a-z][a-z -]*)", document.read_text(), re.MULTILINE):
            calls.add(tuple(word for word in call.split() if not word.startswith("-")))
    return calls


@pytest.mark.parametrize("target", sorted({call[0] for call in documented_commands("make")}))
def test_every_documented_make_target_exists(target: str) -> None:
    result = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("call", sorted(documented_commands("pabal")), ids=" ".join)
def test_every_documented_command_exists(call: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        app([*call, "--help"], exit_on_error=False, print_error=False)

    assert exit_info.value.code == 0
    assert "Usage" in capsys.readouterr().out


def test_the_command_line_runs_as_a_module() -> None:
    result = subprocess.run([sys.executable, "-m", "pabal", "--help"], capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr
    assert "Usage: pabal" in result.stdout


def test_both_readmes_show_the_same_commands_and_links() -> None:
    english, korean = ((ROOT / name).read_text() for name in ("README.md", "README.ko.md"))
    links = re.compile(r"\]\(((?:docs|bench)/[^)]*|CHANGELOG\.md)\)")

    assert set(links.findall(english)) == set(links.findall(korean))
    assert re.findall(r"^make [a-z]+", english, re.MULTILINE) == re.findall(r"^make [a-z]+", korean, re.MULTILINE)


def test_every_link_to_a_file_is_valid() -> None:
    broken = [
        f"{document.name}: {link}"
        for document in [*DOCUMENTS, ROOT / "bench" / "README.md"]
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
        if not (document.parent / link).exists()
    ]

    assert broken == []
