"""`pabal subscription add|list|show|set|pause|resume|remove|rotate-secret|test`."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, assert_never
from uuid import UUID

import cyclopts
from cyclopts import Parameter
from cyclopts.validators import Number

from pabal.cli.context import cli_actor, run_query, run_transaction, with_hub
from pabal.cli.examples import examples
from pabal.cli.id_argument import IdArgument, resolve_id
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json, UsageError, nothing_to_change, refuse_arguments
from pabal.cli.output import local_time, print_json, print_rows, print_table, print_text, read_all_pages
from pabal.core.errors import SetupError
from pabal.core.short_id import IdPattern
from pabal.db.tx import Tx
from pabal.events.events import OPERATOR_ACCESS
from pabal.events.id_lookup import match_subscription_ids
from pabal.events.push.pusher import PushResult
from pabal.events.push.retry_schedule import format_retry_schedule, parse_retry_schedule
from pabal.events.subscriptions import (
    OnBlocked,
    Subscription,
    SubscriptionDraft,
    SubscriptionPatch,
    add_subscription,
    find_subscription,
    list_subscriptions,
    pause_subscription,
    remove_subscription,
    resume_subscription,
    rotate_subscription_secret,
    update_subscription,
)
from pabal.queue.outcome import Dead, Done, Retry, Unsent

if TYPE_CHECKING:
    from pabal.hub import Hub

app = cyclopts.App(
    name="subscription",
    help="Manage event subscriptions.\n\nA subscription says which events a service receives, and where.",
    help_epilogue=examples("subscription list --service billing", "subscription add 'order.*' --service billing"),
)

PAGE_SIZE = 500
DEFAULT_SCHEDULE_NAME = "default"
"""The value of --retry-schedule that removes a schedule of its own."""
COLUMNS = ("id", "service", "mode", "types", "state", "destination")
ON_BLOCKED_HELP = (
    "What to do if a failing push blocks its ordering key: keep retrying (hold), or dead-letter it after 10 minutes."
)
SECRET_SHOWN_ONCE = "The secret is shown only once. Verify pushes with it as Standard Webhooks describes."  # noqa: S105


@app.command(
    name="add",
    help_epilogue=examples(
        "subscription add 'order.*' --service billing",
        "subscription add order.paid order.refunded --service billing --url https://billing.example.org/events",
    ),
)
def subscription_add(
    event_types: Annotated[list[str], Parameter(name="TYPE", help="Event types; * matches anything: 'order.*'.")],
    /,
    *,
    service: Annotated[str, Parameter(help="The service that receives them.")],
    url: Annotated[str | None, Parameter(help="Push them to this URL. Without it the service pulls.")] = None,
    description: Annotated[str | None, Parameter(help="Description, one line.")] = None,
    timeout: Annotated[
        int, Parameter(validator=Number(gte=1, lte=60), help="Seconds the receiver has to respond, 1 to 60.")
    ] = 15,
    retry_schedule: Annotated[
        str | None, Parameter(help="Delays before the retries of a push, such as 5s,30s,2m. Default: up to 17 hours.")
    ] = None,
    on_blocked: Annotated[
        OnBlocked,
        Parameter(help=ON_BLOCKED_HELP),
    ] = "dead_letter",
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Subscribe a service to events. For pushes, prints the signing secret, which is shown only once."""
    description = check_description(description)
    steps = None if retry_schedule is None else check_retry_schedule(retry_schedule)

    async def add(hub: "Hub") -> tuple[Subscription, str | None]:
        if url is not None:
            await hub.http_client.check_url(url)
        draft = SubscriptionDraft(service, event_types, url, description, timeout, steps, on_blocked)
        async with hub.transaction() as tx:
            return await add_subscription(tx, hub.key_ring, draft, cli_actor(), hub.settings.subscriptions_per_service)

    subscription, secret = with_hub(connection, add)
    if json:
        print_json(asdict(subscription) | {"secret": secret})
        return
    print_text(f"subscription  {subscription.id}")
    print_signing_secret(secret)


@app.command(name="list", help_epilogue=examples("subscription list", "subscription list --service billing --json"))
def subscription_list(
    *,
    service: Annotated[str | None, Parameter(help="Only subscriptions of this service.")] = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """List subscriptions, oldest first."""

    async def read(tx: Tx) -> list[Subscription]:
        return await read_all_pages(
            lambda after: list_subscriptions(tx, OPERATOR_ACCESS, service=service, after=after, limit=PAGE_SIZE)
        )

    print_rows(run_query(connection, read), COLUMNS, subscription_cells, empty="No subscriptions.", json=json)


@app.command(
    name="show", help_epilogue=examples("subscription show 01a1e213…ea569f", "subscription show 01a1e213…ea569f --json")
)
def subscription_show(
    subscription_id: IdArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Show a subscription and the state of its receiver."""

    async def read(tx: Tx) -> Subscription:
        return await find_subscription(tx, await resolve_subscription_id(tx, subscription_id), OPERATOR_ACCESS)

    print_subscription(run_query(connection, read), json=json)


@app.command(
    name="set",
    help_epilogue=examples(
        "subscription set 01a1e213…ea569f --retry-schedule 5s,1m,1h --on-blocked hold",
        "subscription set 01a1e213…ea569f --type 'order.*' --url https://billing.example.org/v2/events",
    ),
)
def subscription_set(
    subscription_id: IdArgument,
    /,
    *,
    event_type: Annotated[
        list[str] | None,
        Parameter(name="--type", negative="", help="An event type: 'order.*'. Repeat for more."),
    ] = None,
    url: Annotated[str | None, Parameter(help="Push to this URL instead.")] = None,
    description: Annotated[str | None, Parameter(help="Description, one line. An empty text removes it.")] = None,
    timeout: Annotated[
        int | None, Parameter(validator=Number(gte=1, lte=60), help="Seconds the receiver has to respond, 1 to 60.")
    ] = None,
    retry_schedule: Annotated[
        str | None, Parameter(help="Delays before the retries of a push, such as 5s,30s,2m; or default.")
    ] = None,
    on_blocked: Annotated[
        OnBlocked | None,
        Parameter(help=ON_BLOCKED_HELP),
    ] = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Change a subscription. An option replaces its earlier value; the others stay. A waiting retry keeps its time."""
    steps = None if retry_schedule in {None, DEFAULT_SCHEDULE_NAME} else check_retry_schedule(retry_schedule or "")
    patch = SubscriptionPatch(
        event_types=event_type,
        url=url,
        timeout_seconds=timeout,
        set_description=description is not None,
        description=check_description(description),
        set_retry_schedule=retry_schedule is not None,
        retry_schedule=steps,
        on_blocked=on_blocked,
    )
    if patch == SubscriptionPatch():
        raise nothing_to_change("--type", "--url", "--description", "--timeout", "--retry-schedule", "--on-blocked")

    async def change(hub: "Hub") -> Subscription:
        if url is not None:
            await hub.http_client.check_url(url)
        async with hub.transaction() as tx:
            row = await resolve_subscription_id(tx, subscription_id)
            return await update_subscription(tx, row, OPERATOR_ACCESS, patch, cli_actor())

    print_subscription(with_hub(connection, change), json=json)


@app.command(
    name="pause",
    help_epilogue=examples("subscription pause 01a1e213…ea569f", "subscription pause 01a1e213…ea569f --json"),
)
def subscription_pause(
    subscription_id: IdArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Pause a subscription. New events wait; deliveries in flight finish."""
    actor = cli_actor()
    _, subscription = change_subscription(
        connection, subscription_id, lambda tx, row: pause_subscription(tx, row, OPERATOR_ACCESS, actor)
    )
    print_subscription(subscription, json=json)


@app.command(
    name="resume",
    help_epilogue=examples("subscription resume 01a1e213…ea569f", "subscription resume 01a1e213…ea569f --json"),
)
def subscription_resume(
    subscription_id: IdArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Resume a subscription that was paused, disabled by a 410 response, or held back after failures."""
    actor = cli_actor()
    _, subscription = change_subscription(
        connection, subscription_id, lambda tx, row: resume_subscription(tx, row, OPERATOR_ACCESS, actor)
    )
    print_subscription(subscription, json=json)


@app.command(
    name="remove",
    help_epilogue=examples("subscription remove 01a1e213…ea569f", "subscription remove 01a1e213…ea569f --json"),
)
def subscription_remove(
    subscription_id: IdArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Remove a subscription. Events already queued for its service stay and can be pulled."""
    actor = cli_actor()
    removed_id, _ = change_subscription(
        connection, subscription_id, lambda tx, row: remove_subscription(tx, row, OPERATOR_ACCESS, actor)
    )
    if json:
        print_json({"removed": str(removed_id)})
    else:
        print_text(f"{removed_id} removed")


@app.command(
    name="rotate-secret",
    help_epilogue=examples(
        "subscription rotate-secret 01a1e213…ea569f", "subscription rotate-secret 01a1e213…ea569f --json"
    ),
)
def subscription_rotate_secret(
    subscription_id: IdArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Print a new signing secret, which is shown only once. Pushes are also signed with the old one for a day."""

    async def rotate(hub: "Hub") -> tuple[Subscription, str]:
        async with hub.transaction() as tx:
            row = await resolve_subscription_id(tx, subscription_id)
            return await rotate_subscription_secret(tx, hub.key_ring, row, OPERATOR_ACCESS, cli_actor())

    subscription, secret = with_hub(connection, rotate)
    if json:
        print_json(asdict(subscription) | {"secret": secret})
        return
    print_signing_secret(secret)
    until = subscription.previous_secret_until
    print_text(
        f"Pushes are also signed with the old secret until {local_time(until)}."
        if until
        else "No other secret is used."
    )


@app.command(
    name="test", help_epilogue=examples("subscription test 01a1e213…ea569f", "subscription test 01a1e213…ea569f --json")
)
def subscription_test(
    subscription_id: IdArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Push a signed `pabal.test` event and print the result. Exits with 1 unless the receiver responds with 2xx."""

    async def push(hub: "Hub") -> PushResult:
        async with hub.autocommit() as tx:
            row = await resolve_subscription_id(tx, subscription_id)
            subscription = await find_subscription(tx, row, OPERATOR_ACCESS)
        return await hub.pusher.send_test(subscription)

    outcome = with_hub(connection, push)
    match outcome:
        case Done():
            error = None
        case Retry() | Dead() | Unsent():
            error = outcome.error
        case _:
            assert_never(outcome)
    if json:
        print_json({"delivered": error is None, "error": error})
    elif error is None:
        print_text("delivered")
    if error is not None:
        raise SetupError(f"test event not delivered: {error}")


async def resolve_subscription_id(tx: Tx, pattern: IdPattern) -> UUID:
    return await resolve_id(tx, pattern, "subscription", match_subscription_ids)


def change_subscription(
    connection: Connection, pattern: IdPattern, change: Callable[[Tx, UUID], Awaitable[Any]]
) -> tuple[UUID, Any]:
    async def apply(tx: Tx) -> tuple[UUID, Any]:
        row = await resolve_subscription_id(tx, pattern)
        return row, await change(tx, row)

    return run_transaction(connection, apply)


def print_subscription(subscription: Subscription, *, json: bool) -> None:
    if json:
        print_json(asdict(subscription))
        return
    until = subscription.previous_secret_until
    print_table(
        ("subscription", str(subscription.id)),
        [
            ("service", subscription.service_name),
            ("mode", subscription.mode),
            *([("program", subscription.program)] if subscription.program else []),
            ("types", " ".join(subscription.event_types)),
            ("description", subscription.description or ""),
            ("state", subscription_state(subscription)),
            *(push_fields(subscription) if subscription.url else []),
            *([("old secret", f"signs until {local_time(until)}")] if until else []),
            ("added", local_time(subscription.created_at)),
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
        subscription.url or subscription.program,
    )


def subscription_state(subscription: Subscription) -> str:
    if subscription.disabled_at:
        return f"disabled since {local_time(subscription.disabled_at)}: {subscription.disabled_reason}"
    if subscription.paused_at:
        return f"paused since {local_time(subscription.paused_at)}"
    if subscription.open_until:
        return f"failed {subscription.failures} times, held back until {local_time(subscription.open_until)}"
    return "active"


def check_description(description: str | None) -> str | None:
    if description and not description.isprintable():
        raise UsageError("--description must be one line of text")
    return description or None


def check_retry_schedule(text: str) -> list[int]:
    with refuse_arguments("--retry-schedule"):
        return parse_retry_schedule(text)


def push_fields(subscription: Subscription) -> list[tuple[str, Any]]:
    return [
        ("url", subscription.url),
        ("timeout", f"{subscription.timeout_seconds} s"),
        ("retries after", format_retry_schedule(subscription.retry_schedule)),
        ("on blocked", subscription.on_blocked),
    ]
