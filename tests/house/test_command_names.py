"""No document and no text names a command by its old name. The aliases exist for scripts, not for readers."""

import re
from pathlib import Path

import pabal
from pabal.cli import old_names

PACKAGE = Path(pabal.__file__).parent
PROJECT = PACKAGE.parents[1]
OLD_NAMES = Path(old_names.__file__)
SUFFIXES = {".py", ".sql", ".html", ".js", ".toml", ".md"}
OLD_COMMAND = re.compile(rf"\bpabal (?:{'|'.join(old_names.ALIASES)})\b(?!-)")


def test_the_pattern_finds_old_commands_only() -> None:
    assert OLD_COMMAND.search("run `pabal keys rewrap` first")
    assert OLD_COMMAND.search("pabal dead list")
    assert not OLD_COMMAND.search("pabal dead-letter list, pabal key rewrap, pabal pairing add")


def test_no_text_names_an_old_command() -> None:
    sources = [path for path in PACKAGE.rglob("*") if path.suffix in SUFFIXES and path != OLD_NAMES]
    documents = [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")]
    lines = [
        f"{path.relative_to(PROJECT).as_posix()}:{number}: {line.strip()}"
        for path in sorted((*sources, *documents))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if OLD_COMMAND.search(line)
    ]

    assert len(sources) > 300
    assert lines == []
