"""Exceptions are created where they are raised.

An instance that is shared at module level and raised again and again keeps the traceback of each raise, and with it the
frames and request bodies of every caller.
"""

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

import pabal
import pabal_client

SOURCES = [Path(str(package.__file__)).parent for package in (pabal, pabal_client)]
BUILTIN_EXCEPTIONS = {
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
}


def parse_source() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for source in SOURCES for path in sorted(source.rglob("*.py"))}


def exception_names(modules: dict[Path, ast.Module]) -> set[str]:
    """The names of the built-in exceptions and of every class in the source that derives from one of them."""
    bases = {
        node.name: {last_name(base) for base in node.bases}
        for module in modules.values()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
    }
    names = {*BUILTIN_EXCEPTIONS}
    while derived := {name for name, parents in bases.items() if parents & names} - names:
        names |= derived
    return names


def last_name(expression: ast.expr) -> str:
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")


def shared_instances(module: ast.Module, exceptions: set[str]) -> Iterator[ast.Call]:
    """Calls of an exception class outside of any function: in a module or in a class body."""
    pending: list[ast.AST] = [module]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            pending += [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
            continue
        if isinstance(node, (ast.Lambda, ast.Raise)):
            continue
        if isinstance(node, ast.Call) and last_name(node.func) in exceptions:
            yield node
        pending += ast.iter_child_nodes(node)


def test_no_exception_instance_is_shared_by_a_module() -> None:
    modules = parse_source()
    exceptions = exception_names(modules)

    shared = [
        f"{path}:{call.lineno} {ast.unparse(call)}"
        for path, module in modules.items()
        for call in shared_instances(module, exceptions)
    ]

    assert {"RetryableError", "RateLimited", "ValueError"} <= exceptions
    assert shared == []
