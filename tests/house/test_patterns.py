r"""Regular expressions match to the end of the text: a pattern that ends in `$` accepts a trailing newline in Python.

Patterns are used with `fullmatch`, or end in `\Z`. Patterns of the API are part of the OpenAPI document, whose readers
know no `\Z`: they end in `$(?!\n)`. Patterns of settings run in Rust, where `\z` is the end.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pabal.api import routes
from pabal.notifications.templates import catalogue

SRC = Path(__file__).parents[2] / "src" / "pabal"
PATTERN_FUNCTIONS = frozenset({"compile", "search", "findall", "finditer", "sub", "split", "fullmatch"})
BARE_END = re.compile(r"(?<!\\)(?:\\\\)*\$\Z")


def literal_patterns(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every literal that is a pattern: an argument of `re`, or `pattern=` of a field. Multi-line patterns end lines."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))) if "PATTERN" in name:
                yield node.lineno, text
            case _:
                pass
        if not isinstance(node, ast.Call):
            continue
        arguments = [keyword.value for keyword in node.keywords if keyword.arg == "pattern"]
        match node.func:
            case ast.Attribute(value=ast.Name("re"), attr=name) if name in PATTERN_FUNCTIONS:
                if not any(ast.unparse(argument).endswith("MULTILINE") for argument in node.args[1:]):
                    arguments += node.args[:1]
            case _:
                pass
        for argument in arguments:
            match argument:
                case ast.Constant(value=str(text)):
                    yield argument.lineno, text
                case ast.Constant(value=bytes(data)):
                    yield argument.lineno, data.decode("latin-1")
                case ast.JoinedStr(values=[*_, ast.Constant(value=str(text))]):
                    yield argument.lineno, text
                case _:
                    pass


def source_trees() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(SRC.rglob("*.py")):
        yield str(path.relative_to(SRC)), ast.parse(path.read_text())


def test_no_pattern_ends_in_a_bare_dollar() -> None:
    patterns = [(path, line, text) for path, tree in source_trees() for line, text in literal_patterns(tree)]

    assert len(patterns) > 50
    assert [pattern for pattern in patterns if BARE_END.search(pattern[2])] == []


def test_no_pattern_is_matched_only_at_its_start() -> None:
    calls = [
        f"{path}:{node.lineno}"
        for path, tree in source_trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "match"
    ]

    assert calls == []


def api_patterns() -> set[str]:
    """The patterns of every request of the route table, and of template files."""
    types = [kind for route in routes.ROUTES for kind in (route.body_type, route.query_type, route.form_type) if kind]
    types += [kind for route in routes.ROUTES for kind in route.path_types.values()]
    schemas, components = msgspec.json.schema_components([*dict.fromkeys(types), catalogue.TemplateKey])
    return {*find_patterns([schemas, components])}


def find_patterns(node: object) -> Iterator[str]:
    match node:
        case {"pattern": str(pattern), **rest}:
            yield pattern
            yield from find_patterns([*rest.values()])
        case dict():
            yield from find_patterns([*node.values()])
        case list() | tuple():
            for item in node:
                yield from find_patterns(item)
        case _:
            return


DOCUMENTED_ONLY = {"^[0-9a-f]{64}$"}
"""Patterns that only OpenAPI mentions; the handler compares a hash."""


def test_every_pattern_of_the_api_is_anchored() -> None:
    patterns = api_patterns() - DOCUMENTED_ONLY

    assert len(patterns) > 5
    assert [text for text in patterns if not (text.startswith("^") and text.endswith((r"$(?!\n)", r"\Z")))] == []


TEXTS = (
    "order.paid",
    "a",
    "shop",
    "ko",
    "ko-KR",
    "80351110224678912",
    "user.id",
    "order.*",
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)


@pytest.mark.parametrize("pattern", sorted(api_patterns() - DOCUMENTED_ONLY))
def test_a_trailing_newline_never_matches(pattern: str) -> None:
    matching = [text for text in TEXTS if re.search(pattern, text)]

    assert matching
    assert [text for text in matching if re.search(pattern, text + "\n") or re.search(pattern, "\n" + text)] == []
