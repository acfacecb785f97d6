"""`pabal notify send|list|show|explain|cancel|again|heal`, and beside them templates, wishes, rules and people."""

from dataclasses import asdict, fields
from typing import Annotated, Any
from uuid import UUID

import cyclopts
from cyclopts import Parameter

from pabal.api.notifications import NotificationState, RecipientType
from pabal.cli.context import cli_actor, with_hub, with_transaction
from pabal.cli.notify_send import notification_send, print_submitted, template_check, template_preview
from pabal.cli.options import Cursor, DatabaseUrl, DataDir, Json, Limit
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
from pabal.cli.privacy import person_erase, person_export
from pabal.cli.rule import rules_app
from pabal.core.actor import Actor
from pabal.core.errors import Invalid
from pabal.db.bounded_scan import ScanPage
from pabal.hub import Hub
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.decision.texts import PART_TITLES, ExplanationLanguage, format_bilingual
from pabal.notifications.dispatch.addresses import heal_address
from pabal.notifications.notifications import (
    Notification,
    NotificationAccess,
    NotificationAttempt,
    NotificationFilter,
    find_notification,
    list_notification_attempts,
    scan_notifications,
)
from pabal.notifications.people.preferences import Preferences, PreferencesOwner, PreferencesUpdate, update_preferences
from pabal.notifications.requests import RequestedNotification
from pabal.notifications.requests import cancel_notification as call_off
from pabal.notifications.resend import resend_notification as repeat
from pabal.trace.explain_notification import NotificationExplanation
from pabal.trace.explain_notification import explain_notification as reasons_of
from pabal.web.pagination import decode_cursor, encode_cursor

TRUE_WORDS, FALSE_WORDS = frozenset({"true", "on", "yes", "1"}), frozenset({"false", "off", "no", "0"})
PREFERENCE_NAMES = tuple(field.name for field in fields(PreferencesUpdate))


def person_preferences(
    person: Annotated[str, Parameter(name="ID", help="The Discord user, or a registered user's UUID.")],
    /,
    *,
    set: Annotated[
        list[str] | None,
        Parameter(negative="", consume_multiple=True, help=f"NAME=VALUE, of {', '.join(PREFERENCE_NAMES)}."),
    ] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show what somebody wants to be told, and change it. Whoever said nothing has the defaults."""
    who, wish = parse_person(person), parse_preferences(set or [])

    async def do(hub: Hub) -> Preferences:
        async with hub.transaction() as tx:
            return await update_preferences(tx, who, wish, Actor(cli_actor()))

    found = with_hub(do, data_dir=data_dir, database_url=database_url)
    if json:
        print_json(asdict(found))
        return
    print_fields(
        [
            ("user", found.user_id),
            ("discord", found.discord_id),
            *((name.replace("_", " "), "on" if on else "off") for name, on in asdict(found.flags).items()),
            ("night consent", local_time(found.night_consent_at) or "none"),
            ("locale", found.locale or "the hub's"),
            ("changed", local_time(found.updated_at) or "never"),
        ]
    )


def parse_person(person: str) -> PreferencesOwner:
    try:
        return UUID(person)
    except ValueError:
        return person


def parse_preferences(pairs: list[str]) -> PreferencesUpdate:
    said: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in PREFERENCE_NAMES:
            raise Invalid.of_field("set", f"{name} is none of {', '.join(PREFERENCE_NAMES)}")
        said[name] = value if name == "locale" else parse_switch(name, value.lower())
    return PreferencesUpdate(**said)


def parse_switch(name: str, value: str) -> bool:
    if value not in TRUE_WORDS | FALSE_WORDS:
        raise Invalid.of_field("set", f"{name} is true or false")
    return value in TRUE_WORDS


app = cyclopts.App(name="notify", help="Notices to people: send them, look at them, say why somebody got one or not.")
app.command(notification_send, name="send")
app.command(template_preview, name="preview")
app.command(template_check, name="check")
app.command(person_preferences, name="prefs")
app.command(person_export, name="export")
app.command(person_erase, name="erase")
app.command(rules_app)

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
    print_page(found.rows, encode_cursor(found.end), COLUMNS, notification_cells, empty="No notifications.", json=json)


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
            return await find_notification(tx, notification_id, OPERATOR), await list_notification_attempts(
                tx, notification_id
            )

    notification, attempts = with_hub(look, data_dir=data_dir, database_url=database_url)
    if json:
        print_json(asdict(notification) | {"attempts": [asdict(each) for each in attempts]})
        return
    said: dict[str, Any] = asdict(notification) | {"decision": ", ".join(notification.decision)}
    print_fields((name.replace("_", " "), display_value(value)) for name, value in said.items() if name != "payload")
    print_block("payload", pretty_json(notification.payload))
    print_table(
        ("attempt", "ended", "by", "outcome", "why"),
        [(each.attempt, local_time(each.ended_at), each.worker, each.outcome, each.why or "") for each in attempts],
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
            return await reasons_of(tx, notification_id, OPERATOR, language, local_time)

    explained = with_hub(look, data_dir=data_dir, database_url=database_url)
    if json:
        print_json(asdict(explained))
        return
    part = ""
    for line in explained.lines:
        if line.part != part:
            part = line.part
            print_text(format_bilingual(PART_TITLES[part], language), "bold")
        at = f"{local_time(line.at)}  " if line.at else ""
        print_text(f"  {at}{one_line(line.says)}")


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
        print_json(asdict(ended))
    else:
        print_text(f"{ended.id} is called off")


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
        print_json(asdict(asked))
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
    with_transaction(lambda tx: heal_address(tx, NotificationChannel(channel), recipient, by), data_dir, database_url)
    if json:
        print_json({"healed": {"recipient_type": channel, "recipient_id": recipient}})
    else:
        print_text(f"{channel} {recipient} is tried again")


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
