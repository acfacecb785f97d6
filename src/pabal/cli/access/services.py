"""`pabal service add|list|show|set|disable|enable|remove|rotate-secret`, and `pabal service sql-role`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from pabal.cli.access.sql_roles import app as sql_role_app
from pabal.cli.context import cli_actor, run_query, run_transaction
from pabal.cli.examples import examples
from pabal.cli.options import (
    DEFAULT_CONNECTION,
    Connection,
    Json,
    UsageError,
    nothing_to_change,
    parse_duration_option,
    repeatable,
)
from pabal.cli.output import local_time, print_json, print_json_items, print_table, print_text, state_since
from pabal.core.duration import format_duration
from pabal.core.errors import Conflict, NotFound
from pabal.db.tx import Tx
from pabal.tokens.permission import PERMISSION_NAMES, format_scope
from pabal.tokens.services import (
    SECRET_OVERLAP,
    Service,
    ServicePatch,
    ServiceSecret,
    add_service,
    count_live_families,
    find_service,
    list_live_secrets,
    list_services,
    remove_service,
    rotate_service_secret,
    set_service_active,
    update_service,
)
from pabal.tokens.sql_roles import list_sql_roles

app = cyclopts.App(
    name="service",
    help="Manage services and their client secrets.\n\nA service is a client that may get access tokens.",
    help_epilogue=examples("service add --permission write shop", "service list"),
)

app.command(sql_role_app)

ServiceArgument = Annotated[str, Parameter(name="NAME", help="Name of the service.")]

PermissionOption = repeatable(f"A permission: {', '.join(PERMISSION_NAMES)}.")
MayPublishOption = repeatable("An event type it may publish, such as 'order.*'. Default: all but the hub's.")
MaySubscribeOption = repeatable("An event type it may receive, such as 'billing.*'. Default: all but the hub's.")

SECRET_SHOWN_ONCE = "The secret is shown only once; the hub stores its hash."  # noqa: S105


@dataclass(frozen=True, slots=True)
class ServiceDetails:
    """A service with its valid secrets, the number of its valid token families and its database roles."""

    service: Service
    secrets: list[ServiceSecret]
    families: int
    sql_roles: list[str]


@app.command(
    name="add",
    help_epilogue=examples(
        "service add --permission write shop",
        "service add billing --permission write --may-publish 'billing.*' --may-subscribe 'order.*'",
    ),
)
def service_add(
    name: Annotated[str, Parameter(name="NAME", help="Name of the service. It is also its client_id.")],
    /,
    *,
    permission: Annotated[list[str], PermissionOption],
    may_publish: Annotated[list[str] | None, MayPublishOption] = None,
    may_subscribe: Annotated[list[str] | None, MaySubscribeOption] = None,
    description: Annotated[str | None, Parameter(help="Description, one line.")] = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Add a service and print its client secret, which is shown only once."""

    async def add(tx: Tx) -> tuple[Service, str]:
        return await add_service(
            tx,
            name,
            permission,
            cli_actor(),
            description=description,
            may_publish=may_publish or (),
            may_subscribe=may_subscribe or (),
        )

    service, secret = run_transaction(connection, add)
    if json:
        print_json(credentials_json(name, secret) | {"permissions": service.permissions})
        return
    print_credentials(name, secret)


@app.command(name="list", help_epilogue=examples("service list", "service list --json"))
def service_list(*, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """List services."""
    services = run_query(connection, list_services)
    if json:
        print_json_items(map(service_json, services))
        return
    print_table(
        ("name", "state", "permissions", "description"),
        [
            (service.name, service_state(service), " ".join(service.permissions), service.description or "")
            for service in services
        ],
        empty="No services.",
    )


@app.command(name="show", help_epilogue=examples("service show shop", "service show shop --json"))
def service_show(name: ServiceArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """Show a service: its permissions, the ids of its valid secrets, the number of its token families."""

    async def read(tx: Tx) -> ServiceDetails:
        service = await require_service(tx, name)
        sql_roles = [row.role for row in await list_sql_roles(tx, name)]
        return ServiceDetails(
            service, await list_live_secrets(tx, name), await count_live_families(tx, name), sql_roles
        )

    details = run_query(connection, read)
    service, scope = details.service, format_scope(details.service.permissions)
    if json:
        secrets = [*map(asdict, details.secrets)]
        print_json(
            service_json(service)
            | {"scope": scope, "secrets": secrets, "families": details.families, "sql_roles": details.sql_roles}
        )
        return
    print_table(
        ("service", service.name),
        [
            ("description", service.description or ""),
            ("state", service_state(service)),
            ("added", local_time(service.created_at)),
            ("permissions", " ".join(service.permissions)),
            ("scope", scope),
            ("may publish", event_patterns_text(service.may_publish)),
            ("may subscribe", event_patterns_text(service.may_subscribe)),
            ("database roles", " ".join(details.sql_roles) or "none"),
            *(
                ("secret", f"{secret.id}, created {local_time(secret.created_at)}, {secret_expiry_text(secret)}")
                for secret in details.secrets
            ),
            *([] if details.secrets else [("secret", f"none: create one with `pabal service rotate-secret {name}`")]),
            ("token families", details.families),
        ],
    )


@app.command(
    name="set",
    help_epilogue=examples(
        "service set shop --permission write --permission people:token",
        "service set shop --may-publish 'order.*' --may-publish 'refund.*'",
    ),
)
def service_set(
    name: ServiceArgument,
    /,
    *,
    permission: Annotated[list[str] | None, PermissionOption] = None,
    may_publish: Annotated[list[str] | None, MayPublishOption] = None,
    may_subscribe: Annotated[list[str] | None, MaySubscribeOption] = None,
    description: Annotated[str | None, Parameter(help="Description, one line. An empty text removes it.")] = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Change a service and what it may do. An option replaces all its earlier values; the others stay.

    The change applies at once to the tokens and subscriptions that the service already has. A new permission is in its
    next token.
    """
    patch = ServicePatch(permission, may_publish, may_subscribe, description)
    if patch == ServicePatch():
        raise nothing_to_change("--permission", "--may-publish", "--may-subscribe", "--description")

    async def change(tx: Tx) -> Service:
        await require_service(tx, name)
        return await update_service(tx, name, patch, cli_actor())

    service = run_transaction(connection, change)
    if json:
        print_json(service_json(service))
        return
    print_table(
        ("service", service.name),
        [
            ("description", service.description or ""),
            ("permissions", " ".join(service.permissions)),
            ("may publish", event_patterns_text(service.may_publish)),
            ("may subscribe", event_patterns_text(service.may_subscribe)),
        ],
    )


@app.command(name="disable", help_epilogue=examples("service disable shop", "service disable shop --json"))
def service_disable(
    name: ServiceArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Disable a service. Its secrets and tokens are refused at once."""
    switch_service(connection, name, active=False, consequence="its secrets and tokens are refused", json=json)


@app.command(name="enable", help_epilogue=examples("service enable shop", "service enable shop --json"))
def service_enable(
    name: ServiceArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Enable a disabled service. Its unexpired secrets and tokens work again; revoke them first to avoid that."""
    switch_service(connection, name, active=True, consequence="its unexpired secrets and tokens work again", json=json)


@app.command(name="remove", help_epilogue=examples("service remove shop", "service remove shop --json"))
def service_remove(
    name: ServiceArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Remove a service that has no events, notifications, subscriptions, database roles, links and tokens."""

    async def remove(tx: Tx) -> None:
        await require_service(tx, name)
        await remove_service(tx, name, cli_actor())

    run_transaction(connection, remove)
    if json:
        print_json({"removed": name})
    else:
        print_text(f"{name} removed")


@app.command(
    name="rotate-secret", help_epilogue=examples("service rotate-secret shop", "service rotate-secret shop --overlap 0")
)
def service_rotate_secret(
    name: ServiceArgument,
    /,
    *,
    overlap: Annotated[
        timedelta,
        Parameter(
            metavar="DURATION",
            converter=parse_duration_option,
            show_default=format_duration,
            help="How long the old secret keeps working: 90s, 15m, 2h, 7d. 0 revokes all old secrets at once.",
        ),
    ] = SECRET_OVERLAP,
    expires: Annotated[
        timedelta | None,
        Parameter(
            metavar="DURATION",
            converter=parse_duration_option,
            help="Lifetime of the new secret, such as 90d. Default: unlimited.",
        ),
    ] = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Print a new client secret, which is shown only once. The old one keeps working during the overlap."""
    if expires is not None and expires <= timedelta():
        raise UsageError("--expires must be positive, such as 90d")

    async def rotate(tx: Tx) -> tuple[str, list[ServiceSecret]]:
        await require_service(tx, name)
        try:
            secret = await rotate_service_secret(tx, name, cli_actor(), overlap=overlap, lifetime=expires)
        except Conflict as error:
            raise Conflict(f"{error} with --overlap 0") from None
        return secret, await list_live_secrets(tx, name)

    secret, live_secrets = run_transaction(connection, rotate)
    if json:
        print_json(credentials_json(name, secret) | {"secrets": [*map(asdict, live_secrets)]})
        return
    print_credentials(name, secret)
    new, *old = live_secrets
    if new.expires_at:
        print_text(f"It {secret_expiry_text(new)}.")
    print_text(f"The old secret {secret_expiry_text(old[0])}." if old else "No other secret is valid.")


def switch_service(connection: Connection, name: str, *, active: bool, consequence: str, json: bool) -> None:
    async def switch(tx: Tx) -> Service:
        await require_service(tx, name)
        return await set_service_active(tx, name, cli_actor(), active=active)

    service = run_transaction(connection, switch)
    if json:
        print_json(service_json(service))
    else:
        print_text(f"{name} is {service_state(service)}; {consequence}")


async def require_service(tx: Tx, name: str) -> Service:
    try:
        return await find_service(tx, name)
    except NotFound as error:
        raise NotFound(f"{error}. See `pabal service list`") from None


def credentials_json(name: str, secret: str) -> dict[str, Any]:
    return {"name": name, "client_id": name, "client_secret": secret}


def print_credentials(name: str, secret: str) -> None:
    print_text(f"client_id      {name}")
    print_text(f"client_secret  {secret}")
    print_text(SECRET_SHOWN_ONCE)


def service_json(service: Service) -> dict[str, Any]:
    return {
        "name": service.name,
        "description": service.description,
        "permissions": service.permissions,
        "may_publish": service.may_publish,
        "may_subscribe": service.may_subscribe,
        "active": service.is_active,
        "disabled_at": service.disabled_at,
        "created_at": service.created_at,
    }


def event_patterns_text(patterns: Sequence[str] | None) -> str:
    return "all but the hub's" if patterns is None else " ".join(patterns)


def service_state(service: Service) -> str:
    return state_since("disabled", service.disabled_at)


def secret_expiry_text(secret: ServiceSecret) -> str:
    return f"expires {local_time(secret.expires_at)}" if secret.expires_at else "does not expire"
