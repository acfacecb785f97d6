"""A name is defined once: no two modules define a class or a function of the same name."""

import ast
from collections import defaultdict
from pathlib import Path

import pabal
import pabal_client

PACKAGES = [Path(str(package.__file__)).parent for package in (pabal, pabal_client)]
CLIENT_OUTCOME = "the client's own outcomes: they are part of its API and independent of the hub's code"
ALLOWED = {
    "Retry": CLIENT_OUTCOME,
    "Dead": CLIENT_OUTCOME,
    "Snooze": CLIENT_OUTCOME,
    "Event": CLIENT_OUTCOME,
}


def module_level_names(path: Path) -> list[str]:
    """Classes and functions of a module, also those under `if` and `try`; overloads count once."""
    names: list[str] = []
    nodes: list[ast.AST] = [*ast.parse(path.read_text("utf-8")).body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.If | ast.Try):
            nodes += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return [*dict.fromkeys(names)]


def test_no_class_or_function_name_is_defined_twice() -> None:
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            for name in module_level_names(path):
                modules[name].append(path.relative_to(package.parent).as_posix())
    twice = {name: places for name, places in modules.items() if len(places) > 1}

    assert {name: places for name, places in twice.items() if name not in ALLOWED} == {}
    assert ALLOWED.keys() - twice.keys() == set(), "no longer needed"
