"""What the glossary and the READMEs say is what the code, the Makefile and the command line have."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pabal.cli.app import app
from pabal.core.errors import PabalError
from pabal.db.channels import Channel
from pabal.events.lane import LANE as EVENTS
from pabal.notifications.lane import LANE as NOTIFICATIONS
from pabal.queue.outcome import Outcome
from pabal.relay.delivery.lane import LANE as RELAY

ROOT = Path(__file__).parents[2]
WORDS = re.findall(r"^\| \*\*(.+?)\*\* \| (.+?) \|$", (ROOT / "docs" / "words.md").read_text(), re.MULTILINE)
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
CODE = "\n".join(
    path.read_text() for kind in ("*.py", "*.sql", "*.html") for path in (ROOT / "src").rglob(kind)
).lower()
NAMELESS = re.compile(r"(^|_)(utils?|helpers?|common|manager|service|repository|misc)(_|$)")
"""Each of these as the name of a file means: I did not decide."""


def test_every_word_is_in_order_and_said_in_one_line() -> None:
    names = [name for name, _ in WORDS]

    assert len(names) > 30
    assert names == sorted(names, key=str.lower)
    assert [says for _, says in WORDS if len(says) > 130] == []


@pytest.mark.parametrize("word", [name for name, _ in WORDS])
def test_every_word_is_used_in_the_code(word: str) -> None:
    assert word.lower().replace(" ", "_") in CODE or word.lower() in CODE


def test_lanes_outcomes_and_bells_have_their_words() -> None:
    says = {name.lower(): text for name, text in WORDS}

    for lane in (EVENTS, NOTIFICATIONS, RELAY):
        assert lane.name in says["lane"]
    for kind in Outcome.__args__:
        assert kind.__name__.lower() in says["outcome"]
    assert {lane.channel for lane in (EVENTS, NOTIFICATIONS, RELAY)} <= set(Channel)


def test_no_file_is_named_after_nothing() -> None:
    undecided = [
        path.relative_to(ROOT)
        for path in (ROOT / "src").rglob("*.py")
        if NAMELESS.search(path.stem) or NAMELESS.search(path.parent.name)
    ]

    assert undecided == []


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    drawn = (ROOT / "src" / "pabal" / "core" / "errors.py").read_text().split('"""')[1]

    def grown(kind: type[PabalError]) -> set[str]:
        own = {kind.__name__} if kind.__module__ == "pabal.core.errors" else set[str]()
        return own.union(*(grown(child) for child in kind.__subclasses__()))

    assert grown(PabalError) == {"PabalError", *re.findall(r"^[│├└─ ]+([A-Z]\w+)", drawn, re.MULTILINE)}


def commands(program: str) -> set[tuple[str, ...]]:
    """Every call of a program that a document shows, without its options."""
    found: set[tuple[str, ...]] = set()
    for document in DOCUMENTS:
        for call in re.findall(rf"(?:^|`){program} ([a-z][a-z -]*)", document.read_text(), re.MULTILINE):
            found.add(tuple(word for word in call.split() if not word.startswith("-")))
    return found


@pytest.mark.parametrize("target", sorted({call[0] for call in commands("make")}))
def test_every_make_target_a_document_shows_is_there(target: str) -> None:
    ran = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("call", sorted(commands("pabal")), ids=" ".join)
def test_every_command_a_document_shows_is_there(call: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        app([*call, "--help"], exit_on_error=False, print_error=False)

    assert left.value.code == 0
    assert "Usage" in capsys.readouterr().out


def test_the_command_line_is_a_module_as_well() -> None:
    ran = subprocess.run([sys.executable, "-m", "pabal", "--help"], capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr
    assert "Usage: pabal" in ran.stdout


def test_both_readmes_show_the_same_commands_and_links() -> None:
    english, korean = ((ROOT / name).read_text() for name in ("README.md", "README.ko.md"))
    links = re.compile(r"\]\(((?:docs|bench)/[^)]*|CHANGELOG\.md)\)")

    assert set(links.findall(english)) == set(links.findall(korean))
    assert re.findall(r"^make [a-z]+", english, re.MULTILINE) == re.findall(r"^make [a-z]+", korean, re.MULTILINE)


def test_every_link_to_a_file_leads_somewhere() -> None:
    broken = [
        f"{document.name}: {link}"
        for document in [*DOCUMENTS, ROOT / "bench" / "README.md"]
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
        if not (document.parent / link).exists()
    ]

    assert broken == []
