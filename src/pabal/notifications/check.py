"""Check that templates, code and database name the same: run by the tests, and by whoever changes templates.

What is wrong with a template by itself the catalogue says when it reads it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pabal.core.errors import FieldError
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.catalogue import TemplateCatalogue

Q = load_queries(__file__)

BUILTIN_KEY = re.compile(r"system\.[a-z0-9_]+")
"""Keys of the hub's own templates: a literal that looks like one is meant as one, wherever it stands."""
KEY_ARGUMENTS = ("template", "template_key")


def find_unknown_keys_in_code(folder: Path, catalogue: TemplateCatalogue) -> list[FieldError]:
    """Where code names a template that no file defines."""
    return [
        FieldError(f"{path.relative_to(folder)}:{line}", f"there is no template {key}")
        for path in sorted(folder.rglob("*.py"))
        for line, key in find_template_keys(path.read_text(encoding="utf-8"))
        if key not in catalogue
    ]


def find_template_keys(source: str) -> Iterator[tuple[int, str]]:
    """The template keys a module names: what is given as one, asked of a catalogue, or looks like one of ours."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.keyword(arg=name, value=ast.Constant(value=str(key))) if name in KEY_ARGUMENTS:
                yield node.value.lineno, key
            case ast.Call(func=ast.Attribute(value=catalogue, attr="get"), args=[ast.Constant(value=str(key)), *_]) if (
                ast.unparse(catalogue).rpartition(".")[2].strip("_") in {"catalogue", "templates"}
            ):
                yield node.lineno, key
            case ast.Constant(value=str(key)) if BUILTIN_KEY.fullmatch(key):
                yield node.lineno, key
            case _:
                continue


async def find_unknown_keys_in_database(tx: Tx, catalogue: TemplateCatalogue) -> list[FieldError]:
    """What rules and notices that still wait name, and no file defines."""
    known = [template.key for template in catalogue.all()]
    return [
        FieldError("notification.templates", f"{key} is asked for, and no file defines it")
        for key in await tx.column(Q.list_unknown_keys, keys=known)
    ]
