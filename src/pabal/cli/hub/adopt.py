"""`pabal adopt`."""

import asyncio
import sys
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from pabal.cli.context import cli_actor
from pabal.cli.hub.migrate import load_migration_settings, target_of
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json
from pabal.cli.output import print_block, print_hint, print_json, print_table, print_text, progress_bar
from pabal.core.errors import RequestError
from pabal.db.adopt.adopt import adopt_database, read_adoption_plan
from pabal.db.adopt.plan import AdoptionPlan
from pabal.db.migrate import load_migrations


def adopt_command(
    *,
    dry_run: Annotated[
        bool, Parameter(help="Show the differences, the rows per rule and the SQL, and change nothing.")
    ] = False,
    yes: Annotated[bool, Parameter(help="Confirm that the tables become Pabal's.")] = False,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Take over tables of the specification's form with their rows, in one transaction.

    Stops if anything conflicts. Exits with 1 if a dry run finds a conflict.
    """
    if yes == dry_run:
        raise RequestError("this replaces the tables: see what changes with --dry-run, then confirm with --yes")
    settings = load_migration_settings(connection)
    with target_of(settings) as target:
        if dry_run:
            plan = asyncio.run(read_adoption_plan(target.direct_url))
        else:
            with progress_bar("adopting", len(load_migrations())) as step:
                plan = asyncio.run(
                    adopt_database(target.direct_url, cli_actor().name, login=target.login, progress=step)
                )
    print_plan(plan, dry_run=dry_run, json=json)
    if plan.conflicts:
        sys.exit(1)


def print_plan(plan: AdoptionPlan, *, dry_run: bool, json: bool) -> None:
    rules = [
        {"group": count.rule.group, "rule": count.rule.name, "rows": count.rows, "text": count.rule.text}
        for count in plan.counts
    ]
    if json:
        differences = [asdict(difference) for difference in plan.differences]
        document = {"adopted": not dry_run, "rows": plan.rows, "differences": differences, "rules": rules}
        print_json(document | ({"sql": list_statements(plan)} if dry_run else {}))
        return
    if dry_run:
        rows = [(difference.kind, difference.object, difference.text) for difference in plan.differences]
        print_table(("kind", "object", "difference"), rows)
    used = [(rule["group"], rule["rule"], rule["rows"], rule["text"]) for rule in rules if rule["rows"]]
    if used:
        print_text("")
        print_table(("tables", "rule", "rows", "what it does"), used)
    if dry_run and not plan.conflicts:
        print_text("")
        print_block("SQL", "\n".join(list_statements(plan)))
    total = sum(plan.rows.values())
    if plan.conflicts:
        conflicts = f"{len(plan.conflicts)} conflicts are" if len(plan.conflicts) > 1 else "1 conflict is"
        print_hint(f"Nothing can be adopted until {conflicts} solved.")
    elif dry_run:
        print_hint(f"Nothing was changed. Adopt {total} rows of {len(plan.tables)} tables with `pabal adopt --yes`.")
    else:
        print_text(f"{total} rows of {len(plan.tables)} tables adopted")


def list_statements(plan: AdoptionPlan) -> list[str]:
    """The statements in the order they run. The migrations are mentioned, not printed."""
    return [
        *(f"{statement};" for statement in plan.move_statements),
        "-- the pending migrations",
        *(f"{statement};" for statement in (*plan.copy_statements, *plan.drop_statements)),
    ]
