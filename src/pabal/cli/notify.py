"""`pabal notify send|list|show|explain|cancel|again|heal`, and beside them templates, wishes, rules and people."""

from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

import cyclopts
from cyclopts import Parameter

from pabal.api.notifications import NotificationState, RecipientType
from pabal.api.page import decode_cursor, encode_cursor
from pabal.cli import lists, person, preference, rule, screen, template, wide
from pabal.cli.errand import cli_actor, with_hub, with_transaction
from pabal.cli.options import Cursor, DatabaseUrl, DataDir, Json, Limit
from pabal.cli.send import notification_send, print_submitted
from pabal.core.actor import Actor
from pabal.core.sight import ScanPage
from pabal.notifications import addresses, read
from pabal.notifications.again import resend_notification as repeat
from pabal.notifications.cancel import cancel_notification as call_off
from pabal.notifications.explain import NotificationExplanation
from pabal.notifications.explain import explain_notification as reasons_of
from pabal.notifications.glance import scan_notifications
from pabal.notifications.plan import NotificationChannel
from pabal.notifications.read import Notification, NotificationAccess, NotificationAttempt, NotificationFilter
from pabal.notifications.reasons import PART_TITLES, ExplanationLanguage, format_bilingual
from pabal.notifications.request import RequestedNotification
from pabal.wiring import Hub

app = cyclopts.App(name="notify", help="Notices to people: send them, look at them, say why somebody got one or not.")
app.command(notification_send, name="send")
app.command(template.template_preview, name="preview")
app.command(template.template_check, name="check")
app.command(preference.person_preferences, name="prefs")
app.command(person.person_export, name="export")
app.command(person.person_erase, name="erase")
app.command(rule.rules_app)

MAX_ERROR_CHARS = 60
COLUMNS = ("id", "asked", "template", "to", "by", "state", "last error")
OPERATOR = NotificationAccess("hub", all_services=True)

NotificationArgument = Annotated[UUID, Parameter(name="ID", help="The notification, as `pabal notify list` shows it.")]


@app.command(name="list")
def notification_list(
    *,
    recipient: Annotated[str | None, Parameter(help="For this Discord user or channel.")] = None,
    state: Annotated[NotificationState | None, Parameter(help="How it stands.")] = None,
    template: Annotated[str | None, Parameter(help="Of this template.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show notifications, the newest first."""
    chosen, before = NotificationFilter(recipient, state, template), decode_cursor(cursor)

    async def look(hub: Hub) -> ScanPage[Notification]:
        async with hub.autocommit() as tx:
            return await scan_notifications(tx, OPERATOR, chosen, before=before, limit=limit)

    found = with_hub(look, data_dir=data_dir, database_url=database_url)
    lists.print_page(
        found.rows, encode_cursor(found.end), COLUMNS, notification_cells, empty="No notifications.", json=json
    )


@app.command(name="show")
def notification_show(
    notification_id: NotificationArgument,
    /,
    *,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show one notification as it stands, and every attempt at it. `explain` says why."""

    async def look(hub: Hub) -> tuple[Notification, list[NotificationAttempt]]:
        async with hub.autocommit() as tx:
            return await read.find_notification(tx, notification_id, OPERATOR), await read.list_notification_attempts(
                tx, notification_id
            )

    notification, attempts = with_hub(look, data_dir=data_dir, database_url=database_url)
    if json:
        screen.print_json(asdict(notification) | {"attempts": [asdict(each) for each in attempts]})
        return
    said: dict[str, Any] = asdict(notification) | {"decision": ", ".join(notification.decision)}
    wide.print_fields(
        (name.replace("_", " "), wide.display_value(value)) for name, value in said.items() if name != "payload"
    )
    wide.print_block("payload", wide.pretty_json(notification.payload))
    screen.print_table(
        ("attempt", "ended", "by", "outcome", "why"),
        [
            (each.attempt, wide.local_time(each.ended_at), each.worker, each.outcome, each.why or "")
            for each in attempts
        ],
        empty="No attempts.",
    )


@app.command(name="explain")
def notification_explain(
    notification_id: NotificationArgument,
    /,
    *,
    language: Annotated[ExplanationLanguage, Parameter(help="In which language.")] = "en",
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Say in words why somebody got a notice or did not, and what would have to change for the next one."""

    async def look(hub: Hub) -> NotificationExplanation:
        async with hub.autocommit() as tx:
            return await reasons_of(tx, notification_id, OPERATOR, language, wide.local_time)

    explained = with_hub(look, data_dir=data_dir, database_url=database_url)
    if json:
        screen.print_json(asdict(explained))
        return
    part = ""
    for line in explained.lines:
        if line.part != part:
            part = line.part
            screen.print_text(format_bilingual(PART_TITLES[part], language), "bold")
        at = f"{wide.local_time(line.at)}  " if line.at else ""
        screen.print_text(f"  {at}{screen.one_line(line.says)}")


@app.command(name="cancel")
def notification_cancel(
    notification_id: NotificationArgument,
    /,
    *,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Call a notification off. One that has ended, or is being sent this moment, stays as it is."""
    ended = with_transaction(
        lambda tx: call_off(tx, notification_id, OPERATOR, Actor(cli_actor())), data_dir, database_url
    )
    if json:
        screen.print_json(asdict(ended))
    else:
        screen.print_text(f"{ended.id} is called off")


@app.command(name="again")
def notification_again(
    notification_id: NotificationArgument,
    /,
    *,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Send a notification that failed again, as a new one. What its recipient wants is looked at as always."""

    async def do(hub: Hub) -> RequestedNotification:
        async with hub.transaction() as tx:
            return await repeat(tx, hub.templates, notification_id, Actor(cli_actor()))

    asked = with_hub(do, data_dir=data_dir, database_url=database_url)
    if json:
        screen.print_json(asdict(asked))
    else:
        print_submitted(asked)


@app.command(name="heal")
def notification_heal(
    channel: Annotated[RecipientType, Parameter(name="CHANNEL", help="The kind of address.")],
    recipient: Annotated[str, Parameter(name="RECIPIENT", help="The Discord user or channel that refused us.")],
    /,
    *,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Say that an address which refused us works again: the next notice is sent, and will show."""
    by = Actor(cli_actor())
    with_transaction(
        lambda tx: addresses.heal_address(tx, NotificationChannel(channel), recipient, by), data_dir, database_url
    )
    if json:
        screen.print_json({"healed": {"recipient_type": channel, "recipient_id": recipient}})
    else:
        screen.print_text(f"{channel} {recipient} is tried again")


def notification_cells(notification: Notification) -> tuple[object, ...]:
    return (
        notification.id,
        wide.local_time(notification.created_at),
        notification.template_key,
        f"{notification.recipient_type} {notification.recipient_id}",
        notification.requested_by,
        f"{notification.state} ({notification.reason})" if notification.reason else notification.state,
        screen.one_line(notification.last_error or "", MAX_ERROR_CHARS),
    )
