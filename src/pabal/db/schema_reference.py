"""The functions and triggers of the schema, each with the migration that has its current body: `docs/database.md`."""

import re
from collections.abc import Iterator
from pathlib import Path

MIGRATIONS = Path(__file__).parent / "migrations"
FLAGS = re.IGNORECASE | re.MULTILINE | re.DOTALL
FUNCTION = re.compile(r"^\s*(create(?: or replace)?|drop) function (?:if exists )?([a-z_.0-9]+)\s*\(", FLAGS)
TRIGGER = re.compile(
    r"^\s*create (?:or replace )?(?:constraint )?trigger ([a-z_0-9]+)\s+((?:before|after)\s+.+?)\s+on ([a-z_.0-9]+)\b"
    r".*?execute function ([a-z_.0-9]+)",
    FLAGS,
)
DROPPED_TRIGGER = re.compile(r"^\s*drop trigger (?:if exists )?([a-z_0-9]+) on ([a-z_.0-9]+)", FLAGS)

INTRODUCTION = """# Functions and triggers

A migration never changes once it is applied, so a function that was replaced has several bodies. This page names the
migration with the current one, in `src/pabal/db/migrations/`. Queries of the hub are not here: they lie beside the
module that runs them, in a `.sql` file with the same name.
"""

Triggers = dict[tuple[str, str], tuple[str, str]]
"""For each table and trigger, when it runs and the function."""


def database_markdown() -> str:
    functions, triggers = read_definitions()
    return "\n".join([INTRODUCTION, *trigger_table(triggers, functions), "", *function_table(triggers, functions), ""])


def read_definitions() -> tuple[dict[str, str], Triggers]:
    """The migration of each function, and the triggers."""
    functions: dict[str, str] = {}
    triggers: Triggers = {}
    for path in sorted(MIGRATIONS.glob("*.sql")):
        text = path.read_text(encoding="utf-8")
        for action, name in FUNCTION.findall(text):
            if action.lower() == "drop":
                functions.pop(with_schema(name), None)
            else:
                functions[with_schema(name)] = path.name
        for name, table in DROPPED_TRIGGER.findall(text):
            triggers.pop((with_schema(table), name), None)
        for name, events, table, function in TRIGGER.findall(text):
            when = re.sub(r"\s+", " ", events.lower())
            triggers[with_schema(table), name] = when, with_schema(function)
    return functions, triggers


def with_schema(name: str) -> str:
    return name if "." in name else f"public.{name}"


def trigger_table(triggers: Triggers, functions: dict[str, str]) -> Iterator[str]:
    yield "## Triggers\n"
    yield "| table | trigger | runs | function | current body |"
    yield "|---|---|---|---|---|"
    for (table, name), (events, function) in sorted(triggers.items()):
        yield f"| `{table}` | `{name}` | {events} | `{function}` | `{functions[function]}` |"


def function_table(triggers: Triggers, functions: dict[str, str]) -> Iterator[str]:
    yield "## Other functions\n"
    yield "| function | current body |"
    yield "|---|---|"
    run_by_triggers = {function for _, function in triggers.values()}
    for name, path in sorted(functions.items()):
        if name not in run_by_triggers:
            yield f"| `{name}` | `{path}` |"
