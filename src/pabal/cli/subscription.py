"""`pabal subscription add|list|show|pause|resume|remove|rotate-secret|test`."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import cyclopts
from cyclopts import Parameter
from cyclopts.validators import Number

from pabal.cli import lists, screen
from pabal.cli.errand import actor, errand
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.cli.services import moment
from pabal.core.actor import Actor
from pabal.core.errors import Failed, Invalid
from pabal.db.tx import Tx
from pabal.events import subscriptions
from pabal.events.push import Gone
from pabal.events.read import Reader
from pabal.events.subscriptions import Draft, Subscription
from pabal.queue.outcome import Done, Outcome
from pabal.wiring import Hub

app = cyclopts.App(name="subscription", help="Which events the services want, and where they are sent.")

Id = Annotated[UUID, Parameter(name="ID", help="The subscription, as `pabal subscription list` shows it.")]

EVERYBODY = Reader("hub", all=True)
"""An operator sees and changes what is anybody's."""
PAGE = 500
COLUMNS = ("id", "service", "mode", "types", "state", "where")
ONCE = "The secret is shown this once: pushes are verified with it, as Standard Webhooks says."


@app.command
def add(
    event_type: Annotated[list[str], Parameter(name="TYPE", help="Which types; * stands for anything: 'order.*'.")],
    /,
    *,
    service: Annotated[str, Parameter(help="Who wants them.")],
    url: Annotated[str | None, Parameter(help="Where they are posted to. Without it the service pulls.")] = None,
    description: Annotated[str | None, Parameter(help="What it is for, for people.")] = None,
    timeout: Annotated[
        int, Parameter(validator=Number(gte=1, lte=60), help="Seconds the receiver has for its answer, 1 to 60.")
    ] = 15,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Subscribe a service to events; for those that are posted, print the secret they are signed with, this once."""
    if description and not description.isprintable():
        raise Invalid.one("description", "is one line of text")

    async def do(hub: Hub) -> tuple[Subscription, str | None]:
        if url is not None:
            await hub.outside.check(url)
        draft = Draft(service, event_type, url, description, timeout)
        async with hub.transaction() as tx:
            return await subscriptions.add(tx, hub.keys, draft, Actor(actor()))

    added, secret = errand(do, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(asdict(added) | {"secret": secret})
        return
    screen.say(f"subscription  {added.id}")
    hand_out(secret)


@app.command(name="list")
def listing(
    *,
    service: Annotated[str | None, Parameter(help="Only those of one service.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show the subscriptions there are, the oldest first."""

    async def look(hub: Hub) -> list[Subscription]:
        async with hub.autocommit() as tx:
            return await lists.to_the_end(
                lambda after: subscriptions.every(tx, EVERYBODY, of=service, after=after, limit=PAGE)
            )

    every = errand(look, data_dir=data_dir, database_url=database_url)
    lists.whole(every, COLUMNS, cells, empty="No subscriptions.", json=json)


@app.command
def show(row: Id, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show one subscription, and how its receiver does."""

    async def look(hub: Hub) -> Subscription:
        async with hub.autocommit() as tx:
            return await subscriptions.find(tx, row, EVERYBODY)

    print_one(errand(look, data_dir=data_dir, database_url=database_url), json=json)


@app.command
def pause(row: Id, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Send nothing more: what comes waits, what is on its way arrives."""
    by = Actor(actor())
    paused = do_it(lambda tx: subscriptions.pause(tx, row, EVERYBODY, by), data_dir, database_url)
    print_one(paused, json=json)


@app.command
def resume(row: Id, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Send again: what was paused, given up after a 410, or held back because its receiver fails."""
    by = Actor(actor())
    resumed = do_it(lambda tx: subscriptions.resume(tx, row, EVERYBODY, by), data_dir, database_url)
    print_one(resumed, json=json)


@app.command
def remove(row: Id, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Forget a subscription. What is owed to its service already stays, and can be pulled."""
    by = Actor(actor())
    do_it(lambda tx: subscriptions.remove(tx, row, EVERYBODY, by), data_dir, database_url)
    if json:
        screen.as_json({"removed": str(row)})
    else:
        screen.say(f"{row} is gone")


@app.command
def rotate_secret(
    row: Id, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Print a new secret, this once. The one before signs beside it for a day."""

    async def do(hub: Hub) -> tuple[Subscription, str]:
        async with hub.transaction() as tx:
            return await subscriptions.rotate_secret(tx, hub.keys, row, EVERYBODY, Actor(actor()))

    rotated, secret = errand(do, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(asdict(rotated) | {"secret": secret})
        return
    hand_out(secret)
    before = rotated.previous_secret_until
    screen.say(f"The one before signs as well until {moment(before)}." if before else "No other secret signs any more.")


@app.command(name="test")
def try_out(row: Id, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Post a signed event `pabal.test` at once and say what came back; the exit code is 1 if it was not a 2xx."""

    async def do(hub: Hub) -> Outcome | Gone:
        async with hub.autocommit() as tx:
            subscription = await subscriptions.find(tx, row, EVERYBODY)
        return await hub.pusher.test(subscription)

    came_back = errand(do, data_dir=data_dir, database_url=database_url)
    error = None if isinstance(came_back, Done) else came_back.why
    if json:
        screen.as_json({"delivered": error is None, "error": error})
    elif error is None:
        screen.say("delivered")
    if error is not None:
        raise Failed(f"the test was not delivered: {error}")


def do_it(
    verb: Callable[[Tx], Awaitable[Any]],
    data_dir: Path | None,
    database_url: str | None,
) -> Any:
    async def do(hub: Hub) -> Any:
        async with hub.transaction() as tx:
            return await verb(tx)

    return errand(do, data_dir=data_dir, database_url=database_url)


def print_one(subscription: Subscription, *, json: bool) -> None:
    if json:
        screen.as_json(asdict(subscription))
        return
    before = subscription.previous_secret_until
    screen.table(
        ("subscription", str(subscription.id)),
        [
            ("service", subscription.service_name),
            ("mode", subscription.mode),
            *([("program", subscription.program)] if subscription.program else []),
            ("types", " ".join(subscription.event_types)),
            ("description", subscription.description or ""),
            ("state", state(subscription)),
            *(
                [("url", subscription.url), ("timeout", f"{subscription.timeout_seconds} s")]
                if subscription.url
                else []
            ),
            *([("secret before", f"signs until {moment(before)}")] if before else []),
            ("added", moment(subscription.created_at)),
        ],
    )


def hand_out(secret: str | None) -> None:
    if secret is not None:
        screen.say(f"secret        {secret}")
        screen.say(ONCE)


def cells(each: Subscription) -> tuple[object, ...]:
    return each.id, each.service_name, each.mode, " ".join(each.event_types), state(each), whereto(each)


def whereto(subscription: Subscription) -> str:
    """Where its events go: an address, or a program's handlers."""
    return subscription.url or subscription.program


def state(subscription: Subscription) -> str:
    if subscription.disabled_at:
        return f"given up since {moment(subscription.disabled_at)}: {subscription.disabled_reason}"
    if subscription.paused_at:
        return f"paused since {moment(subscription.paused_at)}"
    if subscription.open_until:
        return f"failed {subscription.failures} times, rests until {moment(subscription.open_until)}"
    return "active"
