"""Find template keys that are used, in code or in the database, but defined by no file."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pabal.core.errors import FieldError
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.templates.catalogue import TemplateCatalogue

Q = load_queries(__file__)

BUILTIN_KEY = re.compile(r"system\.[a-z0-9_]+")
"""The keys of the hub's own templates. A string constant of this form counts as a key wherever it is."""
KEY_ARGUMENTS = ("template", "template_key")


def find_unknown_keys_in_code(folder: Path, catalogue: TemplateCatalogue) -> list[FieldError]:
    """Return the places in Python files that name an unknown template."""
    return [
        FieldError(f"{path.relative_to(folder)}:{line}", f"no such template: {key}")
        for path in sorted(folder.rglob("*.py"))
        for line, key in find_template_keys(path.read_text(encoding="utf-8"))
        if key not in catalogue
    ]


def find_template_keys(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and key: passed as an argument, looked up in a catalogue, or in the form of a built-in key."""
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
    """Return the unknown templates of rules and pending notifications."""
    defined_keys = [template.key for template in catalogue.all()]
    return [
        FieldError("notification.templates", f"{key} is in use, but no file defines it")
        for key in await tx.column(Q.list_unknown_keys, keys=defined_keys)
    ]
