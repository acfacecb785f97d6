"""`pabal adopt`."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from pabal.cli.context import cli_actor
from pabal.cli.hub.migrate import load_migration_settings, target_of
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json, UsageError, flag
from pabal.cli.output import print_block, print_hint, print_json, print_table, print_text, progress_bar
from pabal.cli.target import login_from_url
from pabal.db.adopt.adopt import adopt_database, list_statements, read_adoption_plan
from pabal.db.adopt.plan import AdoptionPlan
from pabal.db.migrate import load_migrations


def adopt_command(
    *,
    dry_run: Annotated[
        bool,
        flag("Show the differences, the rows per rule and the SQL, and change nothing."),
    ] = False,
    yes: Annotated[bool, flag("Confirm that the tables become Pabal's.")] = False,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Take over the specification's tables of an existing database.

    Their rows are kept, and everything happens in one transaction.
    Stops if anything conflicts. Exits with 1 if a dry run finds a conflict.
    """
    if yes == dry_run:
        raise UsageError("This replaces the tables. See what changes with --dry-run, then confirm with --yes")
    settings = load_migration_settings(connection)
    with target_of(settings) as target:
        if dry_run:
            plan = asyncio.run(read_adoption_plan(target.direct_url))
        else:
            with progress_bar("adopting", len(load_migrations())) as step:
                plan = asyncio.run(
                    adopt_database(target.direct_url, cli_actor().name, login=target.login, progress=step)
                )
    login = target.login if target.login != login_from_url(target.direct_url) else None
    print_plan(plan, list_statements(plan, login) if dry_run else [], json=json)
    if plan.conflicts:
        sys.exit(1)


def print_plan(plan: AdoptionPlan, statements: Sequence[str], *, json: bool) -> None:
    """Print what was adopted, or with the statements of a dry run, what would be."""
    dry_run = bool(statements)
    rules = [
        {"group": count.rule.group, "rule": count.rule.name, "rows": count.rows, "text": count.rule.text}
        for count in plan.counts
    ]
    if json:
        differences = [asdict(difference) for difference in plan.differences]
        document = {"adopted": not dry_run, "rows": plan.rows, "differences": differences, "rules": rules}
        print_json(document | ({"sql": statements} if dry_run else {}))
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
        print_block("SQL", "\n".join(statements))
    total = sum(plan.rows.values())
    if plan.conflicts:
        conflicts = f"{len(plan.conflicts)} conflicts are" if len(plan.conflicts) > 1 else "1 conflict is"
        print_hint(f"Nothing can be adopted until {conflicts} solved.")
    elif dry_run:
        print_hint(f"Nothing was changed. Adopt {total} rows of {len(plan.tables)} tables with `pabal adopt --yes`.")
    else:
        print_text(f"{total} rows of {len(plan.tables)} tables adopted")
