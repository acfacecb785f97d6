"""`pabal notification send|list|show|explain|cancel|resend`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import cyclopts
from cyclopts import Parameter

from pabal.cli.context import cli_actor, run_query, run_transaction, with_hub
from pabal.cli.examples import examples
from pabal.cli.id_argument import IdArgument, resolve_id
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Cursor, Json, Limit
from pabal.cli.output import (
    display_value,
    local_time,
    one_line,
    pretty_json,
    print_block,
    print_fields,
    print_json,
    print_page,
    print_table,
    print_text,
)
from pabal.cli.time_range import ANY_TIME, TimeRange, scan_range
from pabal.core.cursor import decode_cursor, encode_cursor
from pabal.core.short_id import IdPattern
from pabal.db.tx import Tx
from pabal.notifications.decision.texts import PART_TITLES, ExplanationLanguage, format_bilingual
from pabal.notifications.id_lookup import match_notification_ids
from pabal.notifications.notifications import (
    OPERATOR_ACCESS,
    Notification,
    NotificationAttempt,
    NotificationFilter,
    find_notification,
    list_notification_attempts,
    scan_notifications,
)
from pabal.notifications.states import NotificationState

if TYPE_CHECKING:
    from pabal.hub import Hub
    from pabal.notifications.requests import RequestedNotification
    from pabal.trace.explain_notification import NotificationExplanation

app = cyclopts.App(
    name="notification",
    help="Send, inspect, cancel and resend notifications.",
    help_epilogue=examples("notification list --state failed", "notification explain 01a1e213…ea569f"),
)
app.command(
    "pabal.cli.notifications.notification_send:notification_send",
    name="send",
    help="Request a notification. Prints its id once it is durable.",
    help_epilogue=examples(
        """notification send marketing.news --dm 80351110224678912 --payload '{"headline": "Hi", "story": "…"}'""",
        "notification send payment.succeeded --toast 80351110224678912 --payload @order.json --dry-run",
    ),
)

MAX_ERROR_CHARS = 60
COLUMNS = ("id", "requested", "template", "to", "by", "state", "last error")
ATTEMPT_COLUMNS = ("attempt", "ended", "by", "outcome", "reason")


@app.command(
    name="list",
    help_epilogue=examples(
        "notification list --state failed --since 1d", "notification list --recipient 80351110224678912"
    ),
)
def notification_list(
    *,
    recipient: Annotated[str | None, Parameter(help="Only for this Discord user or channel.")] = None,
    state: Annotated[NotificationState | None, Parameter(help="Only notifications in this state.")] = None,
    template: Annotated[str | None, Parameter(help="Only notifications of this template.")] = None,
    time_range: TimeRange = ANY_TIME,
    limit: Limit = 50,
    cursor: Cursor = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """List notifications, newest first."""
    criteria, start = NotificationFilter(recipient, state, template), decode_cursor(cursor)

    async def read(tx: Tx) -> tuple[list[Notification], str | None]:
        rows, end = await scan_range(
            lambda before, count: scan_notifications(tx, OPERATOR_ACCESS, criteria, before=before, limit=count),
            await time_range.bounds(tx),
            start,
            limit,
        )
        return rows, encode_cursor(end)

    rows, next_cursor = run_query(connection, read)
    print_page(rows, next_cursor, COLUMNS, notification_cells, empty="No notifications.", json=json)


@app.command(
    name="show", help_epilogue=examples("notification show 01a1e213…ea569f", "notification show 01a1e213…ea569f --json")
)
def notification_show(
    notification_id: IdArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Show a notification and its attempts. For the reasons, see `pabal notification explain`."""

    async def read(tx: Tx) -> tuple[Notification, list[NotificationAttempt]]:
        notification = await find_notification(tx, await resolve_notification_id(tx, notification_id), OPERATOR_ACCESS)
        return notification, await list_notification_attempts(tx, notification.id)

    notification, attempts = run_query(connection, read)
    if json:
        print_json(asdict(notification) | {"attempts": [*map(asdict, attempts)]})
        return
    fields: dict[str, Any] = asdict(notification) | {"decision": ", ".join(notification.decision)}
    print_fields((name.replace("_", " "), display_value(value)) for name, value in fields.items() if name != "payload")
    print_block("payload", pretty_json(notification.payload))
    print_table(
        ATTEMPT_COLUMNS,
        [
            (attempt.attempt, local_time(attempt.ended_at), attempt.worker, attempt.outcome, attempt.why or "")
            for attempt in attempts
        ],
        empty="No attempts.",
    )


@app.command(
    name="explain",
    help_epilogue=examples(
        "notification explain 01a1e213…ea569f", "notification explain 01a1e213…ea569f --language ko"
    ),
)
def notification_explain(
    notification_id: IdArgument,
    /,
    *,
    language: Annotated[ExplanationLanguage, Parameter(help="Language of the explanation.")] = "en",
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Explain why a notification was or was not sent, and what would change the next one."""
    from pabal.trace.explain_notification import explain_notification

    async def explain(tx: Tx) -> "NotificationExplanation":
        row = await resolve_notification_id(tx, notification_id)
        return await explain_notification(tx, row, OPERATOR_ACCESS, language, local_time)

    explanation = run_query(connection, explain)
    if json:
        print_json(asdict(explanation))
        return
    part = ""
    for line in explanation.lines:
        if line.part != part:
            part = line.part
            print_text(format_bilingual(PART_TITLES[part], language), "bold")
        at = f"{local_time(line.at)}  " if line.at else ""
        print_text(f"  {at}{one_line(line.says)}")


@app.command(
    name="cancel",
    help_epilogue=examples("notification cancel 01a1e213…ea569f", "notification cancel 01a1e213…ea569f --json"),
)
def notification_cancel(
    notification_id: IdArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Cancel a notification that is still pending and not being sent."""
    from pabal.notifications.requests import cancel_notification

    async def cancel(tx: Tx) -> Notification:
        return await cancel_notification(
            tx, await resolve_notification_id(tx, notification_id), OPERATOR_ACCESS, cli_actor()
        )

    notification = run_transaction(connection, cancel)
    if json:
        print_json(asdict(notification))
    else:
        print_text(f"{notification.id} cancelled")


@app.command(
    name="resend",
    help_epilogue=examples("notification resend 01a1e213…ea569f", "notification resend 01a1e213…ea569f --json"),
)
def notification_resend(
    notification_id: IdArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Request a failed notification again, as a new one. The recipient's preferences still apply."""
    from pabal.cli.notifications.notification_send import print_requested
    from pabal.notifications.resend import resend_notification

    async def resend(hub: "Hub") -> "RequestedNotification":
        async with hub.transaction() as tx:
            row = await resolve_notification_id(tx, notification_id)
            return await resend_notification(tx, hub.templates, row, cli_actor())

    print_requested(with_hub(connection, resend), json=json)


async def resolve_notification_id(tx: Tx, pattern: IdPattern) -> UUID:
    return await resolve_id(tx, pattern, "notification", match_notification_ids)


def notification_cells(notification: Notification) -> tuple[object, ...]:
    return (
        notification.id,
        local_time(notification.created_at),
        notification.template_key,
        f"{notification.recipient_type} {notification.recipient_id}",
        notification.requested_by,
        f"{notification.state} ({notification.reason})" if notification.reason else notification.state,
        one_line(notification.last_error or "", MAX_ERROR_CHARS),
    )
