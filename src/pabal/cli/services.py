"""`pabal service add|list|show|disable|enable|rotate-secret`."""

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from pabal.cli.context import cli_actor, with_hub
from pabal.cli.options import DatabaseUrl, DataDir, Json, parse_duration_option
from pabal.cli.output import print_json, print_table, print_text
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.settings import format_duration
from pabal.tokens import permission
from pabal.tokens.permission import format_scope
from pabal.tokens.services import (
    SECRET_OVERLAP,
    Service,
    ServiceSecret,
    add_service,
    count_live_families,
    find_service,
    list_live_secrets,
    list_services,
    rotate_service_secret,
    set_service_active,
)

app = cyclopts.App(name="service", help="The services that may get tokens, and their secrets.")

ServiceArgument = Annotated[str, Parameter(name="NAME", help="The service, as `pabal service list` shows it.")]

SECRET_SHOWN_ONCE = "The secret is shown this once: the hub keeps only its hash."  # noqa: S105


@dataclass(frozen=True, slots=True)
class ServiceDetails:
    """A service with what can be shown of its secrets and tokens."""

    service: Service
    secrets: list[ServiceSecret]
    families: int


@app.command(name="add")
def service_add(
    name: Annotated[str, Parameter(name="NAME", help="What it is called; also its client_id.")],
    /,
    *,
    permission: Annotated[
        list[str],
        Parameter(negative="", consume_multiple=True, help=f"What it may: {', '.join(permission.PERMISSION_NAMES)}."),
    ],
    description: Annotated[str | None, Parameter(help="What it is, for people.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Add a service and print its client secret, this once. It may ask for tokens at once."""
    if description and not description.isprintable():
        raise Invalid.of_field("description", "is one line of text")

    async def do(hub: Hub) -> tuple[Service, str]:
        async with hub.transaction() as tx:
            return await add_service(tx, name, permission, Actor(cli_actor()), description=description)

    service, secret = with_hub(do, data_dir=data_dir, database_url=database_url)
    if json:
        print_json(credentials_json(name, secret) | {"permissions": service.permissions})
        return
    print_credentials(name, secret)


@app.command(name="list")
def service_list(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show the services there are."""

    async def look(hub: Hub) -> list[Service]:
        async with hub.autocommit() as tx:
            return await list_services(tx)

    every = with_hub(look, data_dir=data_dir, database_url=database_url)
    if json:
        print_json([service_json(each) for each in every])
    else:
        print_table(
            ("name", "state", "permissions", "description"),
            [(each.name, service_state(each), " ".join(each.permissions), each.description or "") for each in every],
            empty="No services.",
        )


@app.command(name="show")
def service_show(
    name: ServiceArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Show one service: what it may, its live secrets by their ids, its live families of tokens."""

    async def look(hub: Hub) -> ServiceDetails:
        async with hub.autocommit() as tx:
            service = await require_service(tx, name)
            return ServiceDetails(service, await list_live_secrets(tx, name), await count_live_families(tx, name))

    found = with_hub(look, data_dir=data_dir, database_url=database_url)
    service = found.service
    expanded = format_scope(service.permissions)
    if json:
        secrets = [asdict(each) for each in found.secrets]
        print_json(service_json(service) | {"scope": expanded, "secrets": secrets, "families": found.families})
        return
    print_table(
        ("service", service.name),
        [
            ("description", service.description or ""),
            ("state", service_state(service)),
            ("added", format_timestamp(service.created_at)),
            ("permissions", " ".join(service.permissions)),
            ("that is", expanded),
            *(
                ("secret", f"{each.id}, made {format_timestamp(each.created_at)}, {secret_end_text(each)}")
                for each in found.secrets
            ),
            *([] if found.secrets else [("secret", f"none: `pabal service rotate-secret {name}` makes one")]),
            ("live families", found.families),
        ],
    )


@app.command(name="disable")
def service_disable(
    name: ServiceArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Keep a service out: its secrets and tokens are refused at once, everywhere, until it is enabled again."""
    service = switch_service(name, active=False, data_dir=data_dir, database_url=database_url)
    if json:
        print_json(service_json(service))
    else:
        print_text(f"{name} is {service_state(service)}; its secrets and tokens are refused")


@app.command(name="enable")
def service_enable(
    name: ServiceArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Let a disabled service in again, with the secrets and tokens it has. To end those, revoke them first."""
    service = switch_service(name, active=True, data_dir=data_dir, database_url=database_url)
    if json:
        print_json(service_json(service))
    else:
        print_text(
            f"{name} is {service_state(service)}; those of its secrets and tokens that have not ended work again"
        )


@app.command(name="rotate-secret")
def service_rotate_secret(
    name: ServiceArgument,
    /,
    *,
    overlap: Annotated[
        timedelta,
        Parameter(
            converter=parse_duration_option,
            show_default=format_duration,
            help="How long the secret before works on: 90s, 15m, 2h, 7d; 0 ends all before at once.",
        ),
    ] = SECRET_OVERLAP,
    expires: Annotated[
        timedelta | None,
        Parameter(converter=parse_duration_option, help="How long the new secret works, e.g. 90d. Default: for good."),
    ] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Print a new client secret, this once. The one before works on for a while, so that nobody is locked out."""
    if expires is not None and expires <= timedelta():
        raise Invalid.of_field("expires", "is longer than nothing, e.g. 90d")

    async def do(hub: Hub) -> tuple[str, list[ServiceSecret]]:
        async with hub.transaction() as tx:
            await require_service(tx, name)
            try:
                secret = await rotate_service_secret(tx, name, Actor(cli_actor()), overlap=overlap, lifetime=expires)
            except Conflict as error:
                raise Conflict(f"{error} with --overlap 0") from None
            return secret, await list_live_secrets(tx, name)

    secret, live = with_hub(do, data_dir=data_dir, database_url=database_url)
    if json:
        print_json(credentials_json(name, secret) | {"secrets": [asdict(each) for each in live]})
        return
    print_credentials(name, secret)
    new, *before = live
    if new.expires_at:
        print_text(f"It {secret_end_text(new)}.")
    print_text(f"The one before {secret_end_text(before[0])}." if before else "No other secret works any more.")


def switch_service(name: str, *, active: bool, data_dir: Any, database_url: str | None) -> Service:
    async def do(hub: Hub) -> Service:
        async with hub.transaction() as tx:
            await require_service(tx, name)
            return await set_service_active(tx, name, Actor(cli_actor()), active=active)

    return with_hub(do, data_dir=data_dir, database_url=database_url)


async def require_service(tx: Tx, name: str) -> Service:
    try:
        return await find_service(tx, name)
    except NotFound as error:
        raise NotFound(f"{error}: `pabal service list` shows those there are") from None


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
        "active": service.is_active,
        "disabled_at": service.disabled_at,
        "created_at": service.created_at,
    }


def service_state(service: Service) -> str:
    return f"disabled since {format_timestamp(service.disabled_at)}" if service.disabled_at else "active"


def secret_end_text(secret: ServiceSecret) -> str:
    return f"works until {format_timestamp(secret.expires_at)}" if secret.expires_at else "works for good"


def format_timestamp(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S %Z}"
