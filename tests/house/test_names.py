"""A name is defined once: no two modules define a class, a type alias or a function of the same name."""

import ast
import re
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
    "Event": "the client's view of an event, which has other fields than the hub's",
    "RecipientType": "the client checks no values: the hub may have more than the client knows",
}
TYPE_NAME = re.compile(r"_?[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")
"""A name of a type. A constant is in capitals, and may have the same name in two modules."""


def module_level_names(path: Path) -> list[str]:
    """Classes, type aliases and functions of a module, also those under `if` and `try`; overloads count once."""
    names: list[str] = []
    nodes: list[ast.AST] = [*ast.parse(path.read_text("utf-8")).body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not is_type_variable(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [name.id for name in targets if isinstance(name, ast.Name) and TYPE_NAME.fullmatch(name.id)]
        elif isinstance(node, ast.If | ast.Try):
            nodes += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return [*dict.fromkeys(names)]


def is_type_variable(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) in {"TypeVar", "ParamSpec"}


def test_no_class_alias_or_function_name_is_defined_twice() -> None:
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            for name in module_level_names(path):
                modules[name].append(path.relative_to(package.parent).as_posix())
    twice = {name: places for name, places in modules.items() if len(places) > 1}

    assert {name: places for name, places in twice.items() if name not in ALLOWED} == {}
    assert ALLOWED.keys() - twice.keys() == set(), "no longer needed"
