"""`pabal notify send|list|show|explain|cancel|again|heal`, and beside them templates, wishes, rules and people."""

from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

import cyclopts
from cyclopts import Parameter

from pabal.api.notifications import RecipientType, State
from pabal.api.page import cursor_at, place_of
from pabal.cli import lists, person, preference, rule, screen, template, wide
from pabal.cli.errand import actor, errand, in_transaction
from pabal.cli.options import Cursor, DatabaseUrl, DataDir, Json, Limit
from pabal.cli.send import say_asked, send
from pabal.core.actor import Actor
from pabal.core.sight import Sight
from pabal.notifications import addresses, read
from pabal.notifications.again import again as repeat
from pabal.notifications.cancel import cancel as call_off
from pabal.notifications.explain import Explanation
from pabal.notifications.explain import explain as reasons_of
from pabal.notifications.glance import every
from pabal.notifications.plan import Channel
from pabal.notifications.read import Attempt, Filter, Notification, Reader
from pabal.notifications.reasons import PARTS, Language, say
from pabal.notifications.request import Asked
from pabal.wiring import Hub

app = cyclopts.App(name="notify", help="Notices to people: send them, look at them, say why somebody got one or not.")
app.command(send)
app.command(template.preview)
app.command(template.check)
app.command(preference.prefs)
app.command(person.export)
app.command(person.erase)
app.command(rule.app)

SHOWN = 60
COLUMNS = ("id", "asked", "template", "to", "by", "state", "last error")
OPERATOR = Reader("hub", all=True)

Id = Annotated[UUID, Parameter(name="ID", help="The notification, as `pabal notify list` shows it.")]


@app.command(name="list")
def listing(
    *,
    recipient: Annotated[str | None, Parameter(help="For this Discord user or channel.")] = None,
    state: Annotated[State | None, Parameter(help="How it stands.")] = None,
    template: Annotated[str | None, Parameter(help="Of this template.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show notifications, the newest first."""
    chosen, before = Filter(recipient, state, template), place_of(cursor)

    async def look(hub: Hub) -> Sight[Notification]:
        async with hub.autocommit() as tx:
            return await every(tx, OPERATOR, chosen, before=before, limit=limit)

    found = errand(look, data_dir=data_dir, database_url=database_url)
    lists.page(found.rows, cursor_at(found.end), COLUMNS, cells, empty="No notifications.", json=json)


@app.command
def show(row: Id, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show one notification as it stands, and every attempt at it. `explain` says why."""

    async def look(hub: Hub) -> tuple[Notification, list[Attempt]]:
        async with hub.autocommit() as tx:
            return await read.find(tx, row, OPERATOR), await read.attempts(tx, row)

    notification, attempts = errand(look, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(asdict(notification) | {"attempts": [asdict(each) for each in attempts]})
        return
    said: dict[str, Any] = asdict(notification) | {"decision": ", ".join(notification.decision)}
    wide.facts((name.replace("_", " "), wide.shown(value)) for name, value in said.items() if name != "payload")
    wide.block("payload", wide.pretty(notification.payload))
    screen.table(
        ("attempt", "ended", "by", "outcome", "why"),
        [(each.attempt, wide.local(each.ended_at), each.worker, each.outcome, each.why or "") for each in attempts],
        empty="No attempts.",
    )


@app.command
def explain(
    row: Id,
    /,
    *,
    language: Annotated[Language, Parameter(help="In which language.")] = "en",
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Say in words why somebody got a notice or did not, and what would have to change for the next one."""

    async def look(hub: Hub) -> Explanation:
        async with hub.autocommit() as tx:
            return await reasons_of(tx, row, OPERATOR, language, wide.local)

    explained = errand(look, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(asdict(explained))
        return
    part = ""
    for line in explained.lines:
        if line.part != part:
            part = line.part
            screen.say(say(PARTS[part], language), "bold")
        at = f"{wide.local(line.at)}  " if line.at else ""
        screen.say(f"  {at}{screen.one_line(line.says)}")


@app.command
def cancel(row: Id, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Call a notification off. One that has ended, or is being sent this moment, stays as it is."""
    ended = in_transaction(lambda tx: call_off(tx, row, OPERATOR, Actor(actor())), data_dir, database_url)
    if json:
        screen.as_json(asdict(ended))
    else:
        screen.say(f"{ended.id} is called off")


@app.command
def again(row: Id, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Send a notification that failed again, as a new one. What its recipient wants is looked at as always."""

    async def do(hub: Hub) -> Asked:
        async with hub.transaction() as tx:
            return await repeat(tx, hub.catalogue, row, Actor(actor()))

    asked = errand(do, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(asdict(asked))
    else:
        say_asked(asked)


@app.command
def heal(
    channel: Annotated[RecipientType, Parameter(name="CHANNEL", help="The kind of address.")],
    recipient: Annotated[str, Parameter(name="RECIPIENT", help="The Discord user or channel that refused us.")],
    /,
    *,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Say that an address which refused us works again: the next notice is sent, and will show."""
    by = Actor(actor())
    in_transaction(lambda tx: addresses.heal(tx, Channel(channel), recipient, by), data_dir, database_url)
    if json:
        screen.as_json({"healed": {"recipient_type": channel, "recipient_id": recipient}})
    else:
        screen.say(f"{channel} {recipient} is tried again")


def cells(each: Notification) -> tuple[object, ...]:
    return (
        each.id,
        wide.local(each.created_at),
        each.template_key,
        f"{each.recipient_type} {each.recipient_id}",
        each.requested_by,
        f"{each.state} ({each.reason})" if each.reason else each.state,
        screen.one_line(each.last_error or "", SHOWN),
    )
