"""`pabal service sql-role add|remove|list`."""

from typing import Annotated

import cyclopts
from cyclopts import Parameter

from pabal.cli.context import cli_actor, run_query, run_transaction
from pabal.cli.examples import examples
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json
from pabal.cli.output import local_time, print_json, print_rows, print_text
from pabal.tokens.sql_roles import SqlRole, add_sql_role, list_sql_roles, remove_sql_role

app = cyclopts.App(
    name="sql-role",
    help="Manage the database roles that publish events and request notifications as a service, from SQL.",
    help_epilogue=examples("service sql-role add shop shop_app", "service sql-role list"),
)

SqlServiceArgument = Annotated[str, Parameter(name="SERVICE", help="Name of the service.")]
RoleArgument = Annotated[str, Parameter(name="ROLE", help="Name of the database role.")]
COLUMNS = ("service", "role", "added", "note")


@app.command(
    name="add",
    help_epilogue=examples("service sql-role add shop shop_app", "service sql-role add billing billing_worker"),
)
def sql_role_add(
    service: SqlServiceArgument,
    role: RoleArgument,
    /,
    *,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Let a database role act as a service. The role must also be a member of pabal_publisher."""
    added = run_transaction(connection, lambda tx: add_sql_role(tx, service, role, cli_actor()))
    if json:
        print_json({"service": service, "role": role, "added": added})
    else:
        print_text(f"{role} acts as {service}" if added else f"{role} already acts as {service}")


@app.command(
    name="remove",
    help_epilogue=examples("service sql-role remove shop shop_app", "service sql-role remove billing billing_worker"),
)
def sql_role_remove(
    service: SqlServiceArgument,
    role: RoleArgument,
    /,
    *,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Stop a database role from acting as a service."""
    run_transaction(connection, lambda tx: remove_sql_role(tx, service, role, cli_actor()))
    if json:
        print_json({"service": service, "role": role, "removed": True})
    else:
        print_text(f"{role} no longer acts as {service}")


@app.command(
    name="list", help_epilogue=examples("service sql-role list", "service sql-role list --service shop --json")
)
def sql_role_list(
    *,
    service: Annotated[str | None, Parameter(help="Only database roles of this service.")] = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """List the database roles that act as services."""
    rows = run_query(connection, lambda tx: list_sql_roles(tx, service))
    print_rows(rows, COLUMNS, sql_role_cells, empty="No database role acts as a service.", json=json)


def sql_role_cells(row: SqlRole) -> tuple[object, ...]:
    return row.service, row.role, local_time(row.created_at), "" if row.role_exists else "no such role"
