"""Only `web/cookies.py` reads cookies: the parser of the standard library takes quadratic time on some versions."""

import ast
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src" / "pabal"
PARSERS = {"cookies", "cookie_parser", "SimpleCookie", "BaseCookie"}


@pytest.mark.parametrize("path", sorted(SOURCES.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCES)))
def test_no_module_parses_cookies_itself(path: Path) -> None:
    assert [*find_cookie_parsers(ast.parse(path.read_text()))] == []


@pytest.mark.parametrize(
    "code",
    [
        "request.cookies.get('a')",
        "import http.cookies",
        "from http import cookies",
        "from http.cookies import SimpleCookie",
        "from starlette.requests import cookie_parser",
    ],
)
def test_the_rule_finds_a_parser(code: str) -> None:
    assert [*find_cookie_parsers(ast.parse(code))]


def find_cookie_parsers(tree: ast.AST) -> list[int]:
    """The lines that use a parser of cookies, or the attribute that calls one."""
    lines: list[int] = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="cookies"):
                lines.append(node.lineno)
            case ast.Import(names=names) if any("cookie" in name.name for name in names):
                lines.append(node.lineno)
            case ast.ImportFrom(module=module, names=names) if (module or "").startswith(("http", "starlette")):
                if PARSERS & {name.name for name in names} or (module or "").endswith("cookies"):
                    lines.append(node.lineno)
            case _:
                pass
    return lines
