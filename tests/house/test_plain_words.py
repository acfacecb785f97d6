"""The source is written in plain technical English."""

import ast
import re
from pathlib import Path

import pabal
import pabal_client

PACKAGES = [Path(str(package.__file__)).parent for package in (pabal, pabal_client)]
SUFFIXES = {".py", ".sql", ".html", ".js", ".css", ".toml", ".md"}
WORDS = re.compile(r"\b(whoever|somebody|nobody|everybody)\b", re.IGNORECASE)
FORMER_NAMES = frozenset({"told", "said", "each", "standing", "road", "door", "deed", "whom", "heal"})
TOOLS = Path(__file__).parents[2] / "tools"
SYSTEM_ACCOUNT = re.compile(r"""["'`]nobody["'`]|\bnobody\b(?= account)""")
"""The unprivileged account of the operating system, which the embedded server may run as."""


def test_no_word_of_the_former_dialect_is_left() -> None:
    lines = [
        f"{path.relative_to(package.parent).as_posix()}:{number}: {line.strip()}"
        for package in PACKAGES
        for path in sorted(package.rglob("*"))
        if path.suffix in SUFFIXES
        and path.is_file()
        # The bridge contains former object names, which it renames.
        and "bridge" not in path.parts
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if WORDS.search(SYSTEM_ACCOUNT.sub("", line))
    ]
    assert lines == []


def stored_names(path: Path) -> set[str]:
    """The names of the variables, arguments, functions and classes of a module."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case _:
                pass
    return names


def test_no_name_is_a_participle_or_a_word_of_the_former_dialect() -> None:
    wrong = {
        path.name: names
        for folder in (*PACKAGES, TOOLS)
        for path in sorted(folder.rglob("*.py"))
        if (names := stored_names(path) & FORMER_NAMES)
    }

    assert wrong == {}
