"""`pabal notify rules list|show|add|change|remove`."""

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import cyclopts
from cyclopts import Parameter

from pabal.api.notifications import RecipientType
from pabal.cli import lists, screen, wide
from pabal.cli.errand import actor, errand, in_transaction
from pabal.cli.options import DatabaseUrl, DataDir, Json, span
from pabal.core.actor import Actor
from pabal.core.errors import Invalid
from pabal.notifications import rules
from pabal.notifications.rules import Draft, Rule
from pabal.settings import in_words
from pabal.wiring import Hub

app = cyclopts.App(name="rules", help="Which events make which notices, and for whom.")

PAGE = 500
COLUMNS = ("id", "name", "events", "template", "to", "channels", "active")

Id = Annotated[UUID, Parameter(name="ID", help="The rule, as `pabal notify rules list` shows it.")]
Optional = Literal["guild_path", "incident_path", "expires_after"]


def words(**said: Any) -> Any:
    return Parameter(negative="", consume_multiple=True, **said)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Said:
    """What a rule says, as far as it is said here."""

    events: Annotated[str | None, Parameter(help="Of these events: order.paid, order.*")] = None
    template: Annotated[str | None, Parameter(help="What is written.")] = None
    to: Annotated[list[str] | None, words(help="Paths into the payload: user.discord_id; of a list each.")] = None
    channel: Annotated[list[RecipientType] | None, words(help="Where to.")] = None
    variable: Annotated[
        list[str] | None, words(help="NAME=PATH, for variables that are not at the path of their name.")
    ] = None
    guild_path: Annotated[str | None, Parameter(help="Where the payload names the guild.")] = None
    incident_path: Annotated[str | None, Parameter(help="Where the payload names the incident.")] = None
    expires_after: Annotated[
        timedelta | None, Parameter(converter=span, help="How long its notices are worth sending: 15m, 2h, 7d.")
    ] = None
    active: Annotated[bool | None, Parameter(negative="--inactive", help="Whether it makes notices.")] = None

    def columns(self) -> dict[str, Any]:
        """What is said, in the rule's own words."""
        said = {
            "event_pattern": self.events,
            "template_key": self.template,
            "recipients": self.to,
            "channels": self.channel,
            "variables": None if self.variable is None else dict(map(pair, self.variable)),
            "guild_path": self.guild_path,
            "incident_path": self.incident_path,
            "expires_after": self.expires_after,
            "is_active": self.active,
        }
        return {name: value for name, value in said.items() if value is not None}


NOTHING = Said()


@app.command(name="list")
def listing(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show the rules there are, the oldest first."""

    async def look(hub: Hub) -> list[Rule]:
        async with hub.autocommit() as tx:
            return await lists.to_the_end(lambda after: rules.every(tx, after=after, limit=PAGE))

    every = errand(look, data_dir=data_dir, database_url=database_url)
    lists.whole(every, COLUMNS, cells, empty="No rules.", json=json)


@app.command
def show(row: Id, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show one rule."""
    print_one(in_transaction(lambda tx: rules.find(tx, row), data_dir, database_url), json=json)


@app.command
def add(
    name: Annotated[str, Parameter(name="NAME", help="What people call it.")],
    /,
    *,
    said: Said = NOTHING,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Add a rule, for what is published from now on. It needs --events, --template, --to and --channel."""
    lacking = [f"--{each}" for each in ("events", "template", "to", "channel") if getattr(said, each) is None]
    if lacking:
        raise Invalid.one("rule", f"say {' and '.join(lacking)} as well")

    async def do(hub: Hub) -> Rule:
        async with hub.transaction() as tx:
            return await rules.add(tx, hub.catalogue, Draft(name=name, **said.columns()), Actor(actor()))

    print_one(errand(do, data_dir=data_dir, database_url=database_url), json=json)


@app.command
def change(
    row: Id,
    /,
    *,
    name: Annotated[str | None, Parameter(help="What people call it.")] = None,
    said: Said = NOTHING,
    without: Annotated[list[Optional] | None, words(help="Take these from it.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Change what is named, from the next event on; the rest stays."""
    to = said.columns() | dict.fromkeys(without or ()) | ({} if name is None else {"name": name})
    if not to:
        raise Invalid.one("rule", "say what is to be otherwise")

    async def do(hub: Hub) -> Rule:
        async with hub.transaction() as tx:
            return await rules.change(tx, hub.catalogue, row, to, Actor(actor()))

    print_one(errand(do, data_dir=data_dir, database_url=database_url), json=json)


@app.command
def remove(row: Id, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Forget a rule. What it asked for already is sent."""
    in_transaction(lambda tx: rules.remove(tx, row, Actor(actor())), data_dir, database_url)
    if json:
        screen.as_json({"removed": str(row)})
    else:
        screen.say(f"{row} is gone")


def pair(written: str) -> tuple[str, str]:
    name, equals, path = written.partition("=")
    if not equals:
        raise Invalid.one("variable", f"{written} is not NAME=PATH")
    return name, path


def cells(rule: Rule) -> tuple[object, ...]:
    return (
        rule.id,
        rule.name,
        rule.event_pattern,
        rule.template_key,
        " ".join(rule.recipients),
        " ".join(rule.channels),
        "yes" if rule.is_active else "no",
    )


def print_one(rule: Rule, *, json: bool) -> None:
    if json:
        screen.as_json(asdict(rule))
        return
    wide.facts(
        [
            ("rule", rule.id),
            ("name", rule.name),
            ("events", rule.event_pattern),
            ("template", rule.template_key),
            ("to", " ".join(rule.recipients)),
            ("channels", " ".join(rule.channels)),
            *((f"variable {name}", path) for name, path in rule.variables.items()),
            ("guild", rule.guild_path),
            ("incident", rule.incident_path),
            ("expires after", rule.expires_after and in_words(rule.expires_after)),
            ("active", "yes" if rule.is_active else "no"),
            ("added", f"{wide.local(rule.created_at)} by {rule.created_by}"),
        ]
    )
