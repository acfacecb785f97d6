"""`pabal service add|list|show|disable|enable|rotate-secret`."""

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from pabal.cli import screen
from pabal.cli.errand import actor, errand
from pabal.cli.options import DatabaseUrl, DataDir, Json, span
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.db.tx import Tx
from pabal.settings import in_words
from pabal.tokens import permission, services
from pabal.tokens.services import OVERLAP, Secret, Service
from pabal.wiring import Hub

app = cyclopts.App(name="service", help="The services that may get tokens, and their secrets.")

Name = Annotated[str, Parameter(name="NAME", help="The service, as `pabal service list` shows it.")]

ONCE = "The secret is shown this once: the hub keeps only its hash."


@dataclass(frozen=True, slots=True)
class Portrait:
    """A service with what can be shown of its secrets and tokens."""

    service: Service
    secrets: list[Secret]
    families: int


@app.command
def add(
    name: Annotated[str, Parameter(name="NAME", help="What it is called; also its client_id.")],
    /,
    *,
    permission: Annotated[
        list[str],
        Parameter(negative="", consume_multiple=True, help=f"What it may: {', '.join(permission.NAMES)}."),
    ],
    description: Annotated[str | None, Parameter(help="What it is, for people.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Add a service and print its client secret, this once. It may ask for tokens at once."""
    if description and not description.isprintable():
        raise Invalid.one("description", "is one line of text")

    async def do(hub: Hub) -> tuple[Service, str]:
        async with hub.transaction() as tx:
            return await services.add(tx, name, permission, Actor(actor()), description=description)

    service, secret = errand(do, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(credentials(name, secret) | {"permissions": service.permissions})
        return
    hand_out(name, secret)


@app.command(name="list")
def listing(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show the services there are."""

    async def look(hub: Hub) -> list[Service]:
        async with hub.autocommit() as tx:
            return await services.every(tx)

    every = errand(look, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json([view(each) for each in every])
    else:
        screen.table(
            ("name", "state", "permissions", "description"),
            [(each.name, state(each), " ".join(each.permissions), each.description or "") for each in every],
            empty="No services.",
        )


@app.command
def show(name: Name, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show one service: what it may, its live secrets by their ids, its live families of tokens."""

    async def look(hub: Hub) -> Portrait:
        async with hub.autocommit() as tx:
            service = await named(tx, name)
            return Portrait(service, await services.live_secrets(tx, name), await services.live_families(tx, name))

    found = errand(look, data_dir=data_dir, database_url=database_url)
    service = found.service
    expanded = permission.scope(service.permissions)
    if json:
        secrets = [asdict(each) for each in found.secrets]
        screen.as_json(view(service) | {"scope": expanded, "secrets": secrets, "families": found.families})
        return
    screen.table(
        ("service", service.name),
        [
            ("description", service.description or ""),
            ("state", state(service)),
            ("added", moment(service.created_at)),
            ("permissions", " ".join(service.permissions)),
            ("that is", expanded),
            *(("secret", f"{each.id}, made {moment(each.created_at)}, {end(each)}") for each in found.secrets),
            *([] if found.secrets else [("secret", f"none: `pabal service rotate-secret {name}` makes one")]),
            ("live families", found.families),
        ],
    )


@app.command
def disable(name: Name, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Keep a service out: its secrets and tokens are refused at once, everywhere, until it is enabled again."""
    service = switch(name, active=False, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(view(service))
    else:
        screen.say(f"{name} is {state(service)}; its secrets and tokens are refused")


@app.command
def enable(name: Name, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Let a disabled service in again, with the secrets and tokens it has. To end those, revoke them first."""
    service = switch(name, active=True, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(view(service))
    else:
        screen.say(f"{name} is {state(service)}; those of its secrets and tokens that have not ended work again")


@app.command
def rotate_secret(
    name: Name,
    /,
    *,
    overlap: Annotated[
        timedelta,
        Parameter(
            converter=span,
            show_default=in_words,
            help="How long the secret before works on: 90s, 15m, 2h, 7d; 0 ends all before at once.",
        ),
    ] = OVERLAP,
    expires: Annotated[
        timedelta | None, Parameter(converter=span, help="How long the new secret works, e.g. 90d. Default: for good.")
    ] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Print a new client secret, this once. The one before works on for a while, so that nobody is locked out."""
    if expires is not None and expires <= timedelta():
        raise Invalid.one("expires", "is longer than nothing, e.g. 90d")

    async def do(hub: Hub) -> tuple[str, list[Secret]]:
        async with hub.transaction() as tx:
            await named(tx, name)
            try:
                secret = await services.rotate_secret(tx, name, Actor(actor()), overlap=overlap, life=expires)
            except Conflict as error:
                raise Conflict(f"{error} with --overlap 0") from None
            return secret, await services.live_secrets(tx, name)

    secret, live = errand(do, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(credentials(name, secret) | {"secrets": [asdict(each) for each in live]})
        return
    hand_out(name, secret)
    new, *before = live
    if new.expires_at:
        screen.say(f"It {end(new)}.")
    screen.say(f"The one before {end(before[0])}." if before else "No other secret works any more.")


def switch(name: str, *, active: bool, data_dir: Any, database_url: str | None) -> Service:
    async def do(hub: Hub) -> Service:
        async with hub.transaction() as tx:
            await named(tx, name)
            return await services.set_active(tx, name, Actor(actor()), active=active)

    return errand(do, data_dir=data_dir, database_url=database_url)


async def named(tx: Tx, name: str) -> Service:
    try:
        return await services.find(tx, name)
    except NotFound as error:
        raise NotFound(f"{error}: `pabal service list` shows those there are") from None


def credentials(name: str, secret: str) -> dict[str, Any]:
    return {"name": name, "client_id": name, "client_secret": secret}


def hand_out(name: str, secret: str) -> None:
    screen.say(f"client_id      {name}")
    screen.say(f"client_secret  {secret}")
    screen.say(ONCE)


def view(service: Service) -> dict[str, Any]:
    return {
        "name": service.name,
        "description": service.description,
        "permissions": service.permissions,
        "active": service.is_active,
        "disabled_at": service.disabled_at,
        "created_at": service.created_at,
    }


def state(service: Service) -> str:
    return f"disabled since {moment(service.disabled_at)}" if service.disabled_at else "active"


def end(secret: Secret) -> str:
    return f"works until {moment(secret.expires_at)}" if secret.expires_at else "works for good"


def moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S %Z}"
