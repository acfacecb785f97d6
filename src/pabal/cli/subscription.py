"""`pabal subscription add|list|show|pause|resume|remove|rotate-secret|test`."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, assert_never
from uuid import UUID

import cyclopts
from cyclopts import Parameter
from cyclopts.validators import Number

from pabal.cli.context import cli_actor, with_hub
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.cli.output import print_json, print_rows, print_table, print_text, read_all_pages
from pabal.cli.services import format_timestamp
from pabal.core.actor import Actor
from pabal.core.errors import Invalid, SetupError
from pabal.db.tx import Tx
from pabal.events.events import EventAccess
from pabal.events.push import PushResult
from pabal.events.subscriptions import (
    Subscription,
    SubscriptionDraft,
    add_subscription,
    find_subscription,
    list_subscriptions,
    pause_subscription,
    remove_subscription,
    resume_subscription,
    rotate_subscription_secret,
)
from pabal.hub import Hub
from pabal.queue.outcome import Dead, Done, Retry

app = cyclopts.App(name="subscription", help="Which events the services want, and where they are sent.")

SubscriptionArgument = Annotated[
    UUID, Parameter(name="ID", help="The subscription, as `pabal subscription list` shows it.")
]

OPERATOR = EventAccess("hub", all_services=True)
"""An operator sees and changes what is anybody's."""
PAGE_SIZE = 500
COLUMNS = ("id", "service", "mode", "types", "state", "where")
SECRET_SHOWN_ONCE = "The secret is shown this once: pushes are verified with it, as Standard Webhooks says."  # noqa: S105


@app.command(name="add")
def subscription_add(
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
        raise Invalid.of_field("description", "is one line of text")

    async def do(hub: Hub) -> tuple[Subscription, str | None]:
        if url is not None:
            await hub.http_client.check_url(url)
        draft = SubscriptionDraft(service, event_type, url, description, timeout)
        async with hub.transaction() as tx:
            return await add_subscription(tx, hub.key_ring, draft, Actor(cli_actor()))

    added, secret = with_hub(do, data_dir=data_dir, database_url=database_url)
    if json:
        print_json(asdict(added) | {"secret": secret})
        return
    print_text(f"subscription  {added.id}")
    print_signing_secret(secret)


@app.command(name="list")
def subscription_list(
    *,
    service: Annotated[str | None, Parameter(help="Only those of one service.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show the subscriptions there are, the oldest first."""

    async def look(hub: Hub) -> list[Subscription]:
        async with hub.autocommit() as tx:
            return await read_all_pages(
                lambda after: list_subscriptions(tx, OPERATOR, service=service, after=after, limit=PAGE_SIZE)
            )

    every = with_hub(look, data_dir=data_dir, database_url=database_url)
    print_rows(every, COLUMNS, subscription_cells, empty="No subscriptions.", json=json)


@app.command(name="show")
def subscription_show(
    subscription_id: SubscriptionArgument,
    /,
    *,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show one subscription, and how its receiver does."""

    async def look(hub: Hub) -> Subscription:
        async with hub.autocommit() as tx:
            return await find_subscription(tx, subscription_id, OPERATOR)

    print_subscription(with_hub(look, data_dir=data_dir, database_url=database_url), json=json)


@app.command(name="pause")
def subscription_pause(
    subscription_id: SubscriptionArgument,
    /,
    *,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Send nothing more: what comes waits, what is on its way arrives."""
    by = Actor(cli_actor())
    paused = change_subscription_row(
        lambda tx: pause_subscription(tx, subscription_id, OPERATOR, by), data_dir, database_url
    )
    print_subscription(paused, json=json)


@app.command(name="resume")
def subscription_resume(
    subscription_id: SubscriptionArgument,
    /,
    *,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Send again: what was paused, given up after a 410, or held back because its receiver fails."""
    by = Actor(cli_actor())
    resumed = change_subscription_row(
        lambda tx: resume_subscription(tx, subscription_id, OPERATOR, by), data_dir, database_url
    )
    print_subscription(resumed, json=json)


@app.command(name="remove")
def subscription_remove(
    subscription_id: SubscriptionArgument,
    /,
    *,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Forget a subscription. What is owed to its service already stays, and can be pulled."""
    by = Actor(cli_actor())
    change_subscription_row(lambda tx: remove_subscription(tx, subscription_id, OPERATOR, by), data_dir, database_url)
    if json:
        print_json({"removed": str(subscription_id)})
    else:
        print_text(f"{subscription_id} is gone")


@app.command(name="rotate-secret")
def subscription_rotate_secret(
    subscription_id: SubscriptionArgument,
    /,
    *,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Print a new secret, this once. The one before signs beside it for a day."""

    async def do(hub: Hub) -> tuple[Subscription, str]:
        async with hub.transaction() as tx:
            return await rotate_subscription_secret(tx, hub.key_ring, subscription_id, OPERATOR, Actor(cli_actor()))

    rotated, secret = with_hub(do, data_dir=data_dir, database_url=database_url)
    if json:
        print_json(asdict(rotated) | {"secret": secret})
        return
    print_signing_secret(secret)
    before = rotated.previous_secret_until
    print_text(
        f"The one before signs as well until {format_timestamp(before)}."
        if before
        else "No other secret signs any more."
    )


@app.command(name="test")
def subscription_test(
    subscription_id: SubscriptionArgument,
    /,
    *,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Post a signed event `pabal.test` at once and say what came back; the exit code is 1 if it was not a 2xx."""

    async def do(hub: Hub) -> PushResult:
        async with hub.autocommit() as tx:
            subscription = await find_subscription(tx, subscription_id, OPERATOR)
        return await hub.pusher.send_test(subscription)

    came_back = with_hub(do, data_dir=data_dir, database_url=database_url)
    match came_back:
        case Done():
            error = None
        case Retry() | Dead():
            error = came_back.error
        case _:
            assert_never(came_back)
    if json:
        print_json({"delivered": error is None, "error": error})
    elif error is None:
        print_text("delivered")
    if error is not None:
        raise SetupError(f"the test was not delivered: {error}")


def change_subscription_row(
    action: Callable[[Tx], Awaitable[Any]],
    data_dir: Path | None,
    database_url: str | None,
) -> Any:
    async def do(hub: Hub) -> Any:
        async with hub.transaction() as tx:
            return await action(tx)

    return with_hub(do, data_dir=data_dir, database_url=database_url)


def print_subscription(subscription: Subscription, *, json: bool) -> None:
    if json:
        print_json(asdict(subscription))
        return
    before = subscription.previous_secret_until
    print_table(
        ("subscription", str(subscription.id)),
        [
            ("service", subscription.service_name),
            ("mode", subscription.mode),
            *([("program", subscription.program)] if subscription.program else []),
            ("types", " ".join(subscription.event_types)),
            ("description", subscription.description or ""),
            ("state", subscription_state(subscription)),
            *(
                [("url", subscription.url), ("timeout", f"{subscription.timeout_seconds} s")]
                if subscription.url
                else []
            ),
            *([("secret before", f"signs until {format_timestamp(before)}")] if before else []),
            ("added", format_timestamp(subscription.created_at)),
        ],
    )


def print_signing_secret(secret: str | None) -> None:
    if secret is not None:
        print_text(f"secret        {secret}")
        print_text(SECRET_SHOWN_ONCE)


def subscription_cells(subscription: Subscription) -> tuple[object, ...]:
    return (
        subscription.id,
        subscription.service_name,
        subscription.mode,
        " ".join(subscription.event_types),
        subscription_state(subscription),
        subscription_destination(subscription),
    )


def subscription_destination(subscription: Subscription) -> str:
    """Where its events go: an address, or a program's handlers."""
    return subscription.url or subscription.program


def subscription_state(subscription: Subscription) -> str:
    if subscription.disabled_at:
        return f"given up since {format_timestamp(subscription.disabled_at)}: {subscription.disabled_reason}"
    if subscription.paused_at:
        return f"paused since {format_timestamp(subscription.paused_at)}"
    if subscription.open_until:
        return f"failed {subscription.failures} times, rests until {format_timestamp(subscription.open_until)}"
    return "active"
